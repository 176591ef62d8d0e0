"""`pause`, `resume` and `cancel` beside each other."""

from __future__ import annotations

from typing import Any

import pytest

from backlogctl.errors import InvalidTransition, Refused
from backlogctl.replay.engine.cancelling import request_pause, withdraw_pause
from backlogctl.replay.engine.kind import Workspace
from backlogctl.values import RecoveryState
from tests.replay.makers import store_approved

S = RecoveryState


def start(desk: Workspace) -> str:
    recovery = store_approved(desk).id
    desk.ledger.recoveries.advance(recovery, S.RUNNING, "op")
    return recovery


def test_pause_does_not_overwrite_cancel(desk: Workspace) -> None:
    recovery = start(desk)
    with desk.ledger.leases.hold(recovery):
        desk.ledger.recoveries.request(recovery, "cancel", "ada")
        with pytest.raises(InvalidTransition, match="cancel was asked for"):
            request_pause(desk, recovery)
    # The runner died before it saw the request.
    with pytest.raises(Refused, match="to be cancelled"):
        request_pause(desk, recovery)
    found = desk.ledger.recoveries.get(recovery)
    assert (found.state, found.requested) == (S.RUNNING, "cancel")


def test_pause_taken_back_in_time_lets_the_runner_go_on(desk: Workspace) -> None:
    recovery = start(desk)
    with desk.ledger.leases.hold(recovery) as lease:
        request_pause(desk, recovery)
        found, runner = withdraw_pause(desk, recovery)
    assert (found.state, found.requested, runner) == (S.RUNNING, None, str(lease.owner))


def test_pause_that_the_runner_saw_first_needs_a_new_run(
    desk: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    recovery = start(desk)
    ledger = desk.ledger
    real = ledger.leases.holder

    def look_and_stop(recovery_id: str) -> Any:
        holder = real(recovery_id)
        ledger.recoveries.advance(recovery_id, S.PAUSED, "runner", {"why": "operator"})
        return holder

    with ledger.leases.hold(recovery):
        request_pause(desk, recovery)
        monkeypatch.setattr(ledger.leases, "holder", look_and_stop)
        found, runner = withdraw_pause(desk, recovery)
    assert (found.state, runner) == (S.PAUSED, None), "nobody is told that it goes on by itself"
