"""How verification looks at messages: the last header of a name, and no two written alike."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from backlogctl.manifests import CHUNK_SCHEMA
from backlogctl.spark_backfill.injection.verification import fingerprint_read, fingerprint_staged
from backlogctl.spark_backfill.spark.frames import last_header

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_READ = (
    "partition int, key binary, value binary, headers array<struct<key:string,value:binary>>, n int"
)


def test_the_last_header_of_a_name_counts(spark: SparkSession) -> None:
    cases = [
        (None, None),
        ([], None),
        ([("b", b"1")], None),
        ([("a", None)], None),
        ([("a", b"1"), ("b", b"2")], b"1"),
        ([("a", b"1"), ("a", b"\xff"), ("b", b"2")], b"\xff"),
        ([("a", b"1"), ("a", None)], None),
    ]
    rows = [(0, None, None, headers, n) for n, (headers, _) in enumerate(cases)]
    found = spark.createDataFrame(rows, _READ).select("n", last_header("a").alias("last"))
    assert {row.n: row.last for row in found.collect()} == {
        n: expected for n, (_, expected) in enumerate(cases)
    }


def test_different_messages_have_different_fingerprints(spark: SparkSession) -> None:
    messages = [
        (0, None, None, []),
        (1, None, None, []),
        (0, b"", None, []),
        (0, None, b"", []),
        (0, b"a", None, []),
        (0, None, b"a", []),
        (0, b"-", b"a", []),
        (0, b"a|1:b", b"c", []),
        (0, b"a", b"b|1:c", []),
        (0, b"\xff", b"a", []),
        (0, b"\xfe", b"a", []),
        (0, b"\xef\xbf\xbd", b"a", []),
        (0, b"a", b"b", [("h", None)]),
        (0, b"a", b"b", [("h", b"")]),
        (0, b"a", b"b", [("h", b"\xff")]),
        (0, b"a", b"b", [("h", b"\xfe")]),
        (0, b"a", b"b", [("h", b"1"), ("h", b"2")]),
        (0, b"a", b"b", [("h", b"2"), ("h", b"1")]),
        (0, b"a", b'b|[{"name":"h","value":"MQ=="}]', []),
        (0, b"a", b"b", [("h", b"1")]),
        # What marks a border or NULL may stand in a message too.
        (0, b"a\0b", b"c", []),
        (0, b"a", b"b\0c", []),
        (0, b"a\1b", b"c", []),
        (0, b"\1", b"a", []),
        (0, b"\0", b"a", []),
        (0, b"a", b"b", [("", b"")]),
        (0, b"a", b"b", [("", None)]),
        (0, b"a", b"b", [("h", b"\1")]),
        (0, b"a", b"b", [("h", b"\0")]),
        (0, b"a", b"b\0h\0001", []),
        (0, b"a", b"b", [("h\0i", b"1\0002")]),
        (0, b"a", b"b", [("h", b"1"), ("i", b"2")]),
        (0, b"a", b"b", [("h", b"i"), ("1", b"2")]),
    ]
    read = spark.createDataFrame([(*m, n) for n, m in enumerate(messages)], _READ)
    one = {row.n: bytes(row.f) for row in read.select("n", fingerprint_read().alias("f")).collect()}
    columns = ("partition", "key", "value", "headers")
    rows = [{"message_id": "", **dict(zip(columns, m, strict=True))} for m in messages]
    (whole,) = pa.Table.from_pylist(rows, CHUNK_SCHEMA).to_batches()
    # Parts of a chunk as well as the whole.
    parts = [whole.slice(start, 5) for start in range(0, len(messages), 5)]
    for batches in ([whole], parts):
        fingerprints = [f for batch in batches for f in fingerprint_staged(batch).to_pylist()]
        assert one == dict(enumerate(fingerprints))
    assert len(set(one.values())) == len(messages)
    # Kafka gives NULL for no headers, a staged file an empty list.
    bare = spark.createDataFrame([(0, None, None, None, 0)], _READ)
    assert [bytes(row.f) for row in bare.select(fingerprint_read().alias("f")).collect()] == [
        one[0]
    ]
