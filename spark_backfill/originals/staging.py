"""Staged messages that exist: as they were, in their order, with our stamps behind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812

from backlog.values import Chunk
from spark_backfill.messages.rules import ORIGINAL
from spark_backfill.messages.staging import ChunkLimits, stage_messages
from spark_backfill.originals.frame import format_message_time
from spark_backfill.originals.identity import hash_original_id
from spark_backfill.originals.placing import count_replays, place_originals

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ORDER = ("source_partition", "source_offset")


@dataclass(frozen=True, slots=True)
class OriginalSlots:
    """How messages of a topic are named and where they go.

    Attributes:
        topic_id: of the topic that they were in.
        source_partitions: how many that topic had.
        partitions: how many the target has.
        partitioner: the stream's.
    """

    topic_id: str
    source_partitions: int
    partitions: int
    partitioner: str


def prepare_originals(frame: DataFrame, slots: OriginalSlots, *, segment: int = 0) -> DataFrame:
    """Messages in the columns that `stage_messages` takes.

    Returns:
        slot int, segment int, source_partition, source_offset, message_id, key, value, headers,
        original_time, fidelity (`original`), replays.
    """
    partition = F.col("source_partition")
    return frame.select(
        place_originals(
            partition,
            of=slots.source_partitions,
            partitioner=slots.partitioner,
            partitions=slots.partitions,
        ).alias("slot"),
        F.lit(segment).alias("segment"),
        *ORDER,
        hash_original_id(slots.topic_id, partition, F.col("source_offset")).alias("message_id"),
        "key",
        "value",
        "headers",
        format_message_time().alias("original_time"),
        F.lit(ORIGINAL).alias("fidelity"),
        (count_replays() + 1).alias("replays"),
    )


def stage_originals(
    frame: DataFrame,
    *,
    slots: OriginalSlots,
    recovery_id: str,
    directory: Path,
    limits: ChunkLimits | None = None,
    order: Sequence[str] = ORDER,
) -> tuple[Chunk, ...]:
    """Writes messages of one source into the staging directory: counts them, then stages.

    Raises:
        StagingError.
    """
    made = prepare_originals(frame, slots)
    counts = {row["slot"]: row["count"] for row in made.groupBy("slot").count().collect()}
    return stage_messages(
        made,
        order=("segment", *order),
        counts=counts,
        recovery_id=recovery_id,
        directory=directory,
        limits=limits,
    )
