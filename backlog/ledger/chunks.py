"""Chunks: a copy for people of what the Kafka ledger says about each injection transaction."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import insert, select, update
from sqlalchemy.engine import RowMapping

from backlog.errors import Refused, UsageError
from backlog.ledger.database import Database
from backlog.ledger.models import chunks, recoveries
from backlog.values import Chunk, ChunkState


@dataclass(frozen=True, slots=True)
class ChunkRecord:
    """A chunk and what became of it; offsets are the first and last of its messages."""

    chunk: Chunk
    state: ChunkState
    first_offset: int | None = None
    last_offset: int | None = None
    injected_at: datetime | None = None


class Chunks:
    def __init__(self, database: Database) -> None:
        self._database = database

    def add_all(self, recovery_id: str, chunks_: Iterable[Chunk]) -> None:
        """Stores the staged chunks of a recovery; the same ones again change nothing.

        Raises:
            Refused: a chunk of the same slot and number is there with other content.
        """
        with self._database.write() as connection:
            known = {
                (row["slot"], row["number"]): _to_record(row).chunk
                for row in connection.execute(
                    select(chunks).where(chunks.c.recovery_id == recovery_id)
                ).mappings()
            }
            rows: list[dict[str, Any]] = []
            for chunk in chunks_:
                before = known.setdefault((chunk.slot, chunk.number), chunk)
                if before != chunk:
                    raise Refused(
                        "it was staged before with other content",
                        subject=f"recovery {recovery_id} slot {chunk.slot} chunk {chunk.number}",
                        hint="plan again",
                    )
                if before is chunk:
                    rows.append(_to_row(recovery_id, chunk))
            if rows:
                connection.execute(insert(chunks), rows)

    def list(self, recovery_id: str) -> tuple[ChunkRecord, ...]:
        """The chunks of a recovery by slot and number."""
        query = select(chunks).where(chunks.c.recovery_id == recovery_id)
        with self._database.read() as connection:
            rows = connection.execute(query.order_by(chunks.c.slot, chunks.c.number)).mappings()
            return tuple(_to_record(row) for row in rows)

    def mark_injected(
        self,
        recovery_id: str,
        slot: int,
        number: int,
        first_offset: int | None = None,
        last_offset: int | None = None,
    ) -> bool:
        """Writes down that a chunk is committed; offsets are the first and last of its messages.

        The recovery's count of injected messages grows in the same transaction.

        Returns:
            Whether it was news; False when it was known.

        Raises:
            UsageError: there is no such chunk.
        """
        where = (
            (chunks.c.recovery_id == recovery_id)
            & (chunks.c.slot == slot)
            & (chunks.c.number == number)
        )
        with self._database.write() as connection:
            found = (
                connection.execute(
                    select(chunks.c.state, chunks.c.count).where(where).with_for_update()
                )
                .mappings()
                .first()
            )
            if found is None:
                raise UsageError(
                    "there is no such chunk",
                    subject=f"recovery {recovery_id} slot {slot} chunk {number}",
                )
            if found["state"] == ChunkState.INJECTED.value:
                return False
            connection.execute(
                update(chunks)
                .where(where)
                .values(
                    state=ChunkState.INJECTED.value,
                    first_offset=first_offset,
                    last_offset=last_offset,
                    injected_at=self._database.now(connection),
                )
            )
            connection.execute(
                update(recoveries)
                .where(recoveries.c.id == recovery_id)
                .values(injected=recoveries.c.injected + found["count"])
            )
            return True


def _to_row(recovery_id: str, chunk: Chunk) -> dict[str, Any]:
    return {
        "recovery_id": recovery_id,
        "slot": chunk.slot,
        "number": chunk.number,
        "count": chunk.count,
        "bytes": chunk.bytes,
        "sha256": chunk.sha256,
        "path": chunk.path,
        "ids_path": chunk.ids_path,
        "canary": chunk.canary,
        "state": ChunkState.STAGED.value,
    }


def _to_record(row: RowMapping) -> ChunkRecord:
    return ChunkRecord(
        chunk=Chunk(
            slot=row["slot"],
            number=row["number"],
            count=row["count"],
            bytes=row["bytes"],
            sha256=row["sha256"],
            path=row["path"],
            ids_path=row["ids_path"],
            canary=row["canary"],
        ),
        state=ChunkState(row["state"]),
        first_offset=row["first_offset"],
        last_offset=row["last_offset"],
        injected_at=row["injected_at"],
    )
