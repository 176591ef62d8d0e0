"""How far a task carries a recovery, and when it comes again."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from rich.console import Console

from backlogctl.clock import utc_now
from backlogctl.errors import ApprovalNeeded, KafkaFailure, LeaseHeld, Refused
from backlogctl.ledger import Owner
from backlogctl.replay.engine import cancelling as cancellation
from backlogctl.replay.engine.brakes import CANARY, INTERRUPTED, OPERATOR, WINDOW, PausedBecause
from backlogctl.replay.engine.cancelling import request_pause
from backlogctl.replay.engine.kind import Workspace
from backlogctl.replay.engine.plan import acting_as, name_origin
from backlogctl.replay.engine.runner import Run
from backlogctl.replay.kinds.expand.kind import ExpandKind
from backlogctl.replay.kinds.offload.kind import Offload
from backlogctl.replay.runbooks import work
from backlogctl.replay.runbooks.work import (
    MARKED,
    Carried,
    WaitingWork,
    WorkTask,
    carry_on,
    describe_other,
    find_run,
    find_task,
    hold_for_person,
    is_at_end,
    lifts_hold,
    list_left_open,
    list_waiting_work,
    record_task,
    restore_layout,
)
from backlogctl.values import Cause, Recovery, RecoveryState
from tests.kit.recoveries import PAST, change_ledger, read_actions
from tests.replay.runbooks.desks import (
    AIRFLOW_USER,
    RUN,
    SHELL_USER,
    bring,
    bring_by_airflow,
    lose,
    open_shop,
    store,
    store_unknown,
)

S = RecoveryState
NIGHT = {"from": "22:30", "to": "06:00", "timezone": "Asia/Shanghai"}


def carry(desk: Workspace, recovery_id: str) -> Carried:
    return carry_on(desk, recovery_id, Console(quiet=True))


def test_what_is_verified_is_done_again_without_doing_anything(desk: Workspace) -> None:
    done = bring(desk, store(desk), S.APPROVED, S.RUNNING, S.VERIFIED)
    events = desk.ledger.events.list(done.id)
    carried = carry(desk, done.id)
    assert (carried.come_again, carried.document["state"]) == (None, "verified")
    assert carried.document["already_done"] is True
    assert desk.ledger.events.list(done.id) == events


def test_another_runner_and_an_operator_are_waited_for(desk: Workspace) -> None:
    recovery = bring(desk, store(desk), S.APPROVED, S.RUNNING)
    before = utc_now()
    with desk.ledger.leases.hold(recovery.id):
        held = carry(desk, recovery.id)
    assert "another runner has it" in held.why
    assert held.come_again is not None
    assert held.come_again > before
    request_pause(desk, recovery.id)
    paused = carry(desk, recovery.id)
    assert (paused.why, paused.recovery.state) == ("paused by an operator", S.PAUSED)
    assert paused.come_again is not None
    assert not paused.waits_for_window


def test_a_closed_window_says_when_it_opens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = open_shop(tmp_path, off_peak=NIGHT)
    recovery = bring(desk, store(desk, off_peak=NIGHT), S.APPROVED, S.RUNNING)
    noon = datetime(2026, 11, 21, 12, 0, tzinfo=ZoneInfo("Asia/Shanghai"))
    monkeypatch.setattr(work, "utc_now", lambda: noon)
    pause_with(monkeypatch, PausedBecause(WINDOW, "outside of the window"))
    carried = carry(desk, recovery.id)
    assert carried.waits_for_window
    assert carried.come_again == noon.replace(hour=22, minute=30)


def pause_with(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def stop(run: object) -> None:
        raise error

    monkeypatch.setattr(Run, "carry_out", stop)


@pytest.mark.parametrize(
    "error",
    [
        PausedBecause(INTERRUPTED, "interrupted"),
        PausedBecause(CANARY, "the first consumer is slow"),
        # Only a plan with a window can wait for one.
        PausedBecause(WINDOW, "outside of the window"),
        KafkaFailure("no broker"),
    ],
)
def test_what_needs_another_try_or_a_person_is_raised(
    desk: Workspace, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    recovery = bring(desk, store(desk), S.APPROVED, S.RUNNING)
    pause_with(monkeypatch, error)
    with pytest.raises(type(error)) as caught:
        carry(desk, recovery.id)
    assert caught.value is error


def test_an_interrupted_run_is_no_closed_window(
    desk: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    recovery = bring(desk, store(desk, off_peak=NIGHT), S.APPROVED, S.RUNNING)
    pause_with(monkeypatch, PausedBecause(INTERRUPTED, "interrupted"))
    with pytest.raises(PausedBecause, match="interrupted"):
        carry(desk, recovery.id)


def test_fault_63_nothing_is_run_without_its_approval(desk: Workspace) -> None:
    planned = store(desk)
    with pytest.raises(ApprovalNeeded, match="not approved yet"):
        carry(desk, planned.id)
    bring(desk, planned, S.APPROVED)
    change_ledger(desk, f"UPDATE backlog_recoveries SET approval_expires_at = '{PAST}'")
    with pytest.raises(ApprovalNeeded, match="expired"):
        carry(desk, planned.id)
    assert desk.ledger.recoveries.get(planned.id).state is S.APPROVED


def test_waiting_for_the_operator_is_not_an_end(desk: Workspace) -> None:
    recovery = store(desk)
    for state in (S.APPROVED, S.RUNNING, S.PAUSED, S.RUNNING, S.FAILED):
        recovery = bring(desk, recovery, state, why=OPERATOR)
        assert not is_at_end(recovery)
    assert is_at_end(bring(desk, recovery, S.CANCELLED))


def test_a_lost_lease_is_waited_for(desk: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    recovery = bring(desk, store(desk), S.APPROVED, S.RUNNING)
    pause_with(monkeypatch, LeaseHeld("h:1 took it over"))
    soon = carry(desk, recovery.id).come_again
    assert soon is not None
    assert soon - utc_now() <= timedelta(seconds=work.OTHER_SECONDS)


def test_fault_40_the_window_is_the_files_as_it_is_now(tmp_path: Path) -> None:
    desk = open_shop(tmp_path, off_peak=NIGHT)
    planned = desk.plan_now(store(desk)).off_peak
    assert planned is not None
    assert str(planned) == "22:30–06:00 Asia/Shanghai"
    window = planned.open()
    inside = datetime(2026, 11, 21, 2, 0, tzinfo=ZoneInfo("Asia/Shanghai"))
    assert window.contains(inside)
    assert not window.contains(inside.replace(hour=12))
    assert open_shop(tmp_path).plan_now(store(desk, off_peak=NIGHT)).off_peak is None


# Which task works on a recovery, and what a person's mark on it means.

FIRST = WorkTask("recover_backlog", "run-1", "rebuild.carry_out")
SECOND = WorkTask("recover_backlog", "run-2", "rebuild.carry_out")
NIGHT_TASK = WorkTask("nightly_backfill", "night", "stream.put_back", 3)


def begin(desk: Workspace, *states: S, why: str = INTERRUPTED) -> Recovery:
    return bring_by_airflow(desk, store(desk), S.APPROVED, *states, why=why)


def test_the_last_task_is_noted_once(desk: Workspace) -> None:
    recovery = begin(desk)
    assert find_task(desk, recovery) is None
    assert find_run(desk, recovery) == RUN
    for task in (FIRST, FIRST, NIGHT_TASK):
        record_task(desk, recovery.id, task)
    assert find_task(desk, recovery) == NIGHT_TASK
    assert find_run(desk, recovery) == name_origin("nightly_backfill", "night")
    assert NIGHT_TASK.key == "stream.put_back_3"
    assert len([a for a in read_actions(desk, recovery.id) if a == "a task works on it"]) == 2
    with acting_as(SHELL_USER):
        desk.ledger.recoveries.advance(recovery.id, S.RUNNING, str(SHELL_USER))
    assert find_task(desk, recovery) is None, "a person has it now"


@pytest.mark.parametrize("why", [INTERRUPTED, WINDOW])
def test_a_mark_is_a_pause_that_a_person_lifts(desk: Workspace, why: str) -> None:
    recovery = begin(desk, S.RUNNING, S.PAUSED, why=why)
    record_task(desk, recovery.id, FIRST)
    assert not lifts_hold(desk, recovery, FIRST)
    for _ in range(2):
        told = hold_for_person(desk, desk.ledger.recoveries.get(recovery.id), FIRST)
        assert f"`backlogctl resume {recovery.id}`" in told
    held = desk.ledger.recoveries.get(recovery.id)
    assert (held.state, held.detail["why"]) == (S.PAUSED, OPERATOR)
    assert read_actions(desk, recovery.id).count(MARKED) == 1
    assert lifts_hold(desk, held, FIRST), "it was cleared"
    assert lifts_hold(desk, held, SECOND), "somebody started another run for it"
    with acting_as(AIRFLOW_USER):
        desk.ledger.recoveries.advance(recovery.id, S.RUNNING, str(AIRFLOW_USER))
    assert not lifts_hold(desk, held, SECOND), "it goes on already"


def test_a_task_that_waited_beside_it_does_not_lift_it(desk: Workspace) -> None:
    recovery = begin(desk, S.RUNNING, S.PAUSED)
    record_task(desk, recovery.id, SECOND)
    record_task(desk, recovery.id, FIRST)
    hold_for_person(desk, recovery, FIRST)
    assert not lifts_hold(desk, recovery, SECOND)


def test_what_has_failed_is_not_paused(desk: Workspace) -> None:
    recovery = begin(desk, S.RUNNING, S.FAILED)
    hold_for_person(desk, recovery, NIGHT_TASK)
    assert desk.ledger.recoveries.get(recovery.id).state is S.FAILED
    assert MARKED in read_actions(desk, recovery.id)


# What waits for runbooks that may be paused.

DAGS = ("recover_backlog", "emergency_offload")
NIGHT_RUN = name_origin("nightly_backfill", "scheduled__2026-11-21")


def look(desk: Workspace) -> WaitingWork:
    return list_waiting_work(desk, DAGS)


def test_open_gaps_are_the_nights_work(desk: Workspace) -> None:
    assert look(desk) == WaitingWork((), {})
    lose(desk, cause=Cause.TOPIC_RECREATED)
    assert look(desk) == WaitingWork((), {}), "nobody can plan it"
    lose(desk, partition=1)
    lose(desk, partition=2)
    assert look(desk) == WaitingWork(("orders has 2 open gaps",), {})


def test_what_a_night_has_begun_goes_on_at_night(desk: Workspace) -> None:
    recovery = store(desk, "rebuild", lose(desk).id, origin=NIGHT_RUN)
    assert look(desk).nightly == (), "it waits for a person"
    bring_by_airflow(desk, recovery, S.APPROVED, S.RUNNING, S.PAUSED, why=WINDOW)
    assert look(desk) == WaitingWork((f"{recovery.id} of orders is paused",), {})


def test_what_a_run_has_begun_is_that_dags(desk: Workspace) -> None:
    recovery = store(desk, "expand")
    told = f"{recovery.id} of orders is"
    assert look(desk).recovering == {"recover_backlog": (f"{told} planned",)}
    bring_by_airflow(desk, recovery, S.APPROVED, S.RUNNING)
    assert look(desk).recovering == {"recover_backlog": (f"{told} running",)}


def test_fault_138_what_another_airflow_has_is_not_this_ones(desk: Workspace) -> None:
    """Two share a ledger. Whoever worked on it last has it; runs by one id are two runs."""
    theirs = store(desk, "expand", origin=RUN.model_copy(update={"deployment": "green"}))
    bring_by_airflow(desk, theirs, S.APPROVED, S.RUNNING)
    assert list_waiting_work(desk, DAGS, "blue") == WaitingWork((), {})
    assert list_waiting_work(desk, DAGS, "green").recovering
    told = describe_other(desk, theirs, "blue")
    assert "left to another Airflow (green), run run-1 of recover_backlog" in told
    assert f"`backlogctl show {theirs.id}`" in told
    record_task(desk, theirs.id, replace(FIRST, deployment="blue"))
    assert (describe_other(desk, theirs, "blue"), describe_other(desk, theirs, "green")) == (
        "",
        told.replace("green", "blue"),
    )
    unnamed = store(desk, "expand", topic="other")
    assert "left to an Airflow without a name" in describe_other(desk, unnamed, "blue")
    assert describe_other(desk, store(desk, "expand", origin=None), "blue") == ""


def test_each_dag_has_its_own(desk: Workspace) -> None:
    offload = store(desk, "expand", origin=name_origin("emergency_offload", "run-1"))
    assert look(desk).recovering == {"emergency_offload": (f"{offload.id} of orders is planned",)}


def test_what_a_person_keeps_is_no_work(desk: Workspace) -> None:
    store_unknown(desk)
    paused = bring(desk, store(desk), S.APPROVED, S.RUNNING, S.PAUSED, why=OPERATOR)
    assert look(desk) == WaitingWork((), {})
    bring(desk, paused, S.CANCELLED)
    by_hand = bring_by_airflow(desk, store(desk, "expand"), S.APPROVED, S.RUNNING, S.FAILED)
    with acting_as(SHELL_USER):
        bring(desk, by_hand, S.RUNNING)
    with desk.ledger.leases.hold(by_hand.id):
        assert look(desk) == WaitingWork((), {})


# What a scheduler began and did not end is given back, and nothing else.

CONSOLE = Console(quiet=True)


@pytest.fixture(autouse=True)
def closed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What its kind has brought to an end."""
    found: list[str] = []

    def close(kind: object, desk: Workspace, recovery: Recovery, *rest: Any, **named: Any) -> None:
        found.append(recovery.id)

    for kind in (ExpandKind, Offload):
        monkeypatch.setattr(kind, "close", close)
    return found


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
    ("states", "detail"), [((S.RUNNING,), {}), ((S.RUNNING, S.FAILED), {"code": "kafka"})]
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
        patched.setattr(ExpandKind, "close", fail)
        with pytest.raises(type(error)):
            restore(desk, recovery)
    assert list_ids(desk) == [recovery.id]
    assert restore(desk, recovery).state is S.CANCELLED
    assert closed == [recovery.id]
