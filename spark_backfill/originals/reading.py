"""Messages that are still in a topic, as the one frame."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING

from backlog.errors import KafkaFailure
from backlog.values import OffsetRange
from spark_backfill.archive.layout import select_columns
from spark_backfill.failures import list_secrets, translating
from spark_backfill.originals.frame import ORIGINALS_SCHEMA, as_originals
from spark_backfill.spark.frames import make_empty
from spark_backfill.spark.kafka_options import make_java_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_OPTIONS: Mapping[str, str] = {
    "includeHeaders": "true",
    "failOnDataLoss": "true",
    # Spark's default is read_uncommitted: aborted messages would be put back.
    "kafka.isolation.level": "read_committed",
    "kafka.max.poll.records": "5000",
    "kafka.max.partition.fetch.bytes": str(8 * 1024 * 1024),
    "kafka.metadata.max.age.ms": "2000",
}


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
    # Spark reads one range of a partition at a time.
    rounds: list[dict[int, OffsetRange]] = []
    for item in left:
        free = next((each for each in rounds if item.partition not in each), None)
        if free is None:
            rounds.append(free := {})
        free[item.partition] = item
    frames = [_read_round(spark, properties, topic, list(each.values())) for each in rounds]
    return reduce(lambda a, b: a.unionAll(b), frames)


def _read_round(
    spark: SparkSession,
    properties: Mapping[str, str],
    topic: str,
    ranges: Sequence[OffsetRange],
) -> DataFrame:
    options = {
        **_OPTIONS,
        **make_java_options(properties),
        "assign": json.dumps({topic: [r.partition for r in ranges]}),
        "startingOffsets": json.dumps({topic: {str(r.partition): r.start for r in ranges}}),
        "endingOffsets": json.dumps({topic: {str(r.partition): r.end for r in ranges}}),
    }
    with translating(
        "read the topic",
        subject=f"topic {topic}",
        kind=KafkaFailure,
        secrets=list_secrets(properties),
    ):
        raw = spark.read.format("kafka").options(**options).load()
        # The headers' names and the NULL of none are those of an archive.
        return as_originals(raw.select(*select_columns()))
