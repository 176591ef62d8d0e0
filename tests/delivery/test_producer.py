"""Messages are numbered without a gap, whoever sends them, and nothing else changes."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from typing import Any, cast

import kafka as kafka_python
import pytest
from confluent_kafka import Producer, SerializingProducer

from backlog.errors import KafkaFailure, UsageError
from backlogctl_delivery.sequenced.producer import SequencedProducer
from backlogctl_delivery.sequenced.sequence import SKIPPED, Stamp, read_stamp
from backlogctl_delivery.stamps import find_value
from sandbox.embedded import EmbeddedKafka
from tests.conftest import MakeTopic
from tests.delivery.logs import check_all, make_bare, read_by_partition, read_stamps
from tests.kafka_tools import wait_until


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
            Stamp("shop-1", producer.epoch, partition, n) for n in range(len(messages))
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

    threads = [threading.Thread(target=send, args=(producers[n % 2],)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
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
    assert find_value(headers, "backlog-sequence") == b"second:%d:0:0" % second.epoch


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


def test_importing_takes_neither_client_nor_pandas() -> None:
    code = (
        "import sys, backlogctl_delivery.sequenced.producer, backlogctl_delivery.sequenced.checker\n"
        "heavy = ('pyspark', 'pandas', 'pyarrow', 'numpy', 'kafka', 'confluent_kafka')\n"
        "print([name for name in heavy if name in sys.modules])"
    )
    made = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert made.stdout.strip() == "[]"
