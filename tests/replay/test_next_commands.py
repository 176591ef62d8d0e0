"""What is printed next of a rebuild, and of any recovery that sends messages: rules, and stories."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import pytest

from backlogctl.errors import KafkaLedgerLost, PlanStale, StagingChanged, VerificationFailed
from backlogctl.replay.engine.approval import approve_plan
from backlogctl.replay.engine.cancelling import withdraw_pause
from backlogctl.replay.engine.kind import Workspace
from backlogctl.replay.engine.next_commands import find_unverified, list_next_commands
from backlogctl.values import RecoveryState
from tests.kit.following import follow
from tests.kit.processes import ROOT
from tests.kit.recoveries import (
    PAST,
    change_ledger,
    keep_plan,
    lose,
    make_rebuild_plan,
    store_approved,
)
from tests.kit.shop import DONE, TOTAL, Shop, place
from tests.replay.redrive.test_next_commands import (
    AGAIN,
    CANCEL,
    READ_BACK,
    Story,
    cancel_sent,
    expire_at,
)
from tests.spark_backfill.world import encode_order, make_order

S = RecoveryState
FINAL_CODES = [
    kind.code for kind in (PlanStale, KafkaLedgerLost, StagingChanged, VerificationFailed)
]


@pytest.mark.parametrize("fails", [False, True])
def test_fault_133_a_pause_that_the_runner_did_not_see_is_taken_back(
    desk: Workspace, fails: bool
) -> None:
    """It ended before that: `run` would be held by it for ever."""
    ledger, recovery = desk.ledger, store_approved(desk).id
    ledger.recoveries.advance(recovery, S.RUNNING, "op")
    ledger.recoveries.request(recovery, "pause", "ada")
    if fails:
        ledger.recoveries.advance(recovery, S.FAILED, "op", {"code": "kafka", "message": "away"})
    found = ledger.recoveries.get(recovery)
    assert list_next_commands(desk, found) == [f"backlogctl resume {recovery}"]
    found, runner = withdraw_pause(desk, recovery)
    assert (found.requested, runner) == (None, None)
    assert list_next_commands(desk, found) == [f"backlogctl run {recovery}"]


@pytest.mark.parametrize("code", FINAL_CODES)
def test_fault_122_what_would_fail_again_is_not_approved_again(desk: Workspace, code: str) -> None:
    """Its approval has expired meanwhile."""
    recovery = store_approved(desk).id
    desk.ledger.events.append(recovery, "op", "refused", {"code": code})
    change_ledger(desk, f"UPDATE backlog_recoveries SET approval_expires_at = '{PAST}'")
    found = desk.ledger.recoveries.get(recovery)
    assert list_next_commands(desk, found) == [f"backlogctl cancel {recovery}"]


@pytest.mark.parametrize("code", FINAL_CODES)
def test_fault_122_the_runbook_names_the_command_that_is_printed(code: str) -> None:
    rows = (ROOT / "docs/runbook-rebuild.md").read_text().splitlines()
    (row,) = (row for row in rows if row.startswith(f"| `{code}`"))
    assert "`backlogctl cancel R`" in row


def test_a_cancelled_plan_that_has_staged_nothing_has_sent_nothing(desk: Workspace) -> None:
    """Its planner was killed before it noted what it had staged."""
    recovery = approve_plan(desk, keep_plan(desk, make_rebuild_plan(), lose(desk)), by="ada")
    desk.ledger.recoveries.advance(recovery.id, S.CANCELLED, "op")
    assert find_unverified(desk.ledger, recovery.stream) == {}


class RebuildStory(Story):
    """A shop that has lost its orders."""

    def approve(self, *more: str) -> str:
        assert not more
        return self.shop.plan_approved().id


@dataclass(frozen=True)
class Case:
    """A standing, the commands that are printed, and the orders that are in the topic then."""

    arrange: Callable[[Story], str]
    typed: tuple[str, ...]
    gaps: str


CASES = {
    "cancelled when all was sent": Case(cancel_sent, (), "open"),
    "expired before it was read back": Case(
        partial(expire_at, READ_BACK), (CANCEL, "plan rebuild orders", *AGAIN[1:]), "verified"
    ),
}


@pytest.mark.spark
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("name", CASES)
def test_fault_122_the_commands_that_are_printed_lead_to_an_end(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    case, story = CASES[name], RebuildStory(shop, monkeypatch)
    recovery = case.arrange(story)
    assert tuple(follow(story.call, recovery)) == case.typed
    assert {gap.state for gap in shop.open().ledger.gaps.list()} == {case.gaps}
    if not case.typed:
        shop.check_same_set()
        told = shop.call("gaps", "orders").out
        assert "which ended before all was read back" in told
        assert "plan rebuild" not in told
        return
    # What the group had not read expired with it.
    wanted = Counter(
        (place(number), str(number).encode(), encode_order(make_order(number)))
        for number in range(DONE, TOTAL)
    )
    assert Counter(shop.read_injected()) == wanted
