"""Staged messages: slot by slot in their order, cut into chunk files.

One task writes the chunks of whole slots; only a line about each chunk goes to the driver. The
same rows make the same bytes, whatever the number of tasks.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from backlogctl.errors import StagingError
from backlogctl.manifests import CHUNK_SCHEMA, HEADER_TYPE, MESSAGE_BYTES, write_chunk
from backlogctl.spark_backfill.failures import translating
from backlogctl.spark_backfill.messages.rules import MessageRules, join_headers
from backlogctl.values import Chunk
from backlogctl_delivery import stamps

# Chunks: cut from batches that are sorted by slot, stamped and written.
#
# Python workers import this and little else: what they import is most of a small plan's staging.

CHUNK_MESSAGES = 50_000
CHUNK_BYTES = 16 * 1024 * 1024
CHUNK_SECONDS = 2.0
CANARY_CHUNKS = 3
CANARY_MESSAGES = 10

_CHUNK_ARROW = pa.schema(
    [
        ("slot", pa.int32()),
        ("number", pa.int32()),
        ("count", pa.int32()),
        ("bytes", pa.int64()),
        ("sha256", pa.string()),
        ("path", pa.string()),
        ("ids_path", pa.string()),
        ("canary", pa.bool_()),
    ]
)


@dataclass(frozen=True, slots=True)
class ChunkLimits:
    """How chunks are cut. A canary is one of the first chunks of `canary_slot`."""

    messages: int = CHUNK_MESSAGES
    bytes: int = CHUNK_BYTES
    canary_slot: int = -1
    canary_chunks: int = CANARY_CHUNKS
    canary_messages: int = CANARY_MESSAGES

    def find_limit(self, slot: int, number: int) -> int:
        """Messages at most in this chunk."""
        return self.canary_messages if self.is_canary(slot, number) else self.messages

    def is_canary(self, slot: int, number: int) -> bool:
        return slot == self.canary_slot and number < self.canary_chunks


def fit_chunks(
    messages_per_second: int | None, slots: int, bytes_per_second: float | None = None
) -> ChunkLimits:
    """Chunks of about two seconds at these rates over all slots, so that a pause, the window's end
    or Ctrl-C is seen soon and no transaction stays open for long."""
    seconds, messages, size = CHUNK_SECONDS / max(1, slots), CHUNK_MESSAGES, CHUNK_BYTES
    if messages_per_second is not None:
        messages = min(messages, math.ceil(messages_per_second * seconds))
    if bytes_per_second is not None:
        size = min(size, math.ceil(bytes_per_second * seconds))
        messages = min(messages, size // MESSAGE_BYTES)
    return ChunkLimits(messages=max(CANARY_MESSAGES, messages), bytes=size)


@dataclass(frozen=True, slots=True)
class StampValues:
    """What every message of a recovery is stamped with.

    Fidelity and header names are not used for messages that bring their own.
    """

    recovery_id: str
    fidelity: str
    header_names: tuple[str, ...]


def describe_chunks(
    batches: Iterable[pa.RecordBatch], directory: Path, limits: ChunkLimits, values: StampValues
) -> Iterator[pa.RecordBatch]:
    """Writes the chunks; a line about each, as Spark takes it from a worker."""
    for chunk in write_chunks(batches, directory, limits, values):
        yield pa.RecordBatch.from_pylist([_to_row(chunk)], schema=_CHUNK_ARROW)


def write_chunks(
    batches: Iterable[pa.RecordBatch], directory: Path, limits: ChunkLimits, values: StampValues
) -> Iterator[Chunk]:
    """Cuts batches that are sorted by slot into chunks and writes each as it is full."""
    slot, number = -1, 0
    held: list[pa.Table] = []
    held_rows = held_bytes = 0

    def flush() -> Chunk:
        nonlocal held, held_rows, held_bytes, number
        table = stamp_messages(pa.concat_tables(held), values)
        chunk = write_chunk(directory, slot, number, table, canary=limits.is_canary(slot, number))
        held, held_rows, held_bytes, number = [], 0, 0, number + 1
        return chunk

    for batch in batches:
        table = pa.Table.from_batches([batch])
        sizes = _measure_rows(table)
        for start, end in _split_by_slot(table):
            its_slot = table["slot"][start].as_py()
            if its_slot != slot:
                if held_rows:
                    yield flush()
                slot, number = its_slot, 0
            while start < end:
                room = limits.find_limit(slot, number) - held_rows
                fits = np.searchsorted(
                    np.cumsum(sizes[start : min(end, start + room)]),
                    limits.bytes - held_bytes,
                    side="right",
                )
                # One message that is larger than a chunk makes a chunk of its own.
                taken = int(fits) if fits or held_rows else 1
                if taken:
                    held.append(table.slice(start, taken))
                    held_rows += taken
                    held_bytes += int(sizes[start : start + taken].sum())
                    start += taken
                full = held_rows >= limits.find_limit(slot, number)
                if full or start < end:
                    yield flush()
    if held_rows:
        yield flush()


def stamp_messages(table: pa.Table, values: StampValues) -> pa.Table:
    """Rows of `slot, message_id, key, value, header_values, original_time` as a chunk.

    Headers are the stream's own, then those of `stamps.stamp`, built in whole columns. Rows with
    `headers, fidelity, replays` instead of `header_values` bring their own.
    """
    if "headers" in table.column_names:
        return stamp_originals(table, values)
    rows = table.num_rows
    own = len(values.header_names)
    names = [
        *values.header_names,
        stamps.MESSAGE_ID,
        stamps.RECOVERY_ID,
        stamps.ORIGINAL_TIME,
        stamps.FIDELITY,
        stamps.REPLAYS,
    ]
    width = len(names)
    whole = table.combine_chunks()
    header_values = _one_chunk(whole["header_values"], pa.list_(pa.binary())).flatten()
    ids = _one_chunk(whole["message_id"], pa.string())
    times = _one_chunk(whole["original_time"], pa.string())
    constants = pa.array(
        [values.recovery_id.encode(), values.fidelity.encode(), b"1"], type=pa.binary()
    )
    pool = pa.concat_arrays(
        [header_values, ids.cast(pa.binary()), times.cast(pa.binary()), constants]
    )
    index = np.empty((rows, width), dtype=np.int64)
    line = np.arange(rows, dtype=np.int64)
    for i in range(own):
        index[:, i] = line * own + i
    index[:, own] = rows * own + line
    index[:, own + 1] = rows * (own + 2)
    index[:, own + 2] = rows * (own + 1) + line
    index[:, own + 3] = rows * (own + 2) + 1
    index[:, own + 4] = rows * (own + 2) + 2
    flat = pool.take(pa.array(index.reshape(-1)))
    repeated = pa.array(names, type=pa.string()).take(pa.array(np.tile(np.arange(width), rows)))
    structs = pa.StructArray.from_arrays([repeated, flat], fields=list(HEADER_TYPE.value_type))
    offsets = np.arange(rows + 1, dtype=np.int32) * np.int32(width)
    return _make_chunk(whole, ids, times, offsets, structs)


def stamp_originals(table: pa.Table, values: StampValues) -> pa.Table:
    """Rows of `slot, message_id, key, value, headers, fidelity, replays, original_time` as a chunk.

    A message's own headers first, as they are, without the stamps of an earlier recovery.
    """
    rows, whole = table.num_rows, table.combine_chunks()
    lists = _one_chunk(whole["headers"], pa.list_(HEADER_TYPE.value_type))
    lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False)
    own = lists.flatten()
    owners = np.repeat(np.arange(rows, dtype=np.int64), lengths)
    stays = pc.invert(
        pc.is_in(pc.struct_field(own, 0), value_set=pa.array(stamps.ALL, type=pa.string()))
    )
    kept = np.nonzero(stays.to_numpy(zero_copy_only=False))[0]
    owners = owners[kept]
    each = np.bincount(owners, minlength=rows) if rows else np.zeros(0, dtype=np.int64)
    ids = _one_chunk(whole["message_id"], pa.string())
    times = _one_chunk(whole["original_time"], pa.string())
    stamped = (
        (stamps.MESSAGE_ID, ids),
        (stamps.RECOVERY_ID, pa.array([values.recovery_id] * rows, type=pa.string())),
        (stamps.ORIGINAL_TIME, times),
        (stamps.FIDELITY, _one_chunk(whole["fidelity"], pa.string())),
        (stamps.REPLAYS, _one_chunk(whole["replays"].cast(pa.string()), pa.string())),
    )
    width = len(stamped)
    ends = np.cumsum(each + width)
    starts = ends - (each + width)
    # Where in the pools below each header of the result comes from.
    index = np.empty(int(ends[-1]) if rows else 0, dtype=np.int64)
    firsts = np.cumsum(each) - each
    index[starts[owners] + np.arange(len(kept)) - firsts[owners]] = np.arange(len(kept))
    line = np.arange(rows, dtype=np.int64)
    for place in range(width):
        index[ends - width + place] = len(kept) + place * rows + line
    own = own.take(pa.array(kept))
    pool = pa.concat_arrays([own.field(1), *(column.cast(pa.binary()) for _, column in stamped)])
    numbers = np.concatenate(
        [np.arange(len(kept)), np.repeat(np.arange(len(kept), len(kept) + width), rows)]
    )
    names = pa.concat_arrays([own.field(0), pa.array([n for n, _ in stamped], type=pa.string())])
    structs = pa.StructArray.from_arrays(
        [names.take(pa.array(numbers[index])), pool.take(pa.array(index))],
        fields=list(HEADER_TYPE.value_type),
    )
    return _make_chunk(whole, ids, times, np.concatenate([[0], ends]).astype(np.int32), structs)


def _make_chunk(
    whole: pa.Table,
    ids: pa.Array,
    times: pa.Array,
    offsets: npt.NDArray[np.int32],
    structs: pa.StructArray,
) -> pa.Table:
    headers = pa.ListArray.from_arrays(pa.array(offsets), structs).cast(HEADER_TYPE)
    return pa.table(
        [
            ids,
            _one_chunk(whole["key"], pa.binary()),
            _one_chunk(whole["value"], pa.binary()),
            _one_chunk(whole["slot"], pa.int32()),
            headers,
            times,
        ],
        schema=CHUNK_SCHEMA,
    )


def _one_chunk(column: pa.ChunkedArray, kind: pa.DataType) -> pa.Array:
    whole = column.cast(kind).combine_chunks()
    if isinstance(whole, pa.ChunkedArray):
        whole = pa.concat_arrays(whole.chunks) if whole.num_chunks else pa.array([], type=kind)
    return whole


def _measure_rows(table: pa.Table) -> npt.NDArray[np.int64]:
    """Bytes of key, value and a message's own headers of each row."""
    total: npt.NDArray[np.int64] = np.zeros(table.num_rows, dtype=np.int64)
    for name in ("key", "value"):
        lengths = pc.fill_null(pc.binary_length(table[name].cast(pa.binary())), 0)
        total += lengths.to_numpy().astype(np.int64)
    if "headers" in table.column_names:
        lists = _one_chunk(table["headers"], pa.list_(HEADER_TYPE.value_type))
        each = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False)
        sizes = pc.fill_null(pc.binary_length(pc.struct_field(lists.flatten(), 1)), 0)
        sums = np.concatenate(
            [[0], np.cumsum(sizes.to_numpy(zero_copy_only=False), dtype=np.int64)]
        )
        ends = np.cumsum(each)
        total += sums[ends] - sums[ends - each]
    return total


def _split_by_slot(table: pa.Table) -> list[tuple[int, int]]:
    slots = table["slot"].to_numpy()
    edges = [0, *(np.nonzero(np.diff(slots))[0] + 1).tolist(), table.num_rows]
    return [(a, b) for a, b in pairwise(edges) if a < b]


def _to_row(chunk: Chunk) -> dict[str, object]:
    return {name: getattr(chunk, name) for name in _CHUNK_ARROW.names}


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
    tickets = _find_tickets(spark, tasks)
    route = ", ".join(f"{slot}, {tickets[task_of[slot]]}" for slot in slots)
    routed = lost.selectExpr("*", f"element_at(map({route}), slot) AS __ticket")
    return routed.repartition(tasks, "__ticket")


def _find_tickets(spark: SparkSession, tasks: int) -> dict[int, int]:
    numbers = f"SELECT CAST(id AS int) AS ticket FROM range(0, {64 * tasks}, 1, 1)"
    best = spark.sql(
        f"SELECT pmod(hash(ticket), {tasks}) AS task, min(ticket) FROM ({numbers}) GROUP BY task"
    )
    found: dict[int, int] = dict(best.collect())
    # 64 numbers a task: that one gets none is as good as impossible, and still correct.
    return {task: found.get(task, 0) for task in range(tasks)}
