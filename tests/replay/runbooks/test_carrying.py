"""How far a task carries a recovery, and when it comes again."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from rich.console import Console

from backlog.clock import utc_now
from backlog.errors import ApprovalNeeded, KafkaFailure, LeaseHeld
from backlog.values import RecoveryState
from replay.recovery.brakes import CANARY, INTERRUPTED, OPERATOR, WINDOW, PausedBecause
from replay.recovery.cancelling import request_pause
from replay.recovery.runner import Run
from replay.recovery.workspace import Workspace
from replay.runbooks import carrying
from replay.runbooks.carrying import Carried, carry_on, is_at_end
from tests.replay.makers import PAST, change_ledger
from tests.replay.runbooks.desks import bring, open_shop, store

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
    monkeypatch.setattr(carrying, "utc_now", lambda: noon)
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
    assert soon - utc_now() <= timedelta(seconds=carrying.OTHER_SECONDS)


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
