"""What an offload discards is unread now, whatever an older gap says of its offsets."""

from __future__ import annotations

from dataclasses import replace

import pytest

from backlog.ledger import Ledger
from backlog.ledger.gap_recording import ITSELF
from backlog.values import Cause, Gap, GapState, RecoveryState
from tests.backlog.ledger.makers import approve, make_gap, plan

S = GapState


def discard(start: int, end: int, archive: str | None = None, reason: str = "") -> Gap:
    return replace(make_gap(start, end, cause=Cause.DISCARDED), archive=archive, reason=reason)


def list_ranges(ledger: Ledger, *states: GapState) -> list[tuple[int | None, int | None]]:
    return [(gap.start, gap.end) for gap in ledger.gaps.list(states=states)]


@pytest.mark.parametrize("archived", [True, False])
@pytest.mark.parametrize("over", [S.WAIVED, S.VERIFIED])
def test_fault_69_a_gap_that_is_over_hides_nothing_of_the_next_offload(
    ledger: Ledger, over: GapState, archived: bool
) -> None:
    first = plan(ledger)
    approve(ledger, first)
    ledger.recoveries.advance(first.id, RecoveryState.RUNNING, "ada")
    old = ledger.gaps.record(discard(100, 200, first.id if archived else None, "offload one"))
    if over is S.WAIVED:
        ledger.gaps.advance([old.id], S.WAIVED, reason="given up")
    else:
        for state in (S.PLANNED, S.STAGED, S.INJECTED, S.VERIFIED):
            ledger.gaps.advance([old.id], state, first.id)
    ledger.recoveries.advance(first.id, RecoveryState.CANCELLED, "ada")
    second = plan(ledger)
    seen = discard(100, 300, second.id if archived else None, "offload two")
    kept = ledger.gaps.record(seen)
    assert (kept.start, kept.end, kept.state) == (100, 300, S.OPEN)
    assert ledger.gaps.record(seen) == kept, "seeing it again changes nothing"
    assert list_ranges(ledger, S.OPEN) == [(100, 300)]
    # Whoever sees the same range otherwise is told of the gap that counts.
    assert ledger.gaps.record(make_gap(100, 300, cause=Cause.SKIPPED)).id == kept.id
    assert ledger.gaps.record(make_gap(100, 150, cause=Cause.SKIPPED)).id != ""
    assert list_ranges(ledger, S.OPEN) == [(100, 300)]


def test_what_a_offload_found_empty_of_its_own_stays_so(ledger: Ledger) -> None:
    recovery = plan(ledger)
    kept = ledger.gaps.record(discard(10, 20, recovery.id))
    ledger.gaps.advance([kept.id], S.WAIVED, reason="it holds no messages")
    assert ledger.gaps.record(discard(10, 20, recovery.id)).state is S.WAIVED
    assert len(ledger.gaps.list()) == 1


def test_an_older_gap_that_is_open_keeps_its_offsets(ledger: Ledger) -> None:
    older = ledger.gaps.record(make_gap(10, 20))
    ledger.gaps.record(discard(0, 30))
    assert list_ranges(ledger, S.OPEN) == [(0, 10), (10, 20), (20, 30)]
    assert ledger.gaps.get(older.id) == older


def test_each_offload_has_gaps_of_its_own(ledger: Ledger) -> None:
    first = ledger.gaps.record(discard(0, 10, reason="offload one"))
    second = ledger.gaps.record(discard(0, 20, reason="offload two"))
    assert (second.start, second.end, second.reason) == (10, 20, "offload two")
    assert ledger.gaps.get(first.id) == first
    grown = ledger.gaps.record(discard(10, 30, reason="offload two"))
    assert (grown.id, grown.start, grown.end) == (second.id, 10, 30)


def test_what_the_broker_deletes_after_a_offload_was_given_up_is_lost(ledger: Ledger) -> None:
    kept = ledger.gaps.record(discard(10, 20, reason="offload one"))
    ledger.gaps.advance([kept.id], S.WAIVED, reason="given up: read again", actor=ITSELF)
    lost = ledger.gaps.record(make_gap(10, 20, cause=Cause.EXPIRED))
    assert (lost.cause, lost.state) == (Cause.EXPIRED, S.OPEN)
    assert ledger.gaps.record(make_gap(10, 20, cause=Cause.EXPIRED)) == lost


def test_what_somebody_waived_of_a_offload_stays_waived(ledger: Ledger) -> None:
    kept = ledger.gaps.record(discard(10, 20, reason="offload one"))
    ledger.gaps.advance([kept.id], S.WAIVED, reason="of no use", actor="ada")
    assert ledger.gaps.record(make_gap(10, 20, cause=Cause.EXPIRED)).state is S.WAIVED
