"""Readings of the brokers' disks: how full they are, and how fast they fill."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta

from sqlalchemy import Index, insert, select

from backlog.ledger.database import Manager
from backlog.ledger.models import table_of
from backlog.ledger.thinning import begin_of_all, delete_rows, list_thinned


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
        place = (disks.c.cluster, disks.c.broker, disks.c.topic)
        query = select(disks.c.id, disks.c.at, *place).where(
            disks.c.at < begin_of_all(now, horizon)
        )
        with self._database.write() as connection:
            rows = connection.execute(query.order_by(disks.c.at, disks.c.id))
            thinned = list_thinned([(row[0], row[1], row[2:]) for row in rows], now, horizon)
            delete_rows(connection, disks, thinned)
        return len(thinned)
