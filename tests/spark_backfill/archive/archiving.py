"""Messages of every shape, an archive of them, and what an independent reader sees."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from confluent_kafka import TopicPartition

from backlogctl.kafka.admin import list_offsets, read_topic_id
from backlogctl.kafka.clients import assign_partitions, make_admin, make_consumer, make_producer
from backlogctl.spark_backfill.archive.job import ArchiveJob
from backlogctl.values import OffsetRange

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# offset, timestamp, timestamp type, key, value, headers, by partition and offset.
Message = tuple[
    int, int, int, int, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]
]
Headers = list[tuple[str, bytes | None]]

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
# Their times are of another year.
KEEP = {"retention.ms": "-1"}
# The broker takes times of every unit, as it did before Kafka 4.
ANY_TIME = {**KEEP, "message.timestamp.after.max.ms": str(2**63 - 1)}
SHAPES: Sequence[tuple[bytes | None, bytes | None, Headers]] = [
    (b"key", b'{"order":1}', []),
    (None, b"without a key", []),
    (b"tombstone", None, []),
    (b"", b"", []),
    (None, None, []),
    (b"\x00\xff\xfe", bytes(range(256)), [("trace", b"\x00\x01")]),
    (b"repeated", b"1", [("name", b"a"), ("name", b"b"), ("name", b"a")]),
    (b"empty", b"2", [("", b""), ("empty", b""), ("null", None), ("", None)]),
    (b"names", b"3", [("schlüssel ☂", "wörter".encode()), ("a b=c/d", b"x")]),
    (b"large", b"x" * 20_000, []),
]


def publish(bootstrap: str, topic: str, count: int, partitions: int = 1, **settings: Any) -> None:
    """`count` messages to each partition, of all shapes in turns, with times of their own."""
    producer = make_producer({"bootstrap.servers": bootstrap}, {"linger.ms": 5, **settings})
    for number in range(count):
        key, value, headers = SHAPES[number % len(SHAPES)]
        for partition in range(partitions):
            producer.produce(
                topic,
                value,
                key,
                partition=partition,
                headers=[*headers],
                timestamp=1_760_000_000_000 + number,
            )
    assert producer.flush(60) == 0


def publish_transactions(
    bootstrap: str, topic: str, outcomes: Iterable[bool], size: int = 5, partition: int = 0
) -> None:
    """A transaction for each outcome: True is committed, False aborted."""
    producer = make_producer(
        {"bootstrap.servers": bootstrap}, {"transactional.id": f"t-{topic}", "linger.ms": 0}
    )
    producer.init_transactions(30)
    for number, outcome in enumerate(outcomes):
        producer.begin_transaction()
        for each in range(size):
            value = f"{number}.{each} {'committed' if outcome else 'aborted'}".encode()
            producer.produce(topic, value, b"k", partition=partition)
        assert producer.flush(30) == 0
        if outcome:
            producer.commit_transaction(30)
        else:
            producer.abort_transaction(30)


def make_job(
    bootstrap: str, topic: str, location: Path | str, *, partitions: int = 1, **changes: Any
) -> ArchiveJob:
    """All that readers get of a topic, by small files."""
    admin = make_admin({"bootstrap.servers": bootstrap})
    values: dict[str, Any] = {
        "recovery_id": "r-20261124-0001",
        "stream": "orders",
        "cluster": "main",
        "topic": topic,
        "topic_id": read_topic_id(admin, topic)[0],
        "group": "shop",
        "partitions": partitions,
        "plan_hash": "f" * 64,
        "made_by": "tests",
        "location": str(location),
        "properties": {"bootstrap.servers": bootstrap},
    }
    if "ranges" not in changes:
        ends = list_offsets(admin, topic, range(partitions), "latest", "read_committed")
        lows = list_offsets(admin, topic, range(partitions), "earliest")
        values["ranges"] = tuple(OffsetRange(p, lows[p], end) for p, end in ends.items())
    return ArchiveJob(**{**values, **changes})


def consume(bootstrap: str, topic: str, ranges: Iterable[OffsetRange]) -> list[Message]:
    """What a read_committed reader gets of the ranges, by another client than Spark's."""
    found: list[Message] = []
    consumer = make_consumer({"bootstrap.servers": bootstrap}, {"enable.partition.eof": True})
    for item in ranges:
        assign_partitions(consumer, [TopicPartition(topic, item.partition, item.start)])
        while item.count:
            message = consumer.poll(30)
            assert message is not None
            offset = message.offset()
            assert offset is not None
            # An EOF's offset is where it stands.
            if message.error() is not None or offset >= item.end:
                break
            kind, time = message.timestamp()
            headers: Any = message.headers() or []
            found.append(
                (
                    item.partition,
                    offset,
                    time,
                    {1: 0, 2: 1}.get(kind, -1),
                    message.key(),
                    message.value(),
                    tuple((name, value) for name, value in headers),
                )
            )
    consumer.close()
    return sorted(found)


def collect(frame: DataFrame) -> list[Message]:
    """An archive's messages."""
    return sorted(
        (
            row["partition"],
            row["offset"],
            row["timestamp"],
            row["timestamp_type"],
            _read(row["key"]),
            _read(row["value"]),
            tuple((header["name"], _read(header["value"])) for header in row["headers"]),
        )
        for row in frame.collect()
    )


def _read(value: bytearray | None) -> bytes | None:
    return None if value is None else bytes(value)


def list_data(location: Path) -> list[Path]:
    """Its files of messages."""
    return sorted(location.glob("partition=*/*"))
