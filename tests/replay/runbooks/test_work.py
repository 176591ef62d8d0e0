"""How far a task carries a recovery, and when it comes again."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from rich.console import Console

from backlogctl.clock import utc_now
from backlogctl.errors import ApprovalNeeded, KafkaFailure, LeaseHeld
from backlogctl.replay.engine.brakes import CANARY, INTERRUPTED, OPERATOR, WINDOW, PausedBecause
from backlogctl.replay.engine.cancelling import request_pause
from backlogctl.replay.engine.kind import Workspace
from backlogctl.replay.engine.plan import acting_as, name_origin
from backlogctl.replay.engine.runner import Run
from backlogctl.replay.runbooks import work
from backlogctl.replay.runbooks.work import (
    MARKED,
    Carried,
    WaitingWork,
    WorkTask,
    carry_on,
    find_run,
    find_task,
    hold_for_person,
    is_at_end,
    lifts_hold,
    list_waiting_work,
    note_task,
)
from backlogctl.values import Cause, Recovery, RecoveryState
from tests.replay.makers import PAST, change_ledger, read_actions
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
    assert find_run(desk, recovery) == (RUN.dag_id, RUN.run_id)
    for task in (FIRST, FIRST, NIGHT_TASK):
        note_task(desk, recovery.id, task)
    assert find_task(desk, recovery) == NIGHT_TASK
    assert find_run(desk, recovery) == ("nightly_backfill", "night")
    assert NIGHT_TASK.key == "stream.put_back_3"
    assert len([a for a in read_actions(desk, recovery.id) if a == "a task works on it"]) == 2
    with acting_as(SHELL_USER):
        desk.ledger.recoveries.advance(recovery.id, S.RUNNING, str(SHELL_USER))
    assert find_task(desk, recovery) is None, "a person has it now"


@pytest.mark.parametrize("why", [INTERRUPTED, WINDOW])
def test_a_mark_is_a_pause_that_a_person_lifts(desk: Workspace, why: str) -> None:
    recovery = begin(desk, S.RUNNING, S.PAUSED, why=why)
    note_task(desk, recovery.id, FIRST)
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
    note_task(desk, recovery.id, SECOND)
    note_task(desk, recovery.id, FIRST)
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
