"""How the past is thinned with age: all of the last hour, then by cells of time."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from datetime import datetime, timedelta

from sqlalchemy import Connection, Table, delete

# The oldest must still reach back over the usual retentions, or no loss could be dated.
KEEP_ALL = timedelta(hours=1)
FINE_STEP = timedelta(minutes=5)
COARSE_STEP = timedelta(hours=1)
KEEP_COARSE = timedelta(days=35)
_BATCH = 500


def begin_of_all(now: datetime, horizon: timedelta) -> datetime:
    """From here on everything is kept."""
    return now - min(KEEP_ALL, horizon)


def find_cell(at: datetime, now: datetime, horizon: timedelta) -> tuple[timedelta, int] | None:
    """The cell of a time: 5 minutes up to `horizon`, then an hour.

    None where it is more than 35 days ago, or `horizon` where that is longer.
    """
    age = now - at
    if age > max(horizon, KEEP_COARSE):
        return None
    step = FINE_STEP if age <= horizon else COARSE_STEP
    return step, int(at.timestamp() // step.total_seconds())


def list_thinned(
    rows: Iterable[tuple[int, datetime, Hashable]], now: datetime, horizon: timedelta
) -> list[int]:
    """Ids of the rows (id, time, key; oldest first) other than the first of each key and cell."""
    filled: set[Hashable] = set()
    thinned = []
    for row_id, at, key in rows:
        cell = find_cell(at, now, horizon)
        if cell is None or (key, cell) in filled:
            thinned.append(row_id)
        filled.add((key, cell))
    return thinned


def delete_rows(connection: Connection, table: Table, ids: Sequence[int]) -> None:
    for begin in range(0, len(ids), _BATCH):
        batch = table.c.id.in_(ids[begin : begin + _BATCH])
        connection.execute(delete(table).where(batch))
