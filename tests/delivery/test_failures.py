"""What was not delivered is told by the producer; what nobody told is a hole."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import kafka as kafka_python
import pytest
from confluent_kafka import Producer

from backlogctl_delivery.sequenced.checker import Hole
from backlogctl_delivery.sequenced.producer import SequencedProducer
from sandbox.embedded import EmbeddedKafka
from tests.conftest import MakeTopic
from tests.delivery.logs import check_all, make_bare, make_topic_on, read_by_partition, read_stamps
from tests.kafka_tools import wait_until


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
