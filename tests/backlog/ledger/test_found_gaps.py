"""Gaps that audits find: of sequences without offsets, and of offsets that were committed."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from backlog.errors import InvalidTransition
from backlog.ledger import Ledger
from backlog.ledger.gap_recording import ITSELF
from backlog.values import Cause, Gap, GapState, SequenceRange
from tests.backlog.ledger.makers import make_gap

S = GapState


def miss(first: int, last: int, producer: str = "till", epoch: int = 1) -> Gap:
    seen = make_gap(None, None, cause=Cause.PRODUCER_GAP)
    return replace(seen, sequences=SequenceRange(producer, epoch, first, last))


def list_sequences(ledger: Ledger) -> list[tuple[int, int]]:
    found = [gap.sequences for gap in ledger.gaps.list()]
    return sorted((one.first, one.last) for one in found if one is not None)


def test_only_new_sequences_are_gaps(ledger: Ledger) -> None:
    kept = ledger.gaps.record(miss(10, 19))
    assert (kept.count, kept.start, kept.end) == (10, None, None)
    assert ledger.gaps.record(miss(10, 19)) == kept
    assert ledger.gaps.record(miss(12, 15)).id == kept.id
    ledger.gaps.advance([kept.id], S.WAIVED, reason="given up")
    assert ledger.gaps.record(miss(5, 25)).id != kept.id
    assert list_sequences(ledger) == [(5, 9), (10, 19), (20, 25)]
    ledger.gaps.record(miss(10, 19, epoch=2))
    ledger.gaps.record(miss(10, 19, producer="other"))
    assert len(ledger.gaps.list()) == 5


def test_they_are_no_gaps_of_offsets(ledger: Ledger) -> None:
    """A loss of the same partition is recorded beside them, and neither hides the other."""
    ledger.gaps.record(miss(10, 19))
    expired = ledger.gaps.record(make_gap(0, 100))
    assert (expired.start, expired.end) == (0, 100)
    ledger.gaps.record(make_gap(None, None, cause=Cause.NEVER_COMMITTED))
    assert len(ledger.gaps.list()) == 3
    figures = {figure.cause: figure.offsets for figure in ledger.figures.gaps()}
    assert figures == {Cause.PRODUCER_GAP: 10, Cause.EXPIRED: 100, Cause.NEVER_COMMITTED: None}


def test_each_number_is_in_one_gap(ledger: Ledger) -> None:
    chance = random.Random(7)
    for epoch in range(12):
        seen = [(at, at + chance.randrange(8)) for at in chance.choices(range(30), k=6)]
        ledger.gaps.record_all([miss(first, last, epoch=epoch) for first, last in seen])
        found = [gap.sequences for gap in ledger.gaps.list() if gap.sequences is not None]
        own = [one for one in found if one.epoch == epoch]
        numbers = [number for one in own for number in range(one.first, one.last + 1)]
        wanted = {number for first, last in seen for number in range(first, last + 1)}
        assert sorted(numbers) == sorted(wanted)


def test_a_gap_that_retention_reached_is_cut(ledger: Ledger) -> None:
    gap = ledger.gaps.record(make_gap(10, 20, cause=Cause.UNPROCESSED))
    before, rest = ledger.gaps.cut(gap, 14)
    assert [(g.start, g.end) for g in (before, rest)] == [(10, 14), (14, 20)]
    assert ledger.gaps.list(states=[S.OPEN]) == (before, rest)
    for at in (10, 14):
        with pytest.raises(InvalidTransition):
            ledger.gaps.cut(before, at)
    ledger.gaps.advance([rest.id], S.WAIVED, reason="given up")
    with pytest.raises(InvalidTransition):
        ledger.gaps.cut(rest, 16)
    seen = make_gap(10, 20, cause=Cause.UNPROCESSED)
    assert ledger.gaps.record(seen).id == rest.id, "what a person gave up stays so"
    ledger.gaps.advance([before.id], S.WAIVED, reason="handled since", actor=ITSELF)
    assert ledger.gaps.record(seen).id == rest.id
    (again,) = ledger.gaps.list(states=[S.OPEN])
    assert (again.start, again.end) == (10, 14), "what is missing again is open again"
