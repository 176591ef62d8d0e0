"""Approvals: bound to a plan, for a limited time, and renewed by name."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from backlog.clock import utc_now
from backlog.errors import ApprovalNeeded, Refused
from backlog.values import RecoveryState
from replay.approval import approve_plan, check_approval
from replay.views import list_next_commands
from replay.workspace import Workspace
from tests.replay.makers import (
    PAST,
    change_ledger,
    make_plan,
    open_desk,
    store_approved,
    store_plan,
)


@pytest.fixture
def desk(tmp_path: Path) -> Workspace:
    return open_desk(tmp_path)


def test_fault_63_expired_approval_is_renewed(desk: Workspace) -> None:
    approved = store_approved(desk)
    with pytest.raises(Refused, match="approved by ada already"):
        approve_plan(desk.ledger, desk.config, approved, by="bob")
    change_ledger(desk, f"UPDATE backlog_recoveries SET approval_expires_at = '{PAST}'")
    expired = desk.ledger.recoveries.get(approved.id)
    with pytest.raises(ApprovalNeeded, match="expired") as caught:
        check_approval(expired)
    assert f"backlogctl approve {approved.id} --by NAME" in caught.value.hint
    assert list_next_commands(expired) == [f"backlogctl approve {approved.id} --by NAME"]

    renewed = approve_plan(desk.ledger, desk.config, expired, by="bob")
    assert (renewed.state, renewed.approved_by) == (RecoveryState.APPROVED, "bob")
    check_approval(renewed)
    assert list_next_commands(renewed) == [f"backlogctl run {approved.id}"]


def test_fault_63_renewal_is_checked_as_the_first_approval(desk: Workspace) -> None:
    approved = store_approved(desk, other_groups=["audit"], deliver="topic")
    change_ledger(desk, f"UPDATE backlog_recoveries SET approval_expires_at = '{PAST}'")
    change_ledger(desk, "DROP TRIGGER backlog_recoveries_fixed")
    change_ledger(desk, "UPDATE backlog_recoveries SET plan = replace(plan, 'audit', 'x')")
    with pytest.raises(Refused, match="not the one its hash was made of"):
        approve_plan(desk.ledger, desk.config, desk.ledger.recoveries.get(approved.id), by="bob")


def test_fault_63_work_that_began_in_time_goes_on(desk: Workspace) -> None:
    recovery = store_approved(desk).id
    running = desk.ledger.recoveries.advance(recovery, RecoveryState.RUNNING, "op")
    later = utc_now() + timedelta(days=30)
    check_approval(running, later)
    with pytest.raises(Refused, match="it is running"):
        approve_plan(desk.ledger, desk.config, running, by="bob", now=later)


def test_a_plan_that_cannot_be_approved_has_no_next_command(desk: Workspace) -> None:
    outcome = make_plan()["outcome"]
    surplus = {**outcome, "verdict": "surplus", "counts": {**outcome["counts"], "surplus": 3}}
    refused = store_plan(desk, outcome=surplus)
    assert list_next_commands(refused) == []
    allowed = store_plan(desk, outcome=surplus, options={"allow": ["surplus"]})
    assert list_next_commands(allowed) == [f"backlogctl approve {allowed.id} --by NAME"]
