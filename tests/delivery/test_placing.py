"""Keys stay where the wrapped client puts them."""

from __future__ import annotations

import itertools
import threading
from typing import Any

import kafka as kafka_python
import pyarrow as pa
import pytest
from confluent_kafka import Message
from confluent_kafka.admin import NewPartitions  # type: ignore[attr-defined]
from hypothesis import given
from hypothesis import strategies as st
from kafka.serializer import Serializer

from backlog.errors import KafkaFailure, UsageError
from backlog.kafka.clients import Admin
from backlog.partitioners import place_crc32 as place_column_crc32
from backlog.partitioners import place_murmur2 as place_column_murmur2
from backlogctl_delivery.sequenced.clients import Placement, place_crc32, place_murmur2
from backlogctl_delivery.sequenced.producer import SequencedProducer
from sandbox.embedded import EmbeddedKafka
from tests.conftest import MakeTopic
from tests.delivery.logs import check_all, make_bare
from tests.kafka_tools import wait_until

KEYS = [b"%d" % number for number in range(5_000)] + [
    f"order-\N{SNOWMAN}-{number * 7919}".encode() for number in range(5_000)
]


Placed = dict[bytes, int]


def place_with_confluent(producer: Any, topic: str) -> Placed:
    placed: Placed = {}

    def report(error: Any, message: Message) -> None:
        assert error is None
        key, partition = message.key(), message.partition()
        assert key is not None
        assert partition is not None
        placed[key] = partition

    for key in KEYS:
        producer.produce(topic, b"v", key, on_delivery=report)
        producer.poll(0)
    assert producer.flush(60) == 0
    return placed


@pytest.mark.parametrize(
    ("property_of_client", "ours"),
    [
        (None, None),
        ("consistent_random", "crc32"),
        ("consistent", "crc32"),
        ("murmur2_random", "murmur2"),
        ("murmur2", "murmur2"),
    ],
)
def test_keys_stay_where_confluent_kafka_puts_them(
    kafka: EmbeddedKafka, topic: MakeTopic, property_of_client: str | None, ours: str | None
) -> None:
    name = topic(7)
    settings = {"partitioner": property_of_client} if property_of_client else {}
    bare = make_bare(kafka.bootstrap, **settings)
    expected = place_with_confluent(bare, name)
    placed = place_with_confluent(SequencedProducer(bare, "shop", partitioner=ours), name)
    assert len(placed) == len(KEYS)
    assert placed == expected


def test_keys_stay_where_kafka_python_puts_them(
    kafka: EmbeddedKafka, topic: MakeTopic, kafka_python_producer: kafka_python.KafkaProducer
) -> None:
    name = topic(7)
    # Metadata of a topic this young may hold some of its partitions only.
    wait_until(lambda: len(kafka_python_producer.partitions_for(name)) == 7)

    def place(producer: Any) -> Placed:
        futures = [(key, producer.send(name, b"v", key=key)) for key in [*KEYS, b""]]
        return {key: future.get(60).partition for key, future in futures}

    expected = place(kafka_python_producer)
    assert place(SequencedProducer(kafka_python_producer, "shop")) == expected


def test_kafka_pythons_serializers_are_used(kafka: EmbeddedKafka, topic: MakeTopic) -> None:
    class Text(Serializer):  # type: ignore[misc]
        def serialize(self, topic: str, headers: object, data: str | None) -> bytes | None:
            return None if data is None else data[::-1].encode()

    name = topic(7)
    bare = kafka_python.KafkaProducer(
        bootstrap_servers=kafka.bootstrap, key_serializer=Text(), value_serializer=Text()
    )
    wait_until(lambda: len(bare.partitions_for(name)) == 7)
    sequenced = SequencedProducer(bare, "shop")
    for number in range(50):
        expected = bare.send(name, "v", key=f"key-{number}").get(30).partition
        assert sequenced.send(name, "v", key=f"key-{number}").get(30).partition == expected
    bare.close(10)


@given(st.lists(st.none() | st.binary(max_size=40), max_size=30), st.integers(1, 5_000))
def test_keys_are_placed_as_the_recoveries_place_them(
    keys: list[bytes | None], partitions: int
) -> None:
    column = pa.array(keys, type=pa.binary())
    for scalar, whole in (
        (place_murmur2, place_column_murmur2),
        (place_crc32, place_column_crc32),
    ):
        placed = [-1 if (p := scalar(key, partitions)) is None else p for key in keys]
        expected = whole(column, partitions).tolist()
        # librdkafka's consistent_random takes an empty key for none; `consistent` does not.
        is_none = [scalar is place_crc32 and key == b"" for key in keys]
        assert placed == [-1 if none else p for p, none in zip(expected, is_none, strict=True)]


def test_messages_without_a_key_are_spread_in_runs(kafka: EmbeddedKafka, topic: MakeTopic) -> None:
    name = topic(3)
    bare = make_bare(kafka.bootstrap)
    producer = SequencedProducer(bare, "shop")
    wait_until(lambda: len(bare.list_topics(name, timeout=10).topics[name].partitions) == 3)
    used: list[int | None] = []

    def send() -> bool:
        for _ in range(50):
            producer.produce(name, b"v", on_delivery=lambda _, m: used.append(m.partition()))
        producer.flush(30)
        return set(used) == {0, 1, 2}

    wait_until(send, what="all partitions have some")
    changes = sum(a != b for a, b in itertools.pairwise(used))
    assert changes < len(used) / 4


def test_a_topic_that_grows_is_noticed(
    kafka: EmbeddedKafka, topic: MakeTopic, admin: Admin
) -> None:
    name = topic(1)
    producer = SequencedProducer(make_bare(kafka.bootstrap), "shop", refresh_seconds=0.05)
    used: set[int | None] = set()

    def send() -> bool:
        for number in range(20):
            producer.produce(
                name, b"v", b"%d" % number, on_delivery=lambda _, m: used.add(m.partition())
            )
        producer.flush(30)
        return used == {0, 1, 2, 3}

    assert not send()
    admin.create_partitions([NewPartitions(name, 4)])[name].result(60)
    wait_until(send, what="the new partitions are used")
    assert check_all(kafka.bootstrap, name, 4).list_holes() == ()


def test_a_count_that_cannot_be_refreshed_holds_on() -> None:
    asked = threading.Event()

    def count_partitions() -> int:
        if not asked.is_set():
            asked.set()
            return 5
        raise KafkaFailure("away", subject="topic orders")

    place = Placement(count_partitions, place_murmur2, refresh_seconds=0.0)
    for _ in range(50):
        assert place.choose(b"21") == (-973932308 & 0x7FFFFFFF) % 5


def test_a_partitioner_of_ones_own(kafka: EmbeddedKafka, topic: MakeTopic) -> None:
    class Last(kafka_python.partitioner.DefaultPartitioner):  # type: ignore[misc]
        def partition(self, *_: Any) -> int:
            return 2

    bare = kafka_python.KafkaProducer(bootstrap_servers=kafka.bootstrap, partitioner=Last())
    with pytest.raises(UsageError, match="partitioner of its own"):
        SequencedProducer(bare, "shop")
    name = topic(3)
    producer = SequencedProducer(bare, "shop", partitioner=lambda _, partitions: partitions - 1)
    assert producer.send(name, b"v", key=b"k").get(30).partition == 2
    bare.close(10)
