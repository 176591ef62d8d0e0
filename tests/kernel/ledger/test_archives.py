"""Archives, and the gaps that wait in them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from backlogctl.archive_manifest import ArchivedRange
from backlogctl.errors import InvalidTransition, Refused, UsageError
from backlogctl.ledger import ArchiveRecord, Ledger
from backlogctl.values import Cause, Gap, GapState, RecoveryState
from tests.kernel.ledger.makers import NOON, approve, make_gap, plan

S = GapState
SHA = "a" * 64


def record(ledger: Ledger, recovery_id: str, sha256: str = SHA) -> ArchiveRecord:
    return ledger.archives.record(
        recovery_id,
        stream="orders",
        cluster="main",
        topic="orders",
        topic_id="topic-id",
        location="s3a://bucket/it",
        manifest_sha256=sha256,
        messages=90,
        bytes=1234,
        ranges=[ArchivedRange(0, 10, 100, 90, NOON, None)],
    )


def offload(ledger: Ledger) -> Gap:
    """A gap that waits in the archive of an offload that is verified."""
    recovery = plan(ledger)
    approve(ledger, recovery)
    ledger.recoveries.advance(recovery.id, RecoveryState.RUNNING, "ada")
    seen = replace(make_gap(10, 100, cause=Cause.DISCARDED), archive=recovery.id)
    gap = ledger.gaps.record(seen)
    for state in (S.PLANNED, S.STAGED):
        ledger.gaps.advance([gap.id], state, recovery.id)
    ledger.recoveries.advance(recovery.id, RecoveryState.VERIFIED, "ada")
    return ledger.gaps.get(gap.id)


def test_an_archive_comes_back_as_it_went_in(ledger: Ledger) -> None:
    recovery = plan(ledger)
    kept = record(ledger, recovery.id)
    assert kept == record(ledger, recovery.id) == ledger.archives.get(recovery.id)
    assert kept.ranges == (ArchivedRange(0, 10, 100, 90, NOON, None),)
    with pytest.raises(Refused, match="manifest differs"):
        record(ledger, recovery.id, "b" * 64)


def test_a_purged_archive_is_known_still(ledger: Ledger) -> None:
    recovery = plan(ledger)
    record(ledger, recovery.id)
    gone = ledger.archives.mark_purged(recovery.id, "ada")
    assert gone.purged_by == "ada"
    assert ledger.archives.mark_purged(recovery.id, "bob") == gone
    assert ledger.archives.list("orders", with_purged=False) == ()
    assert ledger.archives.list("orders") == (gone,)


def test_no_archive(ledger: Ledger) -> None:
    assert ledger.archives.find("r-1") is None
    for ask in (ledger.archives.get, lambda name: ledger.archives.mark_purged(name, "ada")):
        with pytest.raises(UsageError, match="no such archive"):
            ask("r-1")


def test_an_archived_gap_waits_until_somebody_puts_it_back(ledger: Ledger) -> None:
    gap = offload(ledger)
    assert (gap.state, gap.cause) == (S.STAGED, Cause.DISCARDED)
    assert ledger.gaps.list_waiting("orders") == (gap,)
    taking = plan(ledger, gap.id)
    assert ledger.gaps.get(gap.id).state is S.PLANNED
    assert ledger.gaps.list_waiting() == ()
    approve(ledger, taking)
    ledger.recoveries.advance(taking.id, RecoveryState.RUNNING, "ada")
    for state in (S.STAGED, S.INJECTED, S.VERIFIED):
        ledger.gaps.advance([gap.id], state, taking.id)
    ledger.recoveries.advance(taking.id, RecoveryState.VERIFIED, "ada")
    with pytest.raises(InvalidTransition):
        plan(ledger, gap.id)


@pytest.mark.parametrize("state", [S.PLANNED, S.STAGED, S.INJECTED])
def test_an_archived_gap_waits_again_where_putting_it_back_is_cancelled(
    ledger: Ledger, state: GapState
) -> None:
    gap = offload(ledger)
    taking = plan(ledger, gap.id)
    approve(ledger, taking)
    ledger.recoveries.advance(taking.id, RecoveryState.RUNNING, "ada")
    for step in (S.STAGED, S.INJECTED):
        if ledger.gaps.get(gap.id).state is not state:
            ledger.gaps.advance([gap.id], step, taking.id)
    ledger.recoveries.advance(taking.id, RecoveryState.CANCELLED, "ada")
    assert ledger.gaps.list_waiting() == (gap,)
    again = plan(ledger, gap.id)
    superseding = plan(ledger, gap.id)
    assert ledger.recoveries.get(again.id).state is RecoveryState.REJECTED
    assert ledger.gaps.get(gap.id).state is S.PLANNED
    assert ledger.recoveries.gap_ids(superseding.id) == (gap.id,)


def test_a_gap_of_another_recovery_is_not_taken(ledger: Ledger) -> None:
    gap = offload(ledger)
    taking = plan(ledger, gap.id)
    approve(ledger, taking)
    ledger.recoveries.advance(taking.id, RecoveryState.RUNNING, "ada")
    ledger.gaps.advance([gap.id], S.STAGED, taking.id)
    with pytest.raises(InvalidTransition, match=taking.id):
        plan(ledger, gap.id)


def test_an_archived_gap_is_waived_when_its_archive_goes(ledger: Ledger) -> None:
    gap = offload(ledger)
    (waived,) = ledger.gaps.advance([gap.id], S.WAIVED, reason="its archive was purged")
    assert waived.state is S.WAIVED
