"""Readings of the brokers' disks: how full they are, and how fast they fill."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta

from sqlalchemy import Index, delete, insert, select

from backlog.ledger.database import Manager
from backlog.ledger.models import table_of
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


disks = table_of("backlog_disks", DiskReading, Index("backlog_disks_by_time", "cluster", "at"))


class Disks(Manager):
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
        return self._list(query.order_by(disks.c.at, disks.c.id), DiskReading)

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
