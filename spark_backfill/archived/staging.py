"""Rows and archived messages staged in one pass, in one order (P9)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812

from backlog.values import Chunk
from spark_backfill.archived.choosing import Chosen
from spark_backfill.archived.segments import Segments, mark_rows
from spark_backfill.messages.rules import MessageRules
from spark_backfill.messages.staging import ChunkLimits, describe_rows, stage_lost, stage_messages
from spark_backfill.originals.placing import place_originals
from spark_backfill.originals.staging import ORDER
from spark_backfill.request import RebuildRequest

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def stage_all(
    request: RebuildRequest,
    chosen: Chosen,
    segments: Segments,
    limits: ChunkLimits | None,
    rows: tuple[DataFrame, DataFrame, MessageRules, Mapping[int, int]] | None = None,
) -> tuple[tuple[Chunk, ...], Mapping[int, int]]:
    """Writes the chunks of everything that is put back.

    Args:
        rows: the candidates; those that are lost (message_id, slot, lost_from); the rules; and how
            many go to each partition.

    Returns:
        The chunks, and how many messages each partition of the target gets.

    Raises:
        StagingError: what was written is not what was counted.
    """
    order: tuple[str, ...] = ()
    if rows is None:
        assert chosen.messages is not None
        frame, slots = chosen.messages, Counter(chosen.slots)
    else:
        candidates, lost, rules, counts = rows
        made = candidates.drop("slot").join(lost, "message_id")
        if request.target_partitions != request.partitions:
            made, counts = _move(made, request)
        if chosen.messages is None or not chosen.count:
            chunks = stage_lost(
                made,
                rules,
                counts,
                recovery_id=request.recovery_id,
                directory=request.directory,
                limits=limits,
            )
            return chunks, counts
        ready = describe_rows(mark_rows(made, segments), rules)
        frame = ready.unionByName(chosen.messages, allowMissingColumns=True)
        order, slots = rules.order_names(), Counter(chosen.slots)
        slots.update(counts)
    chunks = stage_messages(
        frame,
        order=("segment", *order, *ORDER),
        counts=slots,
        recovery_id=request.recovery_id,
        directory=request.directory,
        limits=limits,
    )
    return chunks, slots


def _move(made: DataFrame, request: RebuildRequest) -> tuple[DataFrame, Mapping[int, int]]:
    """To the partitions of a target that has another number of them."""
    moved = made.withColumn(
        "slot",
        place_originals(
            F.col("slot"),
            of=request.partitions,
            partitioner=request.stream.partitioner,
            partitions=request.target_partitions,
        ),
    )
    found = moved.groupBy("slot").agg(F.count(F.lit(1)).alias("n")).collect()
    return moved, {row["slot"]: row["n"] for row in found}
