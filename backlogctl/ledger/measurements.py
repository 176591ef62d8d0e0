"""Readings of the brokers' disks: how full they are, and how fast they fill."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Index, delete, func, insert, select

from backlogctl.ledger.samples import begin_of_all, delete_rows, list_thinned
from backlogctl.ledger.schema import Manager, table_of


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


# The burn-down: samples of an expansion, for the live view and the report.


@dataclass(frozen=True, slots=True)
class BurndownSample:
    """What is left at one moment, in messages.

    `relayed` and `handled` are totals since the expansion began; `consumers` those that run, None
    where the launcher cannot tell.
    """

    recovery_id: str
    at: datetime
    step: str
    source_lag: int
    temporary_lag: int
    relayed: int
    handled: int
    consumers: int | None = None


burndown = table_of(
    "backlog_burndown", BurndownSample, Index("backlog_burndown_by_time", "recovery_id", "at")
)


class Burndown(Manager):
    def add(self, sample: BurndownSample) -> None:
        with self._database.write() as connection:
            connection.execute(insert(burndown).values(**asdict(sample)))

    def list(self, recovery_id: str, since: datetime | None = None) -> tuple[BurndownSample, ...]:
        """Samples of a recovery, oldest first; `since` is included."""
        query = select(burndown).where(burndown.c.recovery_id == recovery_id)
        if since is not None:
            query = query.where(burndown.c.at >= since)
        return self._list(query.order_by(burndown.c.at, burndown.c.id), BurndownSample)

    def latest(self, recovery_id: str) -> BurndownSample | None:
        query = select(burndown).where(burndown.c.recovery_id == recovery_id)
        return self._first(
            query.order_by(burndown.c.at.desc(), burndown.c.id.desc()), BurndownSample
        )


# What audits found: the newest of each stream and audit are kept.

KEPT = 50


@dataclass(frozen=True, slots=True)
class AuditRecord:
    """One audit of one stream.

    Attributes:
        verdict: clean | lost | suspect | unknown.
        missing: messages that are lost for all that is known.
        document: what `audit --json` gives, without its tables.
    """

    stream: str
    cluster: str
    audit: str
    at: datetime
    verdict: str
    missing: int
    document: Mapping[str, Any]


audits = table_of(
    "backlog_audits", AuditRecord, Index("backlog_audits_by_stream", "stream", "audit", "id")
)


class Audits(Manager):
    def record(self, record: AuditRecord) -> None:
        """Adds one; of its stream and audit only the `KEPT` newest stay."""
        own = (audits.c.stream == record.stream) & (audits.c.audit == record.audit)
        with self._database.write() as connection:
            connection.execute(insert(audits), asdict(record))
            newest = select(audits.c.id).where(own).order_by(audits.c.id.desc()).limit(KEPT)
            kept = [row.id for row in connection.execute(newest)]
            connection.execute(delete(audits).where(own, audits.c.id < min(kept)))

    def list_latest(self, stream: str | None = None) -> tuple[AuditRecord, ...]:
        """The last of each stream and audit, by stream and name."""
        last = select(func.max(audits.c.id)).group_by(audits.c.stream, audits.c.audit)
        query = select(audits).where(audits.c.id.in_(last))
        if stream is not None:
            query = query.where(audits.c.stream == stream)
        return self._list(query.order_by(audits.c.stream, audits.c.audit), AuditRecord)
