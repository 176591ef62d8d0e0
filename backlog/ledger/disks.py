"""Readings of the brokers' disks: how full they are, and how fast they fill."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta

from sqlalchemy import delete, insert, select
from sqlalchemy.engine import RowMapping

from backlog.ledger.database import Database
from backlog.ledger.models import disks
from backlog.ledger.thinning import begin_of_all, find_cell


@dataclass(frozen=True, slots=True)
class DiskReading:
    """One broker's disks at one moment, in bytes; None is unknown.

    `topic` is the one that was asked about, and `topic_bytes` what its replicas take there; None
    where none was.
    """

    cluster: str
    at: datetime
    broker: int
    usable_bytes: int | None
    total_bytes: int | None
    topic: str | None = None
    topic_bytes: int | None = None


class Disks:
    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, readings: Iterable[DiskReading]) -> None:
        """Stores readings; none is fine."""
        rows = [asdict(reading) for reading in readings]
        if rows:
            with self._database.write() as connection:
                connection.execute(insert(disks), rows)

    def history(
        self, cluster: str | None = None, since: datetime | None = None
    ) -> tuple[DiskReading, ...]:
        """Readings of a cluster's brokers, or of all, oldest first; `since` is included."""
        query = select(disks)
        if cluster is not None:
            query = query.where(disks.c.cluster == cluster)
        if since is not None:
            query = query.where(disks.c.at >= since)
        with self._database.read() as connection:
            rows = connection.execute(query.order_by(disks.c.at, disks.c.id)).mappings()
            return tuple(_to_reading(row) for row in rows)

    def thin(self, now: datetime, horizon: timedelta) -> int:
        """Deletes readings with age, as `Samples.thin` does; doing it twice deletes nothing more.

        Returns:
            How many were deleted.
        """
        query = select(disks.c.id, disks.c.cluster, disks.c.broker, disks.c.topic, disks.c.at)
        query = query.where(disks.c.at < begin_of_all(now, horizon))
        with self._database.write() as connection:
            seen: set[tuple[object, ...]] = set()
            doomed = []
            for row in connection.execute(query.order_by(disks.c.at, disks.c.id)):
                cell = find_cell(row.at, now, horizon)
                key = (row.cluster, row.broker, row.topic, cell)
                if cell is None or key in seen:
                    doomed.append(row.id)
                else:
                    seen.add(key)
            for begin in range(0, len(doomed), 500):
                connection.execute(delete(disks).where(disks.c.id.in_(doomed[begin : begin + 500])))
        return len(doomed)


def _to_reading(row: RowMapping) -> DiskReading:
    return DiskReading(**{name: value for name, value in row.items() if name != "id"})
