"""What writes one chunk: the seam between waves and whatever puts the bytes into Kafka."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

import pyarrow as pa

from backlog.values import Chunk


class Outcome(StrEnum):
    """What became of a chunk."""

    INJECTED = "injected"  # committed now
    SKIPPED = "skipped"  # it was committed before


@dataclass(frozen=True, slots=True)
class ChunkResult:
    """One chunk is in the topic.

    Attributes:
        session: names the producer that committed it; the next chunk of the slot may go on with
            that producer, and with no other. Empty where there is none to go on with.
        first_offset, last_offset: of its messages in the target partition, where known.
        seconds: of the last attempt, from begin to committed.
    """

    slot: int
    number: int
    count: int
    outcome: Outcome
    session: str = ""
    first_offset: int | None = None
    last_offset: int | None = None
    seconds: float = 0.0
    attempts: int = 1


class ChunkWriter(Protocol):
    """Writes a chunk's messages and its ledger record, both or neither, at most once ever."""

    def write(
        self, chunk: Chunk, table: pa.Table, *, after: str = "", pace: float | None = None
    ) -> ChunkResult:
        """Writes the chunk, or finds that it is committed already.

        Args:
            table: the chunk's messages, `CHUNK_SCHEMA`, hash checked.
            after: `session` of the slot's previous chunk of this run; empty for none.
            pace: messages per second at most; None for as fast as it goes.

        Raises:
            PlanStale: another recovery wrote to this slot, or the ledger is not the plan's.
            ProducerFenced: another runner took the slot over.
            HangingTransaction, KafkaFailure, Refused: nothing of the chunk was committed, or it
                is not known whether it was; writing it again is safe.
        """

    def close(self) -> None:
        """Lets go of every producer."""
