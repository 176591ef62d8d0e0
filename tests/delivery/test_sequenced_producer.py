"""Messages are numbered without a gap, whoever sends them, and nothing else changes."""

from __future__ import annotations

import itertools
import os
import signal
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import kafka as kafka_python
import pyarrow as pa
import pytest
from confluent_kafka import Message, Producer, SerializingProducer
from confluent_kafka.admin import NewPartitions  # type: ignore[attr-defined]
from hypothesis import given
from hypothesis import strategies as st
from kafka.serializer import Serializer

from backlogctl.errors import KafkaFailure, UsageError
from backlogctl.kafka.clients import Admin
from backlogctl.partitioners import place_crc32 as place_column_crc32
from backlogctl.partitioners import place_murmur2 as place_column_murmur2
from backlogctl.sandbox.embedded import EmbeddedKafka
from backlogctl_delivery.sequenced.checker import Hole
from backlogctl_delivery.sequenced.clients import Placement, place_crc32, place_murmur2
from backlogctl_delivery.sequenced.producer import SequencedProducer
from backlogctl_delivery.sequenced.sequence import SKIPPED, Stamp, hash_topic, read_stamp
from tests.conftest import MakeTopic
from tests.delivery.kit import check_all, make_bare, make_topic_on, read_by_partition, read_stamps
from tests.kit.kafka import run_together, wait_until


def test_each_partition_is_numbered_from_zero(kafka: EmbeddedKafka, topic: MakeTopic) -> None:
    name = topic(3)
    producer = SequencedProducer(make_bare(kafka.bootstrap), "shop-1")
    for number in range(300):
        producer.produce(name, b"v", f"k{number}", headers={"type": b"OrderPaid"})
        producer.poll(0)
    assert producer.close() == 0
    found = read_by_partition(kafka.bootstrap, name, 3)
    assert sum(map(len, found.values())) == 300
    for partition, messages in found.items():
        stamps = [read_stamp(message.headers()) for message in messages]  # type: ignore[arg-type]
        assert stamps == [
            Stamp("shop-1", producer.epoch, hash_topic(name), partition, n)
            for n in range(len(messages))
        ]
        assert all(
            next(iter(message.headers() or ())) == ("type", b"OrderPaid") for message in messages
        )


def test_all_that_is_given_arrives(kafka: EmbeddedKafka, topic: MakeTopic) -> None:
    """Also where the client is called by position; a subclass is called by name."""

    class Watched(Producer):
        def produce(self, topic: str, **named: Any) -> None:  # type: ignore[override]
            super().produce(topic, **named)

    name = topic(1)
    reports: list[Any] = []
    for made in (Producer, Watched):
        bare = made({"bootstrap.servers": kafka.bootstrap})
        producer = SequencedProducer(bare, "shop")
        producer.produce(
            name,
            "v",
            "k",
            0,
            headers={"a": "1"},
            timestamp=1_700_000_000_123,
            on_delivery=lambda error, _: reports.append(error),
        )
        assert producer.close() == 0
    assert reports == [None, None]
    for message in read_by_partition(kafka.bootstrap, name, 1)[0]:
        assert (message.key(), message.value()) == (b"k", b"v")
        assert message.timestamp()[1] == 1_700_000_000_123
        headers = cast("list[tuple[str, bytes]]", message.headers())
        assert [header for header, _ in headers] == ["a", "backlog-sequence"]


def test_kafka_python_is_numbered_too(
    kafka: EmbeddedKafka, topic: MakeTopic, kafka_python_producer: kafka_python.KafkaProducer
) -> None:
    name = topic(2)
    producer = SequencedProducer(kafka_python_producer, "shop-1")
    reports: list[tuple[Any, Any]] = []
    futures = []
    for number in range(50):
        futures.append(producer.send(name, b"v", key=b"%d" % number, headers=[("a", b"b")]))
        producer.produce(
            name, b"w", b"%d" % number, on_delivery=lambda *report: reports.append(report)
        )
    assert producer.flush(30) == 0
    assert {future.get(10).topic for future in futures} == {name}
    wait_until(lambda: len(reports) == 50, what="all are reported")
    assert all(error is None and metadata.topic == name for error, metadata in reports)
    stamps = read_stamps(kafka.bootstrap, name, 2)
    assert sum(map(len, stamps.values())) == 100
    for found in stamps.values():
        assert [stamp.sequence for stamp in found] == list(range(len(found)))
    # All else is the client's own.
    assert "producer-metrics" in producer.metrics()


def test_a_restart_is_a_new_epoch(kafka: EmbeddedKafka, topic: MakeTopic) -> None:
    name = topic(1)
    epochs = []
    for _ in range(2):
        with SequencedProducer(make_bare(kafka.bootstrap), "shop") as producer:
            for _ in range(5):
                producer.produce(name, b"v")
            epochs.append(producer.epoch)
    assert epochs[0] < epochs[1]
    stamps = read_stamps(kafka.bootstrap, name)[0]
    assert [(each.epoch, each.sequence) for each in stamps] == [
        (epoch, number) for epoch in epochs for number in range(5)
    ]
    assert check_all(kafka.bootstrap, name).list_holes() == ()


def test_threads_and_two_producers_of_one_id(kafka: EmbeddedKafka, topic: MakeTopic) -> None:
    """The order of numbers is the order of the log, whoever sends."""

    class Yielding(Producer):
        """Lets another thread run where it hurts most."""

        def produce(self, topic: str, **named: Any) -> None:  # type: ignore[override]
            time.sleep(0)
            super().produce(topic, **named)

    name = topic(2)
    settings = {"bootstrap.servers": kafka.bootstrap}
    producers = [SequencedProducer(Yielding(settings), "shop") for _ in range(2)]
    assert producers[0].epoch != producers[1].epoch

    def send(producer: SequencedProducer) -> None:
        for number in range(2_000):
            producer.produce(name, b"v", b"%d" % number)
            producer.poll(0)

    run_together(*[partial(send, producers[n % 2]) for n in range(6)])
    assert [producer.close(60) for producer in producers] == [0, 0]
    for stamps in read_stamps(kafka.bootstrap, name, 2).values():
        for producer in producers:
            mine = [each.sequence for each in stamps if each.epoch == producer.epoch]
            assert mine == list(range(len(mine)))
    checker = check_all(kafka.bootstrap, name, 2)
    assert checker.list_holes() == ()


@pytest.mark.parametrize("transactional", [False, True])
def test_the_end_is_marked_where_asked_for(
    kafka: EmbeddedKafka, topic: MakeTopic, unique: str, transactional: bool
) -> None:
    name = topic(3)
    settings = {"transactional_id": unique} if transactional else {}
    producer = SequencedProducer(make_bare(kafka.bootstrap, **settings), "shop", mark_end=True)
    if transactional:
        producer.init_transactions(60)
        producer.begin_transaction()
    producer.produce(name, b"v", partition=0)
    producer.produce(name, b"v", partition=2)
    if transactional:
        producer.commit_transaction()
    assert (producer.close(), producer.close()) == (0, 0)
    messages = read_by_partition(kafka.bootstrap, name, 3)
    assert {p: len(found) for p, found in messages.items()} == {0: 2, 2: 2}
    assert [(m[-1].key(), m[-1].value()) for m in messages.values()] == [(None, b"")] * 2
    checker = check_all(kafka.bootstrap, name, 3)
    assert {(each.partition, each.epoch) for each in checker.ended} == {
        (0, producer.epoch),
        (2, producer.epoch),
    }
    with pytest.raises(UsageError, match="closed"):
        producer.produce(name, b"v")


def test_stamps_of_a_message_that_is_passed_on_are_left_out(
    kafka: EmbeddedKafka, topic: MakeTopic
) -> None:
    name = topic(1)
    with SequencedProducer(make_bare(kafka.bootstrap), "first") as first:
        first.produce(name, b"v", headers=[("a", b"1")])
    read = read_by_partition(kafka.bootstrap, name, 1)[0][0]
    with SequencedProducer(make_bare(kafka.bootstrap), "second") as second:
        second.produce(name, b"v", headers=[*(read.headers() or []), (SKIPPED, b"7")])
    again = read_by_partition(kafka.bootstrap, name, 1)[0][1]
    headers = cast("list[tuple[str, bytes]]", again.headers())
    assert [header for header, _ in headers] == ["a", "backlog-sequence"]
    assert read_stamp(headers) == Stamp("second", second.epoch, hash_topic(name), 0, 0)


def test_both_callbacks_of_the_application(kafka: EmbeddedKafka, topic: MakeTopic) -> None:
    name = topic(1)
    calls: list[str] = []
    producer = SequencedProducer(
        make_bare(kafka.bootstrap), "shop", on_delivery=lambda *_: calls.append("all")
    )
    producer.produce(name, b"v")
    producer.produce(name, b"v", on_delivery=lambda *_: calls.append("own"))
    assert len(producer) == 2
    assert producer.flush(60) == 0
    assert (calls, bool(producer), len(producer)) == (["all", "own"], True, 0)


def test_what_cannot_be_wrapped_is_refused(
    kafka: EmbeddedKafka, topic: MakeTopic, unique: str
) -> None:
    bare = make_bare(kafka.bootstrap, allow_auto_create_topics=False)
    with pytest.raises(ValueError, match="producer's id"):
        SequencedProducer(bare, "shop:1")
    with pytest.raises(UsageError, match="no partitioner"):
        SequencedProducer(bare, "shop", partitioner="fnv1a")
    with pytest.raises(UsageError, match="neither"):
        SequencedProducer(object(), "shop")
    with pytest.raises(UsageError, match="serializes keys itself"):
        SequencedProducer(SerializingProducer({"bootstrap.servers": kafka.bootstrap}), "shop")
    producer = SequencedProducer(bare, "shop", metadata_seconds=0.5)
    with pytest.raises(UsageError, match="takes no headers"):
        producer.produce_batch("orders", [])
    with pytest.raises(UsageError, match="has no send"):
        producer.send("orders", b"v")
    with pytest.raises(UsageError, match="type int"):
        producer.produce(topic(1), b"v", 5)
    with pytest.raises(KafkaFailure, match="could not be read"):
        producer.produce(f"nowhere-{unique}", b"v", b"k")


# What was not delivered is told by the producer; what nobody told is a hole.


def test_what_the_client_refuses_takes_no_number(kafka: EmbeddedKafka, topic: MakeTopic) -> None:
    name = topic(1)
    bare = make_bare(kafka.bootstrap, queue_buffering_max_messages=20, linger_ms=60_000)
    producer = SequencedProducer(bare, "shop")
    for _ in range(20):
        producer.produce(name, b"v", b"k")
    with pytest.raises(BufferError):
        producer.produce(name, b"v", b"k")
    with pytest.raises(TypeError):
        producer.produce(name, 3.5, b"k")
    assert producer.flush(60) == 0
    producer.produce(name, b"v", b"k")
    producer.close()
    stamps = read_stamps(kafka.bootstrap, name)[0]
    assert [(each.sequence, each.skipped) for each in stamps] == [(n, ()) for n in range(21)]


@pytest.mark.parametrize("idempotent", [True, False])
def test_what_expired_is_told_and_is_no_hole(own_kafka: EmbeddedKafka, idempotent: bool) -> None:
    name = make_topic_on(own_kafka, "orders")
    bare = make_bare(
        own_kafka.bootstrap,
        message_timeout_ms=1_500,
        enable_idempotence=idempotent,
        topic_metadata_refresh_interval_ms=500,
    )
    producer = SequencedProducer(bare, "shop")
    failed: list[Any] = []

    def report(error: Any, _: Any) -> None:
        if error is not None:
            failed.append(error)

    def send(count: int) -> None:
        for _ in range(count):
            producer.produce(name, b"v", on_delivery=report)
        assert producer.flush(60) == 0

    send(10)
    own_kafka.kill()
    send(7)
    # This one would tell it, and fails too.
    send(1)
    assert len(failed) == 8
    own_kafka.restart()
    wait_until(lambda: bare.list_topics(name, timeout=10).topics[name].error is None)
    send(1)
    send(3)
    stamps = read_stamps(own_kafka.bootstrap, name)[0]
    assert len(failed) == 8
    assert [each.sequence for each in stamps] == [*range(10), 18, 19, 20, 21]
    assert [each.skipped for each in stamps[10:]] == [((10, 17),), (), (), ()]
    assert check_all(own_kafka.bootstrap, name).list_holes() == ()


def test_kafka_python_tells_what_expired(own_kafka: EmbeddedKafka) -> None:
    name = make_topic_on(own_kafka, "orders")
    bare = kafka_python.KafkaProducer(
        bootstrap_servers=own_kafka.bootstrap,
        delivery_timeout_ms=2_000,
        request_timeout_ms=1_000,
        reconnect_backoff_max_ms=200,
    )
    producer = SequencedProducer(bare, "shop")
    producer.send(name, b"v").get(30)
    own_kafka.kill()
    futures = [producer.send(name, b"v") for _ in range(4)]
    wait_until(lambda: all(future.is_done for future in futures), what="they expire")
    assert all(future.failed() for future in futures)
    own_kafka.restart()

    def is_sent() -> bool:
        future = producer.send(name, b"v")
        wait_until(lambda: future.is_done)
        return bool(future.succeeded())

    wait_until(is_sent, what="the producer is back")
    bare.close(10)
    stamps = read_stamps(own_kafka.bootstrap, name)[0]
    assert (stamps[1].skipped[0][0], min(stamps[1].skipped[0][1], 4)) == (1, 4)
    assert check_all(own_kafka.bootstrap, name).list_holes() == ()


def test_a_loss_that_nobody_noticed_is_a_hole(own_kafka: EmbeddedKafka) -> None:
    """acks=0: the client says delivered, and the broker never looked at it."""
    name = make_topic_on(own_kafka, "orders")
    producer = SequencedProducer(make_bare(own_kafka.bootstrap, acks=0), "shop")
    errors: list[Any] = []

    def send(count: int) -> None:
        for _ in range(count):
            producer.produce(name, b"v", on_delivery=lambda error, _: errors.append(error))
        assert producer.flush(60) == 0

    def count_messages() -> int:
        return sum(map(len, read_by_partition(own_kafka.bootstrap, name, 1).values()))

    send(3)
    wait_until(lambda: count_messages() == 3, what="the first are there")
    os.kill(own_kafka.pid, signal.SIGSTOP)
    send(4)
    own_kafka.kill()
    own_kafka.restart()
    send(2)
    assert errors == [None] * 9
    wait_until(lambda: count_messages() == 5, what="the last are there")
    checker = check_all(own_kafka.bootstrap, name)
    assert checker.list_holes() == (Hole(name, 0, "shop", producer.epoch, 3, 6),)


def test_a_message_the_application_swallowed_is_a_hole(
    kafka: EmbeddedKafka, topic: MakeTopic
) -> None:
    class Swallowing(Producer):
        """Somebody's subclass with a bug."""

        def produce(self, *arguments: Any, **named: Any) -> None:
            assert named["on_delivery"], "the callback of number 0 is one too"
            if named["value"] != b"swallowed":
                super().produce(*arguments, **named)

    name = topic(1)
    bare = Swallowing({"bootstrap.servers": kafka.bootstrap})
    producer = SequencedProducer(bare, "shop")
    for value in (b"a", b"swallowed", b"swallowed", b"b"):
        producer.produce(name, value)
    assert producer.close() == 0
    checker = check_all(kafka.bootstrap, name)
    assert checker.list_holes() == (Hole(name, 0, "shop", producer.epoch, 1, 2),)


def test_an_aborted_transaction_is_told(
    kafka: EmbeddedKafka, topic: MakeTopic, unique: str
) -> None:
    name = topic(2)
    producer = SequencedProducer(make_bare(kafka.bootstrap, transactional_id=unique), "shop")
    producer.init_transactions(60)

    def send(count: int, end: Callable[[], None]) -> None:
        producer.begin_transaction()
        for _ in range(count):
            producer.produce(name, b"v", partition=0)
        end()

    def flush_and_abort() -> None:
        assert producer.flush(60) == 0  # they are in the log, and hidden
        producer.abort_transaction()

    send(3, producer.commit_transaction)
    send(4, flush_and_abort)
    send(2, producer.abort_transaction)  # still in the queue: purged
    send(2, producer.commit_transaction)
    send(1, producer.commit_transaction)
    producer.close()
    stamps = read_stamps(kafka.bootstrap, name, 2)[0]
    assert [each.sequence for each in stamps] == [0, 1, 2, 9, 10, 11]
    assert [each.skipped for each in stamps] == [(), (), (), ((3, 8),), (), ()]
    assert check_all(kafka.bootstrap, name, 2).list_holes() == ()


# Keys stay where the wrapped client puts them.

KEYS = [b"%d" % number for number in range(5_000)] + [
    f"order-\N{SNOWMAN}-{number * 7919}".encode() for number in range(5_000)
]


Placed = dict[bytes, int]


def place_with_confluent(producer: Any, topic: str) -> Placed:
    placed: Placed = {}

    def report(error: Any, message: Message) -> None:
        assert error is None
        placed[message.key() or b""] = message.partition() or 0

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
    for scalar, whole in ((place_murmur2, place_column_murmur2), (place_crc32, place_column_crc32)):
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
