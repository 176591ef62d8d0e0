"""Gaps: disjoint, idempotent, frozen once planned."""

from __future__ import annotations

import random
import re
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError

from backlogctl.errors import InvalidTransition, UsageError
from backlogctl.ledger import Ledger, open_ledger
from backlogctl.ledger.gaps import ITSELF
from backlogctl.ledger.schema import gaps
from backlogctl.values import (
    Cause,
    Certainty,
    Gap,
    GapState,
    RecoveryState,
    SequenceRange,
    TimeBounds,
)
from tests.kernel.ledger.conftest import change
from tests.kit.ledger import NOON, bring_to, make_gap, make_sample, plan

# Gaps that audits find: of sequences without offsets, and of offsets that were committed.

S, R = GapState, RecoveryState


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


# What an offload discards is unread now, whatever an older gap says of its offsets.


def discard(start: int, end: int, archive: str | None = None, reason: str = "") -> Gap:
    return replace(make_gap(start, end, cause=Cause.DISCARDED), archive=archive, reason=reason)


def list_ranges(ledger: Ledger, *states: GapState) -> list[tuple[int | None, int | None]]:
    return [(gap.start, gap.end) for gap in ledger.gaps.list(states=states)]


@pytest.mark.parametrize("archived", [True, False])
@pytest.mark.parametrize("over", [S.WAIVED, S.VERIFIED])
def test_fault_69_a_gap_that_is_over_hides_nothing_of_the_next_offload(
    ledger: Ledger, over: GapState, archived: bool
) -> None:
    first = bring_to(ledger, plan(ledger), R.APPROVED, R.RUNNING)
    old = ledger.gaps.record(discard(100, 200, first.id if archived else None, "offload one"))
    if over is S.WAIVED:
        ledger.gaps.advance([old.id], S.WAIVED, reason="given up")
    else:
        for state in (S.PLANNED, S.STAGED, S.INJECTED, S.VERIFIED):
            ledger.gaps.advance([old.id], state, first.id)
    ledger.recoveries.advance(first.id, R.CANCELLED, "ada")
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


def test_gap_comes_back_as_it_went_in(ledger: Ledger) -> None:
    seen = make_gap(10, 20)
    kept = ledger.gaps.record(seen)
    assert re.fullmatch(r"g-\d{8}-0001-[a-z2-9]{6}", kept.id)
    assert ledger.gaps.get(kept.id) == kept
    assert (kept.start, kept.end, kept.detected_at) == (10, 20, NOON)
    assert (kept.first_time, kept.last_time) == (seen.first_time, seen.last_time)
    assert ledger.gaps.record(seen) == kept
    assert ledger.gaps.list() == (kept,)


def test_open_gap_grows(ledger: Ledger) -> None:
    first = ledger.gaps.record(make_gap(10, 20))
    grown = ledger.gaps.record(make_gap(10, 35))
    assert (grown.id, grown.start, grown.end) == (first.id, 10, 35)
    assert ledger.gaps.record(make_gap(10, 20)) == grown


def test_a_bounded_gap_that_turns_out_certain_becomes_exact(ledger: Ledger) -> None:
    first = ledger.gaps.record(make_gap(10, 20, certainty=Certainty.BOUNDED))
    grown = ledger.gaps.record(make_gap(10, 35))
    assert (grown.id, grown.certainty) == (first.id, Certainty.EXACT)
    assert (grown.start, grown.end) == (10, 35)
    assert "exact since" in grown.reason
    held = ledger.gaps.record(make_gap(50, 60, certainty=Certainty.BOUNDED))
    plan(ledger, held.id)
    ledger.gaps.record(make_gap(50, 60))
    assert ledger.gaps.get(held.id).certainty is Certainty.BOUNDED


def test_what_was_read_of_an_open_gap_after_all_leaves_it(ledger: Ledger) -> None:
    gap = ledger.gaps.record(make_gap(10, 20, certainty=Certainty.BOUNDED))
    sample = make_sample()
    read_to = {gap.partition: 15}
    assert ledger.gaps.trim_read(sample, read_to) == 1
    (rest,) = ledger.gaps.list(states=[S.OPEN])
    assert (rest.start, rest.end, rest.certainty) == (15, 20, Certainty.BOUNDED)
    assert gap.id in rest.reason
    assert ledger.gaps.get(gap.id).state is S.WAIVED
    assert ledger.gaps.get(gap.id).reason == f"read up to 15 after all; {rest.id} has the rest"
    assert ledger.gaps.trim_read(sample, read_to) == 0
    grown = ledger.gaps.record(make_gap(15, 30, certainty=Certainty.BOUNDED))
    assert (grown.id, grown.start, grown.end) == (rest.id, 15, 30)
    plan(ledger, rest.id)
    assert ledger.gaps.trim_read(sample, {gap.partition: 18}) == 0


def test_planned_gap_is_frozen_and_growth_is_a_new_gap(ledger: Ledger) -> None:
    first = ledger.gaps.record(make_gap(10, 20))
    plan(ledger, first.id)
    second = ledger.gaps.record(make_gap(10, 35))
    assert (second.start, second.end, second.state) == (20, 35, S.OPEN)
    assert ledger.gaps.record(make_gap(10, 40)).id == second.id
    assert ledger.gaps.get(first.id).end == 20
    assert [(gap.start, gap.end) for gap in ledger.gaps.list()] == [(10, 20), (20, 40)]


def test_a_later_piece_has_its_own_times(ledger: Ledger) -> None:
    """A range that was waived or planned is seen again with what expired since."""

    def date(start: int, end: int) -> TimeBounds:
        return TimeBounds(NOON + timedelta(minutes=start), NOON + timedelta(minutes=end))

    first = ledger.gaps.record(make_gap(10, 20), date)
    assert (first.first_time, first.last_time) == (date(10, 20).lower, date(10, 20).upper)
    ledger.gaps.advance([first.id], S.WAIVED, reason="test data")
    second = ledger.gaps.record(make_gap(10, 35), date)
    assert (second.start, second.first_time, second.last_time) == (
        20, date(20, 35).lower, date(20, 35).upper,
    )  # fmt: skip
    grown = ledger.gaps.record(make_gap(10, 40), date)
    assert (grown.id, grown.first_time, grown.last_time) == (
        second.id, date(20, 35).lower, date(35, 40).upper,
    )  # fmt: skip


def test_a_range_that_was_read_in_part_is_told_by_its_rest(ledger: Ledger) -> None:
    bounded = make_gap(100, 500, certainty=Certainty.BOUNDED)
    first = ledger.gaps.record(replace(bounded, likely=200))
    sample = make_sample(NOON, 300)
    assert ledger.gaps.trim_read(sample, {first.partition: 300}) == 1
    again = ledger.gaps.record(make_gap(300, 500, certainty=Certainty.BOUNDED))
    assert (again.start, again.end, again.state) == (300, 500, S.OPEN)
    assert again.id != first.id
    assert again.likely == 100, "its share"


def test_what_is_not_known_of_a_piece_is_not_known_of_the_gap(ledger: Ledger) -> None:
    """A later piece does not date what expired before anybody looked, nor what expires next."""
    dated = TimeBounds(NOON, NOON + timedelta(minutes=1))
    dates = {10: TimeBounds(None, dated.upper), 20: dated, 30: TimeBounds(dated.lower, None)}
    ledger.gaps.record(make_gap(10, 20), lambda start, _: dates[start])
    grown = ledger.gaps.record(make_gap(10, 30), lambda start, _: dates[start])
    assert (grown.first_time, grown.last_time) == (None, dated.upper)
    grown = ledger.gaps.record(make_gap(10, 40), lambda start, _: dates[start])
    assert (grown.start, grown.end, grown.first_time, grown.last_time) == (10, 40, None, None)


def test_unknown_gaps_close_when_a_commit_answers_them(ledger: Ledger) -> None:
    never = make_gap(None, None, cause=Cause.NEVER_COMMITTED, certainty=Certainty.REPORTED)
    vanished = make_gap(
        7, None, partition=1, cause=Cause.COMMIT_VANISHED, certainty=Certainty.REPORTED
    )
    for gap in (never, vanished, make_gap(5, 10)):
        ledger.gaps.record(gap)
    assert ledger.gaps.close_answered(make_sample(NOON, None, None)) == 0
    assert ledger.gaps.close_answered(make_sample(NOON, 3, 8, topic_id="other")) == 0
    # One that comes back further on may have lost what lies between.
    assert ledger.gaps.close_answered(make_sample(NOON, 3, 8)) == 1
    assert ledger.gaps.close_answered(make_sample(NOON, 3, 7)) == 1
    assert ledger.gaps.close_answered(make_sample(NOON, 3, 7)) == 0
    waived = ledger.gaps.list(states=[S.WAIVED])
    assert {gap.cause: gap.reason for gap in waived} == {
        Cause.NEVER_COMMITTED: "the group has committed since, 3",
        Cause.COMMIT_VANISHED: "the group has a commit again, 7, not above the one that vanished",
    }
    assert [gap.cause for gap in ledger.gaps.list(states=[S.OPEN])] == [Cause.EXPIRED]
    # The next time is news; what a person waived is not.
    again = ledger.gaps.record(vanished)
    assert again.state is S.OPEN
    ledger.gaps.advance([again.id], S.WAIVED, reason="known", actor="ada")
    assert ledger.gaps.record(vanished).id == again.id


def test_settled_range_is_never_opened_again(ledger: Ledger) -> None:
    for state in (S.VERIFIED, S.INJECTED, S.WAIVED):
        gap = ledger.gaps.record(make_gap(10, 20, stream=state.value))
        if state is S.WAIVED:
            ledger.gaps.advance([gap.id], state, reason="test data")
        else:
            recovery = plan(ledger, gap.id, stream=state.value)
            for to in (S.STAGED, S.INJECTED, S.VERIFIED)[: 2 if state is S.INJECTED else 3]:
                ledger.gaps.advance([gap.id], to, recovery.id)
        assert ledger.gaps.record(make_gap(10, 20, stream=state.value)).state is state
        again = make_gap(12, 18, stream=state.value, cause=Cause.SKIPPED)
        assert ledger.gaps.record(again).id == gap.id
        assert len(ledger.gaps.list(state.value)) == 1
    assert ledger.gaps.list(states=[S.OPEN]) == ()


def test_unknown_ranges_are_told_apart_by_cause_and_start(ledger: Ledger) -> None:
    vanished = make_gap(7, None, cause=Cause.COMMIT_VANISHED, certainty=Certainty.REPORTED)
    never = make_gap(None, None, cause=Cause.NEVER_COMMITTED, certainty=Certainty.REPORTED)
    ids = {ledger.gaps.record(gap).id for gap in (vanished, never, vanished, never)}
    assert len(ids) == 2
    kept = ledger.gaps.record(make_gap(5, 10))
    assert (kept.start, kept.end) == (5, 10)
    assert len(ledger.gaps.list()) == 3


def test_range_without_sense_is_refused(ledger: Ledger) -> None:
    for start, end in ((5, 5), (5, 4), (None, 4)):
        with pytest.raises(ValueError, match="not a range"):
            ledger.gaps.record(make_gap(start, end))


@st.composite
def sightings(draw: st.DrawFn) -> list[tuple[int, int, Cause, bool]]:
    ranges = st.tuples(st.integers(0, 40), st.integers(1, 20))
    causes = st.sampled_from([Cause.EXPIRED, Cause.SKIPPED])
    drawn = draw(st.lists(st.tuples(ranges, causes, st.booleans()), min_size=1, max_size=8))
    return [(start, start + size, cause, planned) for (start, size), cause, planned in drawn]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Ledger:
    path: Path = tmp_path_factory.mktemp("ledger")
    return open_ledger(f"sqlite:///{path}/ledger.db")


_number = iter(range(10**9))


@given(sightings())
def test_recorded_ranges_are_disjoint_and_exactly_those_seen(
    shared: Ledger, seen: list[tuple[int, int, Cause, bool]]
) -> None:
    topic_id = f"topic-{next(_number)}"
    union: set[int] = set()
    for start, end, cause, planned in seen:
        kept = shared.gaps.record(make_gap(start, end, cause=cause, topic_id=topic_id))
        union |= set(range(start, end))
        assert kept.start is not None
        assert kept.end is not None
        assert kept.start < end <= kept.end
        if planned and kept.state is S.OPEN:
            # Else the next plan supersedes it.
            bring_to(shared, plan(shared, kept.id), R.APPROVED, R.RUNNING, R.FAILED)
    recorded = [
        offset
        for gap in shared.gaps.list()
        if gap.topic_id == topic_id
        for offset in range(gap.start or 0, gap.end or 0)
    ]
    assert sorted(recorded) == sorted(union)


def test_gap_is_moved_only_as_allowed(ledger: Ledger) -> None:
    gap = ledger.gaps.record(make_gap())
    other = ledger.gaps.record(make_gap(partition=1))
    for to in (S.STAGED, S.INJECTED, S.VERIFIED):
        with pytest.raises(InvalidTransition, match="is open and cannot become"):
            ledger.gaps.advance([other.id, gap.id], to)
    recovery = plan(ledger, gap.id)
    with pytest.raises(InvalidTransition, match=r"of recovery r-"):
        ledger.gaps.advance([gap.id], S.STAGED, "r-19700101-0001")
    assert ledger.gaps.advance([gap.id], S.STAGED, recovery.id)[0].state is S.STAGED
    assert ledger.gaps.advance([gap.id], S.STAGED, recovery.id)[0].state is S.STAGED
    with pytest.raises(InvalidTransition, match="which is planned"):
        ledger.gaps.advance([gap.id], S.OPEN)
    with pytest.raises(InvalidTransition):
        ledger.gaps.advance([gap.id, other.id], S.INJECTED, recovery.id)
    assert ledger.gaps.get(gap.id).state is S.STAGED, "all or none"
    with pytest.raises(UsageError, match="no such gap"):
        ledger.gaps.advance(["g-19700101-0001"], S.OPEN)


def test_waiving_needs_a_reason(ledger: Ledger) -> None:
    gap = ledger.gaps.record(make_gap())
    for reason in (None, "", "  "):
        with pytest.raises(UsageError, match="reason"):
            ledger.gaps.advance([gap.id], S.WAIVED, reason=reason)
    waived = ledger.gaps.advance([gap.id], S.WAIVED, reason="test data")[0]
    assert (waived.state, waived.reason) == (S.WAIVED, "test data")


ALLOWED = {
    (S.OPEN, S.PLANNED),
    (S.OPEN, S.WAIVED),
    (S.PLANNED, S.WAIVED),
    (S.PLANNED, S.STAGED),
    (S.STAGED, S.INJECTED),
    (S.INJECTED, S.VERIFIED),
}


def test_database_itself_refuses_other_transitions(ledger: Ledger, raw: Engine) -> None:
    way = (S.OPEN, S.PLANNED, S.STAGED, S.INJECTED, S.VERIFIED)
    for before in (*way, S.WAIVED):
        gap = ledger.gaps.record(make_gap(stream=before.value))
        if before is S.WAIVED:
            ledger.gaps.advance([gap.id], S.WAIVED, reason="test data")
        elif before is not S.OPEN:
            recovery = plan(ledger, gap.id, stream=before.value)
            for to in way[2 : way.index(before) + 1]:
                ledger.gaps.advance([gap.id], to, recovery.id)
        for after in set(GapState) - {before}:
            if (before, after) in ALLOWED:
                continue
            setting = f"SET state = '{after}', reason = 'x' WHERE id = '{gap.id}'"
            with pytest.raises(DBAPIError, match="backlog refuses"):
                change(raw, f"UPDATE backlog_gaps {setting}")
        assert ledger.gaps.get(gap.id).state is before


def copy_row(**changes: str) -> str:
    columns = ", ".join({"id": "'g-2'", **changes}.get(c.name, c.name) for c in gaps.columns)
    return f"INSERT INTO backlog_gaps SELECT {columns} FROM backlog_gaps"


FORGED = (
    ("UPDATE backlog_gaps SET start_offset = 1", "never change"),
    ("UPDATE backlog_gaps SET partition = 7", "never change"),
    ("UPDATE backlog_gaps SET end_offset = 50", "only grows"),
    ("UPDATE backlog_gaps SET state = 'waived'", "waived_reason"),
    ("UPDATE backlog_gaps SET state = 'planned'", "gaps_recovery"),
    ("UPDATE backlog_gaps SET recovery_id = 'nobody'", "(?i)foreign key"),
    ("DELETE FROM backlog_gaps", "never deleted"),
    (copy_row(partition="9", end_offset="9", state="'verified'"), "must be open"),
    (copy_row(end_offset="9"), "(?i)unique"),
)


def test_database_itself_refuses(ledger: Ledger, raw: Engine) -> None:
    gap = ledger.gaps.record(make_gap())
    for statement, message in FORGED:
        with pytest.raises(DBAPIError, match=message):
            change(raw, statement)
        assert ledger.gaps.list() == (gap,)
