"""What later samples change of open gaps; one that a plan holds stays as it was planned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, RowMapping, select, update

from backlog.ledger.models import gaps
from backlog.values import Cause, Certainty, Gap, GapState, Sample


def confirm_bounded(
    connection: Connection, gap: Gap, known: Sequence[RowMapping], now: datetime
) -> list[RowMapping | dict[str, Any]]:
    """The rows, with open bounded ones inside an exact gap of the same cause made exact."""
    rows: list[RowMapping | dict[str, Any]] = []
    for row in known:
        if (
            gap.certainty is Certainty.EXACT
            and gap.start is not None
            and gap.end is not None
            and row["state"] == GapState.OPEN.value
            and row["certainty"] == Certainty.BOUNDED.value
            and row["cause"] == gap.cause.value
            and gap.start <= row["start_offset"]
            and row["end_offset"] <= gap.end
        ):
            changes = {
                "certainty": Certainty.EXACT.value,
                "reason": f"{row['reason']}; exact since: the group is empty, its commit stands",
                "changed_at": now,
            }
            connection.execute(update(gaps).where(gaps.c.id == row["id"]).values(**changes))
            rows.append({**row, **changes})
        else:
            rows.append(row)
    return rows


def list_trimmed(
    connection: Connection, sample: Sample, read_to: Mapping[int, int]
) -> list[tuple[RowMapping, int]]:
    """Open bounded gaps of which the group has read the first part after all, and up to where."""
    query = select(gaps).where(
        gaps.c.stream == sample.stream,
        gaps.c.group_id == sample.group,
        gaps.c.topic_id == sample.topic_id,
        gaps.c.state == GapState.OPEN.value,
        gaps.c.cause == Cause.EXPIRED.value,
        gaps.c.certainty == Certainty.BOUNDED.value,
        gaps.c.partition.in_(read_to),
        gaps.c.end_offset.is_not(None),
    )
    return [
        (row, read_to[row["partition"]])
        for row in connection.execute(query.with_for_update()).mappings()
        if row["start_offset"] < read_to[row["partition"]] < row["end_offset"]
    ]
