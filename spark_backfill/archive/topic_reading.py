"""A range of a topic as one Spark task reads it, with the settings that make it quick."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from backlog.clock import Deadline
from backlog.kafka.peek import peek_at
from backlog.values import OffsetRange
from spark_backfill.archive.job import ArchiveJob
from spark_backfill.archive.layout import select_columns
from spark_backfill.spark.kafka_options import make_java_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_TUNING: Mapping[str, str] = {
    # Spark's default is read_uncommitted, which would archive aborted messages too.
    "kafka.isolation.level": "read_committed",
    # The default, 1 MB, costs the client more than the messages themselves.
    "kafka.max.partition.fetch.bytes": str(4 * 1024 * 1024),
    "kafka.fetch.max.bytes": str(16 * 1024 * 1024),
    "kafka.fetch.min.bytes": str(256 * 1024),
    "kafka.fetch.max.wait.ms": "100",
    "kafka.receive.buffer.bytes": str(1024 * 1024),
}
# What one poll gives is in memory at once, uncompressed. Few messages a poll cost the client more
# than the messages themselves; many large ones, which are small in their batch, fill the heap.
_POLL_BYTES = 8 * 1024 * 1024
_FEWEST, _MOST = 10, 5_000
_PEEKED = 20
_PEEK_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Reader:
    """How a run reads. `group` is the client's group id: it joins none and commits nothing; by it
    Spark knows its consumers again, so that the next piece of a partition is read by the same.
    `records` is how many messages a poll gives at most."""

    group: str
    records: int


def make_reader(job: ArchiveJob, ranges: Sequence[OffsetRange]) -> Reader:
    """For one run; a consumer that Spark kept of an earlier one may be another cluster's."""
    starts = {item.partition: item.start for item in reversed(ranges)}
    found = peek_at(job.properties, job.topic, starts, _PEEKED, Deadline(_PEEK_SECONDS))
    largest = max((message.size for seen in found.values() for message in seen), default=0)
    records = min(_MOST, max(_FEWEST, _POLL_BYTES // max(1, largest)))
    return Reader(f"backlogctl-archive-{job.recovery_id}-{uuid.uuid4().hex[:8]}", records)


def read_range(
    spark: SparkSession,
    topic: str,
    piece: OffsetRange,
    properties: Mapping[str, str],
    reader: Reader,
) -> DataFrame:
    """Its messages in the archive's columns, ascending."""
    place = str(piece.partition)
    return (
        spark.read.format("kafka")
        .options(**_TUNING)
        .options(**make_java_options(properties))
        .options(
            **{
                "assign": json.dumps({topic: [piece.partition]}),
                "startingOffsets": json.dumps({topic: {place: piece.start}}),
                "endingOffsets": json.dumps({topic: {place: piece.end}}),
                "includeHeaders": "true",
                "failOnDataLoss": "true",
                "kafka.group.id": reader.group,
                "kafka.max.poll.records": str(reader.records),
            }
        )
        .load()
        .select(*select_columns())
    )
