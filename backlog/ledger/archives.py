"""Archives: where offloaded messages lie, and since when they do not any more."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, func, insert, select, update
from sqlalchemy.engine import RowMapping

from backlog.archive import ArchivedRange
from backlog.clock import format_time, read_time
from backlog.errors import Refused, UsageError
from backlog.ledger.database import Database
from backlog.ledger.models import archives, gaps


@dataclass(frozen=True, slots=True)
class ArchiveRecord:
    """One archive; its id is that of the offload that made it.

    `location` is a folder or a URL; `messages` and `bytes` are those of its files.
    """

    recovery_id: str
    stream: str
    cluster: str
    topic: str
    topic_id: str
    location: str
    manifest_sha256: str
    messages: int
    bytes: int
    ranges: tuple[ArchivedRange, ...]
    made_at: datetime
    purged_at: datetime | None = None
    purged_by: str | None = None


class Archives:
    def __init__(self, database: Database) -> None:
        self._database = database

    def record(
        self,
        recovery_id: str,
        *,
        stream: str,
        cluster: str,
        topic: str,
        topic_id: str,
        location: str,
        manifest_sha256: str,
        messages: int,
        bytes: int,  # noqa: A002 - the word of the archive
        ranges: Sequence[ArchivedRange],
    ) -> ArchiveRecord:
        """Writes down an archive that is whole and was read back; the same again changes nothing.

        Raises:
            Refused: another one of this recovery is on record.
        """
        with self._database.write() as connection:
            self._database.lock_name(connection, f"archive:{recovery_id}")
            row = _find(connection, recovery_id)
            if row is None:
                connection.execute(
                    insert(archives).values(
                        recovery_id=recovery_id,
                        stream=stream,
                        cluster=cluster,
                        topic=topic,
                        topic_id=topic_id,
                        location=location,
                        manifest_sha256=manifest_sha256,
                        messages=messages,
                        bytes=bytes,
                        ranges=[_dump_range(each) for each in ranges],
                        made_at=self._database.now(connection),
                    )
                )
                return _read(connection, recovery_id)
            known = _to_record(row)
        if known.manifest_sha256 != manifest_sha256:
            raise Refused(
                "another archive of this recovery is on record: its manifest differs",
                subject=f"recovery {recovery_id}",
                hint=f"`backlogctl archive verify {recovery_id}` looks at what is there",
            )
        return known

    def get(self, recovery_id: str) -> ArchiveRecord:
        """One archive.

        Raises:
            UsageError: there is none of this id.
        """
        with self._database.read() as connection:
            return _read(connection, recovery_id)

    def find(self, recovery_id: str) -> ArchiveRecord | None:
        """One archive; None where there is none of this id."""
        with self._database.read() as connection:
            row = _find(connection, recovery_id)
        return None if row is None else _to_record(row)

    def list(
        self, stream: str | None = None, *, with_purged: bool = True
    ) -> tuple[ArchiveRecord, ...]:
        """Archives, oldest first."""
        query = select(archives).order_by(archives.c.made_at, archives.c.recovery_id)
        if stream is not None:
            query = query.where(archives.c.stream == stream)
        if not with_purged:
            query = query.where(archives.c.purged_at.is_(None))
        with self._database.read() as connection:
            return tuple(_to_record(row) for row in connection.execute(query).mappings())

    def find_last_change(self, recovery_id: str) -> datetime | None:
        """When a gap of its messages was last moved; None where there is no gap of them."""
        query = select(func.max(gaps.c.changed_at, type_=gaps.c.changed_at.type))
        with self._database.read() as connection:
            found: datetime | None = connection.execute(
                query.where(gaps.c.archive == recovery_id)
            ).scalar_one()
        return found

    def mark_purged(self, recovery_id: str, actor: str) -> ArchiveRecord:
        """Writes down that its files are gone; once.

        Raises:
            UsageError: there is none of this id.
        """
        with self._database.write() as connection:
            self._database.lock_name(connection, f"archive:{recovery_id}")
            if _read(connection, recovery_id).purged_at is None:
                connection.execute(
                    update(archives)
                    .where(archives.c.recovery_id == recovery_id)
                    .values(purged_at=self._database.now(connection), purged_by=actor)
                )
            return _read(connection, recovery_id)


def _find(connection: Connection, recovery_id: str) -> RowMapping | None:
    query = select(archives).where(archives.c.recovery_id == recovery_id)
    return connection.execute(query).mappings().first()


def _read(connection: Connection, recovery_id: str) -> ArchiveRecord:
    row = _find(connection, recovery_id)
    if row is None:
        raise UsageError(
            "there is no such archive",
            subject=f"archive {recovery_id}",
            hint="`backlogctl archive list` lists them; an archive has the id of its offload",
        )
    return _to_record(row)


def _to_record(row: RowMapping) -> ArchiveRecord:
    return ArchiveRecord(**{**row, "ranges": tuple(_load_ranges(row["ranges"]))})


def _dump_range(item: ArchivedRange) -> list[Any]:
    values = asdict(item)
    times = [values.pop(name) for name in ("first_time", "last_time")]
    written = [None if at is None else format_time(at) for at in times]
    return [*(values[name] for name in ("partition", "start", "end", "count")), *written]


def _load_ranges(stored: Iterable[Sequence[Any]]) -> Iterable[ArchivedRange]:
    for partition, start, end, count, first, last in stored:
        times = [None if at is None else read_time(at) for at in (first, last)]
        yield ArchivedRange(partition, start, end, count, *times)
