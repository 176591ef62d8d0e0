"""Messages that exist: read, named and stamped as they were, to the byte."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import functions as F  # noqa: N812

from backlogctl.manifests import CHUNK_SCHEMA, HEADER_TYPE
from backlogctl.sandbox.embedded import EmbeddedKafka
from backlogctl.spark_backfill.existing.messages import (
    ORIGINALS_SCHEMA,
    count_replays,
    format_message_time,
    hash_original_id,
    read_log,
)
from backlogctl.spark_backfill.messages.staging import StampValues, stamp_messages
from backlogctl.values import OffsetRange
from backlogctl_delivery import stamps
from tests.conftest import MakeTopic
from tests.spark_backfill.archive.archiving import KEEP, consume, publish

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RECOVERY = "r-20261124-0001"
TOPIC_ID = "Pq3-_topic"
COUNT = 40


def test_spark_and_python_make_the_same_id(spark: SparkSession) -> None:
    places = [(0, 0), (3, 7), (12, 2**40)]
    frame = spark.createDataFrame(places, "p int, o long")
    made = frame.select(hash_original_id(TOPIC_ID, F.col("p"), F.col("o")).alias("id")).collect()
    assert [row["id"] for row in made] == [
        stamps.make_original_id(TOPIC_ID, partition, offset) for partition, offset in places
    ]


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_bytes_are_read_as_they_were(
    spark: SparkSession, kafka: EmbeddedKafka, topic: MakeTopic, codec: str
) -> None:
    name = topic(2, KEEP)
    publish(kafka.bootstrap, name, COUNT, 2, **{"compression.type": codec})
    ranges = [OffsetRange(p, 0, COUNT) for p in range(2)]
    frame = read_log(spark, {"bootstrap.servers": kafka.bootstrap}, name, ranges)
    rows = frame.orderBy("source_partition", "source_offset").collect()
    for row, (partition, offset, at, _, key, value, headers) in zip(
        rows, consume(kafka.bootstrap, name, ranges), strict=True
    ):
        place = (row["source_partition"], row["source_offset"], row["timestamp"])
        assert (*place, row["key"], row["value"]) == (partition, offset, at, key, value)
        assert tuple((h["name"], h["value"]) for h in row["headers"]) == headers


HEADER = st.tuples(
    st.sampled_from(["", "trace", "trace ☂", *stamps.ALL]), st.none() | st.binary(max_size=6)
)


@given(
    rows=st.lists(st.tuples(st.lists(HEADER, max_size=5), st.integers(1, 9)), max_size=12),
    skip=st.integers(0, 3),
)
def test_headers_are_the_messages_own_then_the_stamps(
    rows: list[tuple[list[tuple[str, bytes | None]], int]], skip: int
) -> None:
    table = pa.Table.from_pylist(
        [
            {
                "slot": 1,
                "message_id": f"{number:032x}",
                "key": None,
                "value": b"",
                "headers": [{"name": n, "value": v} for n, v in headers],
                "fidelity": "original" if number % 2 else "restated",
                "replays": replays,
                "original_time": None if number % 3 else "2026-11-20T12:00:00.000000Z",
            }
            for number, (headers, replays) in enumerate(rows)
        ],
        schema=pa.schema(
            [
                ("slot", pa.int32()),
                ("message_id", pa.string()),
                ("key", pa.binary()),
                ("value", pa.binary()),
                ("headers", HEADER_TYPE),
                ("fidelity", pa.string()),
                ("replays", pa.int32()),
                ("original_time", pa.string()),
            ]
        ),
    ).slice(skip)
    made = stamp_messages(table, StampValues(RECOVERY, "", ()))
    assert made.schema == CHUNK_SCHEMA
    for row, given_row in zip(made.to_pylist(), table.to_pylist(), strict=True):
        own = [(h["name"], h["value"]) for h in given_row["headers"]]
        at = given_row["original_time"]
        assert [(h["name"], h["value"]) for h in row["headers"]] == [
            *((name, value) for name, value in own if name not in stamps.ALL),
            (stamps.MESSAGE_ID, given_row["message_id"].encode()),
            (stamps.RECOVERY_ID, RECOVERY.encode()),
            (stamps.ORIGINAL_TIME, None if at is None else at.encode()),
            (stamps.FIDELITY, given_row["fidelity"].encode()),
            (stamps.REPLAYS, str(given_row["replays"]).encode()),
        ]


def test_stamps_of_an_earlier_recovery_are_read_and_hostile_ones_are_not(
    spark: SparkSession,
) -> None:
    """How often, and when first; whatever else stands there counts as nothing."""
    first = b"2024-02-03T04:05:06.000007Z"
    stamped: list[tuple[bytes | None, bytes | None]] = [
        (b"2", first),
        (b"many", b"yesterday"),
        (b"-4", b"2024-02-03T04:05:06.00000\xffZ"),
        (None, None),
        (b"9" * 40, b""),
    ]
    rows = [
        (0, n, 1_760_000_000_005, 0, b"k", b"v", [(stamps.REPLAYS, a), (stamps.ORIGINAL_TIME, b)])
        for n, (a, b) in enumerate(stamped)
    ]
    rows.append((0, 9, 2**60, 0, b"k", b"v", []))
    frame = spark.createDataFrame(rows, ORIGINALS_SCHEMA)
    replays = (count_replays() + 1).alias("replays")
    made = frame.select(replays, format_message_time().alias("original_time")).collect()
    own = "2025-10-09T08:53:20.005000Z"
    assert [(row["replays"], row["original_time"]) for row in made] == [
        (3, first.decode()),
        (1, own),
        (1, own),
        (1, own),
        (1, own),
        (1, None),
    ]
