"""Archives: where offloaded messages lie, and since when they do not any more."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, func, insert, select, update

from backlogctl.archive_manifest import ArchivedRange
from backlogctl.errors import Refused, UsageError
from backlogctl.ledger.gaps import move_gaps
from backlogctl.ledger.schema import Manager, gaps, read_value, table_of
from backlogctl.values import GapState


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


archives = table_of("backlog_archives", ArchiveRecord, key=("recovery_id",))


class Archives(Manager):
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
            known = _find(connection, recovery_id)
            if known is None:
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
                        ranges=ranges,
                        made_at=self._database.now(connection),
                    )
                )
                return _read(connection, recovery_id)
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
            return _find(connection, recovery_id)

    def list(
        self, stream: str | None = None, *, with_purged: bool = True
    ) -> tuple[ArchiveRecord, ...]:
        """Archives, oldest first."""
        query = select(archives).order_by(archives.c.made_at, archives.c.recovery_id)
        if stream is not None:
            query = query.where(archives.c.stream == stream)
        if not with_purged:
            query = query.where(archives.c.purged_at.is_(None))
        return self._list(query, ArchiveRecord)

    def find_last_change(self, recovery_id: str) -> datetime | None:
        """When a gap of its messages was last moved; None where there is no gap of them."""
        query = select(func.max(gaps.c.changed_at, type_=gaps.c.changed_at.type))
        with self._database.read() as connection:
            at: datetime | None = connection.execute(
                query.where(gaps.c.archive == recovery_id)
            ).scalar_one()
        return at

    def mark_purged(
        self, recovery_id: str, actor: str, lost: Sequence[str] = (), reason: str = ""
    ) -> ArchiveRecord:
        """Writes down that its files are gone, and which gaps are lost with them; once.

        Raises:
            UsageError: there is none of this id.
            InvalidTransition: one of the gaps does not wait any more; nothing was written.
        """
        with self._database.write() as connection:
            self._database.lock_name(connection, f"archive:{recovery_id}")
            if _read(connection, recovery_id).purged_at is None:
                now = self._database.now(connection)
                move_gaps(connection, lost, GapState.WAIVED, now, None, reason, actor)
                connection.execute(
                    update(archives)
                    .where(archives.c.recovery_id == recovery_id)
                    .values(purged_at=now, purged_by=actor)
                )
            return _read(connection, recovery_id)


def _find(connection: Connection, recovery_id: str) -> ArchiveRecord | None:
    query = select(archives).where(archives.c.recovery_id == recovery_id)
    return read_value(connection, query, ArchiveRecord)


def _read(connection: Connection, recovery_id: str) -> ArchiveRecord:
    record = _find(connection, recovery_id)
    if record is None:
        raise UsageError(
            "there is no such archive",
            subject=f"archive {recovery_id}",
            hint="`backlogctl archive list` lists them; an archive has the id of its offload",
        )
    return record
