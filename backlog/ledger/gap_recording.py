"""How what was seen of a loss becomes gaps: new pieces, grown ones, and what was known before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, insert, select, update
from sqlalchemy.engine import RowMapping

from backlog.ledger.counters import take_id
from backlog.ledger.gap_changes import confirm_bounded
from backlog.ledger.models import gaps
from backlog.values import Cause, Certainty, DatePiece, Gap, GapState, SequenceRange
from backlogctl_delivery.sequenced.sequence import RangeSet

# Who closes a gap that turned out to be none.
ITSELF = "backlogctl"
_OVER = (GapState.WAIVED.value, GapState.VERIFIED.value)


def record_gap(connection: Connection, gap: Gap, now: datetime, date: DatePiece | None) -> Gap:
    """See `Gaps.record`, which holds the lock."""
    known = connection.execute(
        select(gaps)
        .where(
            gaps.c.stream == gap.stream,
            gaps.c.group_id == gap.group,
            gaps.c.topic_id == gap.topic_id,
            gaps.c.partition == gap.partition,
        )
        .order_by(gaps.c.start_offset, gaps.c.id)
        .with_for_update()
    ).mappings()
    if gap.sequences is not None:
        return _record_sequences(connection, gap, gap.sequences, list(known), now)
    if gap.end is None:
        return _record_unknown(connection, gap, list(known), now)
    ranged = [row for row in known if row["end_offset"] is not None and not _is_over(row, gap)]
    checked = confirm_bounded(connection, gap, ranged, now)
    return _record_range(connection, gap, checked, now, date)


def to_gap(row: RowMapping | dict[str, Any]) -> Gap:
    return Gap(
        id=row["id"],
        stream=row["stream"],
        cluster=row["cluster"],
        topic=row["topic"],
        group=row["group_id"],
        topic_id=row["topic_id"],
        partition=row["partition"],
        start=row["start_offset"],
        end=row["end_offset"],
        cause=Cause(row["cause"]),
        certainty=Certainty(row["certainty"]),
        state=GapState(row["state"]),
        first_time=row["first_time"],
        last_time=row["last_time"],
        detected_at=row["detected_at"],
        reason=row["reason"],
        archive=row["archive"],
        sequences=_to_sequences(row),
    )


def _to_sequences(row: RowMapping | dict[str, Any]) -> SequenceRange | None:
    if row["producer"] is None:
        return None
    return SequenceRange(row["producer"], row["epoch"], row["first_sequence"], row["last_sequence"])


def _is_over(row: RowMapping, gap: Gap) -> bool:
    """Whether a gap says nothing of what is seen now.

    What an earlier offload that was given up would have discarded is in the topic again, and may be
    lost there in any way. What an offload discards now is unread, though it was put back before:
    somebody set the group back before it.
    """
    own = gap.archive is not None and row["archive"] == gap.archive
    if own or row["state"] not in _OVER:
        return False
    by_itself = row["changed_by"] == ITSELF
    if by_itself and gap.cause is Cause.UNPROCESSED:
        return True  # it was handled once, or cut: what the consumer's table says now counts
    given_up = row["cause"] == Cause.DISCARDED.value and by_itself
    return given_up or gap.cause is Cause.DISCARDED


def _record_sequences(
    connection: Connection,
    gap: Gap,
    asked: SequenceRange,
    known: Sequence[RowMapping],
    now: datetime,
) -> Gap:
    """Only numbers that no gap of the same producer and epoch has yet are new; those of a gap that
    is over stay so: the message is put back, or given up, and its number stays missing."""
    seen, last = RangeSet(), None
    for row in known:
        if (row["producer"], row["epoch"]) == (asked.producer, asked.epoch):
            seen.add(row["first_sequence"], row["last_sequence"])
            if row["first_sequence"] <= asked.last <= row["last_sequence"]:
                last = to_gap(row)
    for first, end in seen.list_gaps(asked.first, asked.last):
        piece = replace(gap, sequences=replace(asked, first=first, last=end))
        last = insert_gap(connection, piece, None, None, now)
    assert last is not None
    return last


def _record_unknown(
    connection: Connection, gap: Gap, known: Sequence[RowMapping], now: datetime
) -> Gap:
    for row in known:
        same = row["cause"] == gap.cause.value and row["start_offset"] == gap.start
        # What closed by itself says nothing about the next time.
        over = row["state"] == GapState.WAIVED.value and row["changed_by"] == ITSELF
        if same and row["end_offset"] is None and not over:
            return to_gap(row)
    return insert_gap(connection, gap, gap.start, None, now)


def _record_range(
    connection: Connection,
    gap: Gap,
    known: Sequence[RowMapping | dict[str, Any]],
    now: datetime,
    date: DatePiece | None,
) -> Gap:
    assert gap.start is not None
    assert gap.end is not None
    last: Gap | None = None
    cursor = gap.start
    for row in [*known, None]:
        # `known` is disjoint and sorted: what lies between two of them is new.
        until = gap.end if row is None else min(gap.end, row["start_offset"])
        if cursor < until:
            piece = gap
            if date is not None:
                times = date(cursor, until)
                piece = replace(gap, first_time=times.lower, last_time=times.upper)
            last = _add_piece(connection, piece, cursor, until, known, now)
            cursor = until
        if row is not None and row["end_offset"] > cursor:
            if row["start_offset"] < gap.end:
                last = _choose_live(row, known, gap.end)
            cursor = max(cursor, min(gap.end, row["end_offset"]))
    assert last is not None
    return last


def _choose_live(
    row: RowMapping | dict[str, Any], known: Sequence[RowMapping | dict[str, Any]], end: int
) -> Gap:
    """The gap that has the end of a range: of a waived one and its rest, the rest."""
    rest = [
        item
        for item in known
        if item["state"] != GapState.WAIVED.value
        and row["start_offset"] <= item["start_offset"] < end <= item["end_offset"]
    ]
    return to_gap(rest[-1] if rest else row)


def _add_piece(
    connection: Connection,
    gap: Gap,
    start: int,
    end: int,
    known: Sequence[RowMapping | dict[str, Any]],
    now: datetime,
) -> Gap:
    for row in known:
        if (
            row["end_offset"] == start
            and row["state"] == GapState.OPEN.value
            and row["cause"] == gap.cause.value
            and row["certainty"] == gap.certainty.value
            and row["archive"] == gap.archive
            # Each offload has gaps of its own.
            and (gap.cause is not Cause.DISCARDED or row["reason"] == gap.reason)
        ):
            changes = {
                "end_offset": end,
                # What is not known of one piece is not known of both.
                "first_time": row["first_time"],
                "last_time": gap.last_time,
                "changed_at": now,
            }
            connection.execute(update(gaps).where(gaps.c.id == row["id"]).values(**changes))
            return to_gap({**row, **changes})
    return insert_gap(connection, gap, start, end, now)


def insert_gap(
    connection: Connection, gap: Gap, start: int | None, end: int | None, now: datetime
) -> Gap:
    row: dict[str, Any] = {
        # By the time of recording: ids are in that order, whenever a loss was seen.
        "id": take_id(connection, "g", now),
        "stream": gap.stream,
        "cluster": gap.cluster,
        "topic": gap.topic,
        "group_id": gap.group,
        "topic_id": gap.topic_id,
        "partition": gap.partition,
        "start_offset": start,
        "end_offset": end,
        "cause": gap.cause.value,
        "certainty": gap.certainty.value,
        "state": GapState.OPEN.value,
        "first_time": gap.first_time,
        "last_time": gap.last_time,
        "detected_at": gap.detected_at,
        "reason": gap.reason,
        "archive": gap.archive,
        "producer": gap.sequences and gap.sequences.producer,
        "epoch": gap.sequences and gap.sequences.epoch,
        "first_sequence": gap.sequences and gap.sequences.first,
        "last_sequence": gap.sequences and gap.sequences.last,
        "changed_at": now,
    }
    connection.execute(insert(gaps).values(**row))
    return to_gap(row)
