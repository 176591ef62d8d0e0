"""What later samples change of open gaps; one that a plan holds stays as it was planned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, select, update
from sqlalchemy.engine import RowMapping

from backlog.ledger.models import gaps, make_value, read_values
from backlog.values import Cause, Certainty, Gap, GapState, Sample, SequenceRange


def to_gap(row: RowMapping) -> Gap:
    sequences = None
    if row["producer"] is not None:
        numbers = (row[name] for name in ("epoch", "first_sequence", "last_sequence"))
        sequences = SequenceRange(row["producer"], *numbers)
    return make_value(row, Gap, sequences=sequences)


def get_range(gap: Gap) -> tuple[int, int]:
    """The start and end of a gap that has both."""
    assert gap.start is not None
    assert gap.end is not None
    return gap.start, gap.end


def change_gap(connection: Connection, gap: Gap, now: datetime, **changes: Any) -> Gap:
    """Writes fields of a gap, and returns it as it is then."""
    query = update(gaps).where(gaps.c.id == gap.id)
    connection.execute(query.values(**changes, changed_at=now))
    return replace(gap, **changes)


def confirm_bounded(
    connection: Connection, gap: Gap, known: Sequence[Gap], now: datetime
) -> list[Gap]:
    """The known gaps, with open bounded ones inside an exact gap of the same cause made exact."""
    start, end = get_range(gap)
    checked = []
    for each in known:
        first, last = get_range(each)
        bounded = (each.state, each.certainty) == (GapState.OPEN, Certainty.BOUNDED)
        is_inside = each.cause is gap.cause and start <= first and last <= end
        if gap.certainty is Certainty.EXACT and bounded and is_inside:
            reason = f"{each.reason}; exact since: the group is empty, its commit stands"
            each = change_gap(connection, each, now, certainty=Certainty.EXACT, reason=reason)
        checked.append(each)
    return checked


def list_trimmed(
    connection: Connection, sample: Sample, read_to: Mapping[int, int]
) -> list[tuple[Gap, int]]:
    """Open bounded gaps of which the group has read the first part after all, and up to where."""
    query = select(gaps).where(
        gaps.c.stream == sample.stream,
        gaps.c.group == sample.group,
        gaps.c.topic_id == sample.topic_id,
        gaps.c.state == GapState.OPEN,
        gaps.c.cause == Cause.EXPIRED,
        gaps.c.certainty == Certainty.BOUNDED,
        gaps.c.partition.in_(read_to),
        gaps.c.end.is_not(None),
    )
    open_gaps = read_values(connection, query.with_for_update(), to_gap)
    ranged = [(gap, *get_range(gap)) for gap in open_gaps]
    return [
        (gap, read_to[gap.partition])
        for gap, start, end in ranged
        if start < read_to[gap.partition] < end
    ]
