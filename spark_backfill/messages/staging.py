"""Staged messages: slot by slot in their order, cut into chunk files.

One task writes the chunks of whole slots; only a line about each chunk goes to the driver. The
same rows make the same bytes, whatever the number of tasks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from backlog.errors import StagingError
from backlog.values import Chunk
from spark_backfill.failures import translating
from spark_backfill.messages.chunks import (
    CANARY_CHUNKS,
    ChunkLimits,
    StampValues,
    describe_chunks,
    fit_chunks,
    stamp_messages,
    write_chunks,
)
from spark_backfill.messages.headers import join_headers
from spark_backfill.messages.rules import MessageRules

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "CANARY_CHUNKS",
    "ChunkLimits",
    "StampValues",
    "describe_rows",
    "fit_chunks",
    "stage_lost",
    "stage_messages",
    "stamp_messages",
    "write_chunks",
]

_CHUNK_FIELDS = (
    "slot int, number int, count int, bytes long, sha256 string, path string, "
    "ids_path string, canary boolean"
)


def stage_lost(
    lost: DataFrame,
    rules: MessageRules,
    counts: Mapping[int, int],
    *,
    recovery_id: str,
    directory: Path,
    limits: ChunkLimits | None = None,
) -> tuple[Chunk, ...]:
    """Writes the chunks of all lost messages into the staging directory.

    Args:
        lost: what `build_messages` makes, labelled lost.
        counts: lost messages by slot, as counted before.
        limits: how to cut; the canary slot is the one with most messages.

    Raises:
        StagingError: what was written is not what was counted.
    """
    # Where all have headers of the same names, and one fidelity: quicker than by message.
    same = None if rules.lists_headers else (rules.fidelity, rules.header_names)
    return stage_messages(
        lost.withColumn("original_time", F.col("time")) if same else describe_rows(lost, rules),
        order=rules.order_names(),
        counts=counts,
        recovery_id=recovery_id,
        directory=directory,
        limits=limits,
        same=same,
    )


def describe_rows(rows: DataFrame, rules: MessageRules) -> DataFrame:
    """What `build_messages` makes, each with its own headers and fidelity."""
    return rows.withColumns(
        {
            "headers": join_headers(rules.header_names, listed=rules.lists_headers),
            "fidelity": F.lit(rules.fidelity),
            "replays": F.lit(1),
            "original_time": F.col("time"),
        }
    )


def stage_messages(
    messages: DataFrame,
    *,
    order: Sequence[str],
    counts: Mapping[int, int],
    recovery_id: str,
    directory: Path,
    limits: ChunkLimits | None = None,
    same: tuple[str, tuple[str, ...]] | None = None,
) -> tuple[Chunk, ...]:
    """Writes the chunks of messages, slot by slot, in one pass.

    Args:
        messages: columns slot int, message_id string, key, value, original_time string, those of
            `order`, and each message's own headers array<struct<name,value>>, fidelity string,
            replays int (how often it is put back with this time).
        order: columns by which the messages of a slot are sorted, `segment` first where several
            sources follow each other; the message id decides the rest.
        counts: messages by slot, as counted before.
        same: fidelity and names of the headers, where they are the same for all: then the column
            header_values array<binary> takes the place of headers, fidelity and replays.

    Raises:
        StagingError: what was written is not what was counted.
    """
    slots = sorted(slot for slot, count in counts.items() if count)
    if not slots:
        return ()
    cut = _choose_canary(limits or ChunkLimits(), slots, counts)
    values = StampValues(recovery_id, *(same or ("", ())))
    own = ("header_values",) if same else ("headers", "fidelity", "replays")
    routed = _route_slots(messages, slots, counts)
    ordered = routed.sortWithinPartitions("slot", *order, "message_id").select(
        "slot", "message_id", "key", "value", *own, "original_time"
    )
    target = str(directory)

    def write_batches(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        return describe_chunks(batches, Path(target), cut, values)

    with translating("stage the messages", subject=target, kind=StagingError):
        # A line about each chunk: its size does not grow with the messages.
        rows = ordered.mapInArrow(write_batches, _CHUNK_FIELDS).collect()
    chunks = sorted((Chunk(**row.asDict()) for row in rows), key=lambda c: (c.slot, c.number))
    written: dict[int, int] = {}
    for chunk in chunks:
        written[chunk.slot] = written.get(chunk.slot, 0) + chunk.count
    if written != {slot: counts[slot] for slot in slots}:
        raise StagingError(
            f"{sum(written.values())} messages were staged but "
            f"{sum(counts[slot] for slot in slots)} were counted",
            subject=target,
            hint="plan again",
            retryable=True,
        )
    return tuple(chunks)


def _choose_canary(
    plain: ChunkLimits, slots: Sequence[int], counts: Mapping[int, int]
) -> ChunkLimits:
    """The canary slot is the one with most messages."""
    chosen = max(slots, key=lambda slot: (counts[slot], -slot))
    return ChunkLimits(
        plain.messages, plain.bytes, chosen, plain.canary_chunks, plain.canary_messages
    )


def _route_slots(lost: DataFrame, slots: Sequence[int], counts: Mapping[int, int]) -> DataFrame:
    """Gives each slot one task, and tasks about equal loads.

    Spark places rows by a hash of a column; so a number whose hash is the wanted task is looked
    up for each task first.
    """
    spark = lost.sparkSession
    tasks = min(len(slots), 4 * spark.sparkContext.defaultParallelism)
    loads = [0] * tasks
    task_of: dict[int, int] = {}
    for slot in sorted(slots, key=lambda s: (-counts[s], s)):
        task = loads.index(min(loads))
        task_of[slot] = task
        loads[task] += counts[slot]
    tickets = _find_tickets(lost, tasks)
    route = F.create_map(
        *(F.lit(item) for slot in slots for item in (slot, tickets[task_of[slot]]))
    )
    return lost.withColumn("__ticket", F.element_at(route, F.col("slot"))).repartition(
        tasks, "__ticket"
    )


def _find_tickets(lost: DataFrame, tasks: int) -> dict[int, int]:
    spark = lost.sparkSession
    numbers = spark.range(0, 64 * tasks, 1, 1).select(F.col("id").cast("int").alias("ticket"))
    placed = numbers.select("ticket", F.pmod(F.hash("ticket"), F.lit(tasks)).alias("task"))
    best = placed.groupBy("task").agg(F.min("ticket").alias("ticket")).collect()
    found = {row["task"]: row["ticket"] for row in best}
    # 64 numbers a task: that one gets none is as good as impossible, and still correct.
    return {task: found.get(task, 0) for task in range(tasks)}
