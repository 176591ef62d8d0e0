"""Chunks: a copy for people of what the Kafka ledger says about each injection transaction."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    ForeignKey,
    Integer,
    Text,
    insert,
    select,
    update,
)

from backlogctl.errors import Refused, UsageError
from backlogctl.ledger.schema import (
    Manager,
    choose_type,
    make_value,
    read_values,
    recoveries,
    table_of,
)
from backlogctl.values import Chunk, ChunkState
from backlogctl_delivery.database import UtcTime


@dataclass(frozen=True, slots=True)
class ChunkRecord:
    """A chunk and what became of it; offsets are the first and last of its messages; so many were
    `left_out`."""

    chunk: Chunk
    state: ChunkState
    first_offset: int | None = None
    last_offset: int | None = None
    injected_at: datetime | None = None
    left_out: int = 0

    @property
    def sent(self) -> int:
        """Its messages, without those left out."""
        return self.chunk.count - self.left_out


chunks = table_of(
    "backlog_chunks",
    Chunk,
    Column("recovery_id", Text, ForeignKey("backlog_recoveries.id"), primary_key=True),
    Column("state", choose_type(ChunkState), nullable=False),
    Column("first_offset", BigInteger),
    Column("last_offset", BigInteger),
    Column("injected_at", UtcTime),
    Column("left_out", Integer, nullable=False, server_default="0"),
    CheckConstraint("state IN ('staged', 'injected')", name="backlog_chunks_state"),
    key=("slot", "number"),
)


class Chunks(Manager):
    def add_all(self, recovery_id: str, chunks_: Iterable[Chunk]) -> None:
        """Stores the staged chunks of a recovery; the same ones again change nothing.

        Raises:
            Refused: a chunk of the same slot and number is there with other content.
        """
        query = select(chunks).where(chunks.c.recovery_id == recovery_id)
        own = {"recovery_id": recovery_id, "state": ChunkState.STAGED}
        with self._database.write() as connection:
            known = {
                (chunk.slot, chunk.number): chunk for chunk in read_values(connection, query, Chunk)
            }
            rows: list[dict[str, Any]] = []
            for chunk in chunks_:
                before = known.setdefault((chunk.slot, chunk.number), chunk)
                if before != chunk:
                    raise Refused(
                        "chunk was already staged with different content",
                        subject=f"recovery {recovery_id} slot {chunk.slot} chunk {chunk.number}",
                        hint="plan again",
                    )
                if before is chunk:
                    rows.append({**own, **asdict(chunk)})
            if rows:
                connection.execute(insert(chunks), rows)

    def list(self, recovery_id: str) -> tuple[ChunkRecord, ...]:
        """The chunks of a recovery by slot and number."""
        query = select(chunks).where(chunks.c.recovery_id == recovery_id)
        return self._list(
            query.order_by(chunks.c.slot, chunks.c.number),
            lambda row: make_value(row, ChunkRecord, chunk=make_value(row, Chunk)),
        )

    def mark_injected(
        self,
        recovery_id: str,
        slot: int,
        number: int,
        first_offset: int | None = None,
        last_offset: int | None = None,
        left_out: int = 0,
        at: datetime | None = None,
    ) -> bool:
        """Writes down that a chunk is committed; offsets are the first and last of its messages,
        without those that were left out.

        The recovery's count of injected messages grows in the same transaction.

        Args:
            at: when it was committed; None for now.

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
            query = select(chunks.c.state, chunks.c.count).where(where).with_for_update()
            known = connection.execute(query).first()
            if known is None:
                raise UsageError(
                    "there is no such chunk",
                    subject=f"recovery {recovery_id} slot {slot} chunk {number}",
                )
            state, count = known
            if state is ChunkState.INJECTED:
                return False
            connection.execute(
                update(chunks)
                .where(where)
                .values(
                    state=ChunkState.INJECTED,
                    first_offset=first_offset,
                    last_offset=last_offset,
                    left_out=left_out,
                    injected_at=at or self._database.now(connection),
                )
            )
            connection.execute(
                update(recoveries)
                .where(recoveries.c.id == recovery_id)
                .values(injected=recoveries.c.injected + count - left_out)
            )
            return True
