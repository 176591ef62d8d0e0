"""What a scheduler began and did not end is given back, and nothing else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from backlogctl.errors import KafkaFailure, LeaseHeld, Refused
from backlogctl.ledger import Owner
from backlogctl.replay.engine import cancelling as cancellation
from backlogctl.replay.engine.brakes import OPERATOR, WINDOW
from backlogctl.replay.engine.cancelling import request_pause
from backlogctl.replay.engine.kind import Workspace
from backlogctl.replay.engine.plan import acting_as
from backlogctl.replay.kinds.expand.kind import Expand
from backlogctl.replay.kinds.offload.kind import Offload
from backlogctl.replay.runbooks import work
from backlogctl.replay.runbooks.work import list_left_open, restore_layout
from backlogctl.values import Recovery, RecoveryState
from tests.replay.makers import read_actions
from tests.replay.runbooks.desks import (
    AIRFLOW_USER,
    SHELL_USER,
    bring,
    bring_by_airflow,
    open_shop,
    store,
    store_unknown,
)

S = RecoveryState
CONSOLE = Console(quiet=True)


@pytest.fixture
def closed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What its kind has brought to an end."""
    found: list[str] = []

    def close(kind: object, desk: Workspace, recovery: Recovery, *rest: Any, **named: Any) -> None:
        found.append(recovery.id)

    for kind in (Expand, Offload):
        monkeypatch.setattr(kind, "close", close)
    return found


@pytest.fixture
def desk(tmp_path: Path, closed: list[str]) -> Workspace:
    return open_shop(tmp_path)


def restore(desk: Workspace, recovery: Recovery) -> Recovery:
    with acting_as(AIRFLOW_USER):
        return restore_layout(desk, recovery.id, console=CONSOLE)


def list_ids(desk: Workspace) -> list[str]:
    return [recovery.id for recovery in list_left_open(desk)]


@pytest.mark.parametrize(
    ("states", "detail"),
    [
        ((S.RUNNING,), {}),
        ((S.RUNNING, S.PAUSED), {"why": WINDOW}),
        ((S.RUNNING, S.FAILED), {"code": "kafka"}),
    ],
)
def test_what_the_scheduler_left_is_cut_over_once(
    desk: Workspace, closed: list[str], states: tuple[S, ...], detail: dict[str, Any]
) -> None:
    recovery = bring_by_airflow(desk, store(desk, "expand"), S.APPROVED, *states, **detail)
    assert list_ids(desk) == [recovery.id]
    assert restore(desk, recovery).state is S.CANCELLED
    assert closed == [recovery.id]
    assert restore(desk, recovery).state is S.CANCELLED, "called again it does nothing"
    assert (closed, list_ids(desk)) == ([recovery.id], [])
    last = desk.ledger.events.list(recovery.id)[-1]
    assert (last.action, last.actor) == ("cancelled", str(AIRFLOW_USER))


@pytest.mark.parametrize(
    ("states", "detail"),
    [((S.RUNNING,), {}), ((S.RUNNING, S.FAILED), {"code": "kafka"})],
)
def test_a_offload_that_is_left_open_is_ended_as_an_expansion_is(
    desk: Workspace, closed: list[str], states: tuple[S, ...], detail: dict[str, Any]
) -> None:
    with acting_as(AIRFLOW_USER):
        offload = store_unknown(desk, S.APPROVED, *states, kind="offload", **detail)
    assert list_ids(desk) == [offload.id]
    assert restore(desk, offload).state is S.CANCELLED
    assert (closed, list_ids(desk)) == ([offload.id], [])


def test_what_was_never_begun_or_is_at_its_end_is_left_alone(
    desk: Workspace, closed: list[str]
) -> None:
    planned = store(desk, "expand")
    assert restore(desk, planned).state is S.PLANNED
    done = bring_by_airflow(desk, planned, S.APPROVED, S.RUNNING, S.VERIFIED)
    assert restore(desk, done).state is S.VERIFIED
    rebuild = bring_by_airflow(desk, store(desk), S.APPROVED, S.RUNNING)
    assert restore(desk, rebuild).state is S.RUNNING
    assert (closed, list_ids(desk)) == ([], [])


def test_an_approval_from_the_shell_waits_for_its_run(desk: Workspace, closed: list[str]) -> None:
    recovery = bring(desk, store(desk, "expand"), S.APPROVED)
    assert restore(desk, recovery).state is S.APPROVED
    assert list_ids(desk) == []
    bring(desk, recovery, S.CANCELLED)
    ours = bring_by_airflow(desk, store(desk, "expand"), S.APPROVED)
    assert list_ids(desk) == [ours.id]
    assert restore(desk, ours).state is S.CANCELLED
    assert closed == [], "there was no layout to give back"


def test_an_expansion_from_the_shell_is_not_looked_for(desk: Workspace) -> None:
    bring(desk, store(desk, "expand", origin=None), S.APPROVED, S.RUNNING, S.FAILED)
    assert list_ids(desk) == []


def test_what_a_person_runs_in_the_shell_is_theirs(desk: Workspace, closed: list[str]) -> None:
    recovery = bring_by_airflow(desk, store(desk, "expand"), S.APPROVED, S.RUNNING, S.FAILED)
    with acting_as(SHELL_USER):
        bring(desk, recovery, S.RUNNING)
    with desk.ledger.leases.hold(recovery.id):
        assert restore(desk, recovery).state is S.RUNNING
        assert list_ids(desk) == []
    # The shell's runner is gone, and did not end it.
    assert list_ids(desk) == [recovery.id]
    assert closed == []


def test_what_a_dead_process_left_is_given_back(desk: Workspace) -> None:
    recovery = bring_by_airflow(desk, store(desk, "expand"), S.APPROVED, S.RUNNING)
    alive = Owner.current()
    dead = replace(alive, started=f"{alive.started.rpartition('/')[0]}/1", token="earlier")
    desk.ledger.leases.acquire(recovery.id, dead)
    actions = read_actions(desk, recovery.id)
    assert list_ids(desk) == [recovery.id]
    assert read_actions(desk, recovery.id) == actions, "looking takes no lease"


@pytest.mark.parametrize("live", [True, False])
def test_what_a_person_paused_stays_paused(desk: Workspace, closed: list[str], live: bool) -> None:
    recovery = bring_by_airflow(desk, store(desk, "expand"), S.APPROVED, S.RUNNING)
    if live:
        with desk.ledger.leases.hold(recovery.id):
            with acting_as(SHELL_USER):
                request_pause(desk, recovery.id)
            assert restore(desk, recovery).state is S.RUNNING, "it was asked for, and counts"
        # The task's runner obeys: the line of the record is the task's.
        bring_by_airflow(desk, recovery, S.PAUSED, why=OPERATOR)
    else:
        with acting_as(SHELL_USER):
            request_pause(desk, recovery.id)
    assert restore(desk, recovery).state is S.PAUSED
    assert (closed, list_ids(desk)) == ([], [])


def test_a_pause_by_a_user_of_airflow_ends_with_the_run(desk: Workspace, closed: list[str]) -> None:
    recovery = bring_by_airflow(desk, store(desk, "expand"), S.APPROVED, S.RUNNING)
    with acting_as(AIRFLOW_USER):
        request_pause(desk, recovery.id)
    assert restore(desk, recovery).state is S.CANCELLED
    assert closed == [recovery.id]


def test_an_earlier_pause_from_the_shell_is_over_when_the_scheduler_went_on(
    desk: Workspace, closed: list[str]
) -> None:
    recovery = bring_by_airflow(desk, store(desk, "expand"), S.APPROVED, S.RUNNING)
    with acting_as(SHELL_USER):
        request_pause(desk, recovery.id)
    bring_by_airflow(desk, recovery, S.RUNNING)
    bring_by_airflow(desk, recovery, S.PAUSED, why=OPERATOR)
    assert restore(desk, recovery).state is S.CANCELLED


def test_its_own_runner_is_waited_for(
    desk: Workspace, closed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(work, "RESTORE_SECONDS", 0.0)
    recovery = bring_by_airflow(desk, store(desk, "expand"), S.APPROVED, S.RUNNING)
    with desk.ledger.leases.hold(recovery.id):
        assert list_ids(desk) == []
        with pytest.raises(LeaseHeld, match="has not stopped yet"):
            restore(desk, recovery)
    assert desk.ledger.recoveries.get(recovery.id).requested == "cancel"
    assert restore(desk, recovery).state is S.CANCELLED


def test_what_ends_meanwhile_is_no_failure(
    desk: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    recovery = bring_by_airflow(desk, store(desk, "expand"), S.APPROVED, S.RUNNING)
    real = cancellation.cancel_work

    def end_first(*args: object, **named: object) -> Recovery:
        bring_by_airflow(desk, recovery, S.VERIFIED)
        return real(*args, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(work, "cancel_work", end_first)
    assert restore(desk, recovery).state is S.VERIFIED


@pytest.mark.parametrize("error", [KafkaFailure("no broker"), Refused("the group is active")])
def test_what_cannot_be_closed_is_tried_again(
    desk: Workspace, monkeypatch: pytest.MonkeyPatch, closed: list[str], error: Exception
) -> None:
    recovery = bring_by_airflow(desk, store(desk, "expand"), S.APPROVED, S.RUNNING)

    def fail(*_: object, **named: object) -> None:
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(Expand, "close", fail)
        with pytest.raises(type(error)):
            restore(desk, recovery)
    assert list_ids(desk) == [recovery.id]
    assert restore(desk, recovery).state is S.CANCELLED
    assert closed == [recovery.id]
