"""Approvals: bound to a plan, for a limited time, and renewed by name."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from backlogctl.clock import utc_now
from backlogctl.errors import ApprovalNeeded, BacklogError, Refused
from backlogctl.replay.engine.approval import approve_plan, check_approval
from backlogctl.replay.engine.cancelling import cancel_work
from backlogctl.replay.engine.kind import Workspace
from backlogctl.replay.present.status import list_next_commands
from backlogctl.values import RecoveryState
from tests.replay.makers import PAST, change_ledger, open_desk, store_approved, store_plan


@pytest.fixture
def desk(tmp_path: Path) -> Workspace:
    return open_desk(tmp_path)


def test_fault_63_expired_approval_is_renewed(desk: Workspace) -> None:
    approved = store_approved(desk)
    with pytest.raises(Refused, match="approved by ada already"):
        approve_plan(desk, approved, by="bob")
    change_ledger(desk, f"UPDATE backlog_recoveries SET approval_expires_at = '{PAST}'")
    expired = desk.ledger.recoveries.get(approved.id)
    with pytest.raises(ApprovalNeeded, match="expired") as caught:
        check_approval(expired)
    assert f"backlogctl approve {approved.id} --by NAME" in caught.value.hint
    assert list_next_commands(desk, expired) == [f"backlogctl approve {approved.id} --by NAME"]

    renewed = approve_plan(desk, expired, by="bob")
    assert (renewed.state, renewed.approved_by) == (RecoveryState.APPROVED, "bob")
    check_approval(renewed)
    assert list_next_commands(desk, renewed) == [f"backlogctl run {approved.id}"]


def test_fault_63_renewal_is_checked_as_the_first_approval(desk: Workspace) -> None:
    approved = store_approved(desk)
    change_ledger(desk, f"UPDATE backlog_recoveries SET approval_expires_at = '{PAST}'")
    change_ledger(desk, "DROP TRIGGER backlog_recoveries_fixed")
    change_ledger(desk, "UPDATE backlog_recoveries SET plan = replace(plan, 'planner', 'x')")
    with pytest.raises(Refused, match="not the one its hash was made of"):
        approve_plan(desk, desk.ledger.recoveries.get(approved.id), by="bob")


def test_fault_63_work_that_began_in_time_goes_on(desk: Workspace) -> None:
    recovery = store_approved(desk).id
    running = desk.ledger.recoveries.advance(recovery, RecoveryState.RUNNING, "op")
    later = utc_now() + timedelta(days=30)
    check_approval(running, later)
    with pytest.raises(Refused, match="it is running"):
        approve_plan(desk, running, by="bob", now=later)


def test_a_plan_that_cannot_be_approved_has_no_next_command(desk: Workspace) -> None:
    surplus = {"verdict": "surplus", "counts": {"surplus": 3}}
    refused = store_plan(desk, outcome=surplus)
    assert list_next_commands(desk, refused) == []
    allowed = store_plan(desk, outcome=surplus, options={"allow": ["surplus"]})
    assert list_next_commands(desk, allowed) == [f"backlogctl approve {allowed.id} --by NAME"]


@pytest.mark.parametrize(
    "state", [RecoveryState.RUNNING, RecoveryState.PAUSED, RecoveryState.FAILED]
)
def test_a_cancel_that_failed_is_what_comes_next(desk: Workspace, state: RecoveryState) -> None:
    """It stays asked for: a run would not go on with the work."""
    recovery = store_approved(desk).id
    for each in dict.fromkeys((RecoveryState.RUNNING, state)):
        desk.ledger.recoveries.advance(recovery, each, "ada")
    with pytest.raises(BacklogError):
        cancel_work(desk, recovery, wait=0)  # its cluster is not there
    found = desk.ledger.recoveries.get(recovery)
    assert (found.state, found.requested) == (state, "cancel")
    assert list_next_commands(desk, found) == [f"backlogctl cancel {recovery}"]
