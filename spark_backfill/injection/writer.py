"""The interface that writes one chunk to Kafka."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

import pyarrow as pa

from backlog.errors import BacklogError
from backlog.values import Chunk


class Outcome(StrEnum):
    """What became of a chunk."""

    INJECTED = "injected"  # committed now
    SKIPPED = "skipped"  # it was committed before


class OutcomeUnknown(Exception):
    """The chunk may be committed or not, and the writer must not find out by itself.

    It has been at it for so long that the recovery may be another runner's by now. Whoever knows
    that it is not (the driver, which holds the lease) writes the chunk again, from step 1.
    """

    def __init__(self, error: BacklogError) -> None:
        super().__init__(str(error))
        self.error = error


@dataclass(frozen=True, slots=True)
class ChunkResult:
    """One chunk is in the topic.

    Attributes:
        session: names this commit of its producer; the next chunk of the slot may go on with the
            producer whose last commit it is, and with no other. Empty where there is none.
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
            OutcomeUnknown: ask whether the recovery still is ours, then write it again.
            PlanStale: another recovery wrote to this slot, or the ledger is not the plan's.
            ProducerFenced: another runner took the slot over.
            HangingTransaction, KafkaFailure, Refused: nothing of the chunk was committed, or it
                is not known whether it was; writing it again is safe.
        """

    def close(self) -> None:
        """Closes every producer."""
