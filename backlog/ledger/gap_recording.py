"""How a detected loss becomes gaps: new pieces, grown ones, and what was known before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from datetime import datetime

from sqlalchemy import Connection, insert, select

from backlog.ledger.counters import take_id
from backlog.ledger.gap_changes import change_gap, confirm_bounded, get_range, to_gap
from backlog.ledger.models import gaps, read_values
from backlog.values import Cause, DatePiece, Gap, GapState, SequenceRange
from backlogctl_delivery.sequenced.sequence import RangeSet

# Who closes a gap that turned out to be none.
ITSELF = "backlogctl"
_OVER = (GapState.WAIVED, GapState.VERIFIED)


def record_gap(connection: Connection, gap: Gap, now: datetime, date: DatePiece | None) -> Gap:
    """See `Gaps.record`, which holds the lock."""
    query = (
        select(gaps)
        .where(
            gaps.c.stream == gap.stream,
            gaps.c.group == gap.group,
            gaps.c.topic_id == gap.topic_id,
            gaps.c.partition == gap.partition,
        )
        .order_by(gaps.c.start, gaps.c.id)
        .with_for_update()
    )
    known = read_values(connection, query, to_gap)
    if gap.sequences is not None:
        return _record_sequences(connection, gap, gap.sequences, known, now)
    if gap.end is None:
        return _record_unknown(connection, gap, known, now)
    ranged = [each for each in known if each.end is not None and not _is_over(each, gap)]
    checked = confirm_bounded(connection, gap, ranged, now)
    return _record_range(connection, gap, checked, now, date)


def _is_over(known: Gap, gap: Gap) -> bool:
    """Whether a known gap says nothing about what is detected now.

    What an earlier offload that was given up would have discarded is in the topic again, and may be
    lost there in any way. What an offload discards now is unread, though it was put back before:
    somebody set the group back before it.
    """
    own = gap.archive is not None and known.archive == gap.archive
    if own or known.state not in _OVER:
        return False
    by_itself = known.changed_by == ITSELF
    if by_itself and gap.cause is Cause.UNPROCESSED:
        return True  # it was handled once, or cut: what the consumer's table says now counts
    given_up = known.cause is Cause.DISCARDED and by_itself
    return given_up or gap.cause is Cause.DISCARDED


def _record_sequences(
    connection: Connection, gap: Gap, asked: SequenceRange, known: Sequence[Gap], now: datetime
) -> Gap:
    """Only numbers that no gap of the same producer and epoch has yet are new; those of a gap that
    is over stay so: the message is put back, or given up, and its number stays missing."""
    recorded, last = RangeSet(), None
    for each in known:
        has = each.sequences
        if has is not None and (has.producer, has.epoch) == (asked.producer, asked.epoch):
            recorded.add(has.first, has.last)
            if has.first <= asked.last <= has.last:
                last = each
    for first, end in recorded.list_gaps(asked.first, asked.last):
        piece = replace(gap, sequences=replace(asked, first=first, last=end))
        last = insert_gap(connection, piece, None, None, now)
    assert last is not None
    return last


def _record_unknown(connection: Connection, gap: Gap, known: Sequence[Gap], now: datetime) -> Gap:
    for each in known:
        same = (each.cause, each.start, each.end) == (gap.cause, gap.start, None)
        # What closed by itself says nothing about the next time.
        if same and not (each.state is GapState.WAIVED and each.changed_by == ITSELF):
            return each
    return insert_gap(connection, gap, gap.start, None, now)


def _record_range(
    connection: Connection, gap: Gap, known: Sequence[Gap], now: datetime, date: DatePiece | None
) -> Gap:
    cursor, end = get_range(gap)
    last: Gap | None = None
    for each in [*known, None]:
        # `known` is disjoint and sorted: what lies between two of them is new.
        first, until = (end, end) if each is None else get_range(each)
        if cursor < min(end, first):
            piece = gap
            if date is not None:
                times = date(cursor, min(end, first))
                piece = replace(gap, first_time=times.lower, last_time=times.upper)
            last = _add_piece(connection, piece, cursor, min(end, first), known, now)
            cursor = min(end, first)
        if each is not None and until > cursor:
            if first < end:
                last = _choose_live(each, known, end)
            cursor = max(cursor, min(end, until))
    assert last is not None
    return last


def _choose_live(gap: Gap, known: Sequence[Gap], end: int) -> Gap:
    """The gap that has the end of a range: of a waived one and its rest, the rest."""
    rest = gap
    for each in known:
        start, until = get_range(each)
        if each.state is not GapState.WAIVED and get_range(gap)[0] <= start < end <= until:
            rest = each
    return rest


def _add_piece(
    connection: Connection, gap: Gap, start: int, end: int, known: Sequence[Gap], now: datetime
) -> Gap:
    same = (start, GapState.OPEN, gap.cause, gap.certainty, gap.archive)
    for each in known:
        # Each offload has gaps of its own.
        other = gap.cause is Cause.DISCARDED and each.reason != gap.reason
        if (each.end, each.state, each.cause, each.certainty, each.archive) == same and not other:
            # What is not known of one piece is not known of both.
            return change_gap(connection, each, now, end=end, last_time=gap.last_time)
    return insert_gap(connection, gap, start, end, now)


def insert_gap(
    connection: Connection, gap: Gap, start: int | None, end: int | None, now: datetime
) -> Gap:
    """Adds an open gap with the range given, and what `gap` says besides it."""
    made = replace(
        gap,
        # By the time of recording: ids are in that order, whenever a loss was detected.
        id=take_id(connection, "g", now),
        start=start,
        end=end,
        state=GapState.OPEN,
        recovery_id=None,
        changed_by="",
    )
    row = {each.name: getattr(made, each.name) for each in fields(made)}
    if (numbers := row.pop("sequences")) is not None:
        row.update(producer=numbers.producer, epoch=numbers.epoch)
        row.update(first_sequence=numbers.first, last_sequence=numbers.last)
    connection.execute(insert(gaps).values(**row, changed_at=now))
    return made
