"""The one frame of messages that exist, whatever they are read from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812

from backlogctl.errors import KafkaFailure
from backlogctl.spark_backfill.evidence.injected import Places, list_injected_offsets
from backlogctl.spark_backfill.failures import list_secrets, translating
from backlogctl.spark_backfill.messages.rules import (
    OVERHEAD_BYTES,
    PLACES,
    hash_message_id,
)
from backlogctl.spark_backfill.spark.frames import last_header, make_empty
from backlogctl.spark_backfill.spark.topic import HEADERS, TopicReader, known_time
from backlogctl.values import OffsetRange
from backlogctl_delivery import stamps

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from backlogctl.spark_backfill.request import PriorChunk

ORIGINALS_SCHEMA = (
    "source_partition int, source_offset long, timestamp long, timestamp_type tinyint, "
    f"key binary, value binary, headers {HEADERS}"
)
_TIME = r"^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}\.\d{6}Z$"
_TIME_LENGTH = 27
COLUMNS = (
    "source_partition",
    "source_offset",
    "timestamp",
    "timestamp_type",
    "key",
    "value",
    "headers",
)


def as_originals(archived: DataFrame) -> DataFrame:
    """What `read_archive` gives."""
    return archived.select(
        F.col("partition").alias("source_partition"),
        F.col("offset").alias("source_offset"),
        *COLUMNS[2:],
    )


def format_message_time() -> Column:
    """The message's own timestamp, as everywhere here: `2026-11-20T12:00:00.123000Z`. NULL where it
    has none, or one beyond the year 9999.

    Of one that an earlier recovery put back, the time that it stamped: its own is that of the
    recovery.
    """
    own = F.date_format(F.timestamp_millis(known_time()), "yyyy-MM-dd'T'HH:mm:ss.SSS'000Z'")
    raw = last_header(stamps.ORIGINAL_TIME)
    stamped = F.when(F.octet_length(raw) == _TIME_LENGTH, raw.cast("string"))
    return F.coalesce(F.when(stamped.rlike(_TIME), stamped), own)


# By what a message that exists is known: where it lay (P9), and what its stream says.


def hash_original_id(topic_id: str, partition: str, offset: str) -> Column:
    """`stamps.make_original_id` in Spark SQL, bit for bit, of SQL that gives partition and offset,
    which are not NULL."""
    version = f"CAST(CAST({offset} AS string) AS binary)"
    return F.expr(hash_message_id(topic_id, [f"CAST({partition} AS string)"], version))


def identify(header: str | None) -> Column:
    """As the survivors of a rebuild are known; consumers do not note tombstones as handled."""
    identity = F.col("key") if header is None else last_header(header)
    return F.when(F.col("value").isNotNull(), identity)


# Where a message that exists goes, how often it was put back, and how large it will be (P9).


def place_originals(
    partition: Column, *, of: int, partitioner: str, partitions: int, fallback: Column | None = None
) -> Column:
    """The target partition: the same number where the target has as many as the source topic.

    Else by the key; without a key the number modulo the target's.

    Args:
        partition: where the message was; NULL where that is unknown.
        of: how many partitions the source topic had.
        partitions: how many the target has.
        fallback: a number that a message without partition and key is spread by.
    """
    spread = F.coalesce(partition, F.lit(0) if fallback is None else fallback)
    spread = F.pmod(spread.cast("long"), F.lit(partitions)).cast("int")
    by_key = F.coalesce(PLACES[partitioner](F.col("key"), partitions).cast("int"), spread)
    if of != partitions:
        return by_key
    inside = partition.isNotNull() & (partition >= 0) & (partition < partitions)
    return F.when(inside, partition.cast("int")).otherwise(by_key)


def count_replays() -> Column:
    """How often a message was put back before: its `backlog-replays`, else 0."""
    said = last_header(stamps.REPLAYS).cast("string").try_cast("int")
    return F.greatest(F.coalesce(said, F.lit(0)), F.lit(0))


def measure_originals() -> Column:
    """Bytes of the record as it will be sent, with room for what the broker adds."""
    total = F.lit(OVERHEAD_BYTES).cast("long")
    for part in ("key", "value"):
        total = total + F.coalesce(F.octet_length(part), F.lit(0))
    # Joined, not folded: Spark interprets a function of each value, row by row.
    names = F.octet_length(F.array_join(F.col("headers.name"), ""))
    values = F.octet_length(F.array_join(F.col("headers.value").cast("array<string>"), ""))
    return total + names + values + F.size("headers") * 10


# Messages that are still in a topic, as the one frame.


def read_log(
    spark: SparkSession,
    properties: Mapping[str, str],
    topic: str,
    ranges: Sequence[OffsetRange],
) -> DataFrame:
    """Messages of these ranges in the columns of `ORIGINALS_SCHEMA`, in no order.

    Ranges must not overlap. What retention removes meanwhile fails the read.

    Raises:
        KafkaFailure, ConfigurationError.
    """
    left = sorted((r for r in ranges if r.end > r.start), key=lambda r: (r.partition, r.start))
    if not left:
        return make_empty(spark, ORIGINALS_SCHEMA)
    with translating(
        "read the topic",
        subject=f"topic {topic}",
        kind=KafkaFailure,
        secrets=list_secrets(properties),
    ):
        return as_originals(TopicReader(spark, properties, topic).read(left))


# Where messages that were put back are in the topic now, as far as they still are.


@dataclass(frozen=True, slots=True)
class StillThere:
    """The messages of some chunks, in the topic."""

    spark: SparkSession
    properties: Mapping[str, str]
    topic: str
    starts: Mapping[int, int]
    prior: Sequence[PriorChunk]

    def locate_ours(self, partitions: Sequence[int]) -> Places:
        """Where each of them is."""
        ranges: dict[int, OffsetRange] = {}
        for chunk in self.prior:
            if chunk.slot not in partitions or chunk.first_offset is None:
                continue
            first = max(chunk.first_offset, self.starts.get(chunk.slot, 0))
            end = (chunk.last_offset or 0) + 1
            known = ranges.get(chunk.slot, OffsetRange(chunk.slot, first, end))
            if end > first:
                ranges[chunk.slot] = OffsetRange(
                    chunk.slot, min(first, known.start), max(end, known.end)
                )
        frame = read_log(self.spark, self.properties, self.topic, list(ranges.values()))
        stamp = last_header(stamps.MESSAGE_ID).cast("string").alias("stamp")
        found = frame.select("source_partition", stamp, "source_offset")
        return list_injected_offsets(
            tuple(row) for row in found.where(F.col("stamp").isNotNull()).collect()
        )
