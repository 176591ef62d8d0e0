"""A healthy, busy group under moving retention, sampled thousands of times: no gap, ever.

And the proof that the test can fail: the same group, sampled in the wrong order, seems to lose.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from confluent_kafka import KafkaException, TopicPartition

from backlogctl.errors import BacklogError
from backlogctl.kafka import admin as verbs
from backlogctl.kafka.clients import make_admin, make_producer
from backlogctl.monitoring.offsets.gaps import OffsetFinding, Suspicion, find_gaps
from backlogctl.monitoring.offsets.history import StreamHistory, advance_marks
from backlogctl.monitoring.offsets.sampler import take_sample
from backlogctl.sandbox.embedded import EmbeddedKafka
from backlogctl.values import Gap
from tests.conftest import MakeTopic
from tests.kafka_tools import StreamStub, join, properties_of, wait_until

SAMPLES = 2000
LOG_STARTS = 200  # fewer, and it was no moving log start that was sampled
LONG = 600.0  # seconds, on a busy machine
FULL = 10_000  # messages that wait to be sent
WRONG_ORDER_TRIES = 20_000


@contextmanager
def run_busy_group(properties: dict[str, str], topic: str, group: str) -> Iterator[list[str]]:
    """A producer, a consumer that commits, and a log start that follows just below its commits."""
    stop, problems = threading.Event(), list[str]()
    committed: dict[int, int] = {}
    ready = threading.Event()

    def produce() -> None:
        producer = make_producer(properties, linger_ms="1")
        number = 0
        while not stop.is_set():
            if len(producer) > FULL:  # the broker has no time for more
                producer.poll(0.1)
                continue
            for partition in range(3):
                producer.produce(topic, b"value", str(number).encode(), partition)
            number += 1
            producer.poll(0.001)
        producer.flush(60)

    def consume() -> None:
        consumer = join(properties, group, topic)
        while not stop.is_set():
            messages = consumer.consume(200, 0.02)
            ends: dict[int, int] = {}
            for message in messages:
                partition, offset = message.partition(), message.offset()
                if message.error() or partition is None or offset is None:
                    problems.append(str(message.error()))
                    continue
                ends[partition] = offset + 1
            if ends:
                offsets = [TopicPartition(topic, p, at) for p, at in ends.items()]
                consumer.commit(offsets=offsets, asynchronous=False)
                committed.update(ends)
                if len(committed) == 3:
                    ready.set()
        consumer.close()

    def expire() -> None:
        admin = make_admin(properties)
        while not ready.wait(0.1) and not stop.is_set():
            pass
        while not stop.is_set():
            wanted = [TopicPartition(topic, p, at) for p, at in committed.items()]
            for future in admin.delete_records(wanted).values():
                future.result(120)

    def guard(work: Callable[[], None]) -> None:
        try:
            work()
        except (BacklogError, KafkaException, AssertionError, TimeoutError) as error:
            problems.append(f"{work.__name__}: {error!r}")

    threads = [threading.Thread(target=guard, args=(w,)) for w in (produce, consume, expire)]
    for thread in threads:
        thread.start()
    try:
        wait_until(lambda: ready.is_set() or problems, 120, "the group commits")
        assert not problems
        yield problems
    finally:
        stop.set()
        for thread in threads:
            thread.join(120)


@pytest.mark.timeout(LONG)
def test_a_healthy_group_under_moving_retention_has_no_gap(
    kafka: EmbeddedKafka, topic: MakeTopic, group: str
) -> None:
    properties, name = properties_of(kafka.bootstrap), topic(partitions=3)
    stream, admin = StreamStub(name, group), make_admin(properties)
    gaps: list[Gap] = []
    alarms: list[OffsetFinding] = []
    lows: set[int] = set()
    marks = StreamHistory()
    with run_busy_group(properties, name, group) as problems:
        started, taken = time.monotonic(), 0
        while taken < SAMPLES or (
            len(lows) <= LOG_STARTS and time.monotonic() < started + LONG / 2
        ):
            taken += 1
            sample = take_sample(stream, admin)
            judged = find_gaps(marks, sample)
            marks = advance_marks(marks, sample)
            gaps += judged.gaps
            alarms += [f for f in judged.findings if f.kind is not Suspicion.POSSIBLE_EXPIRED]
            lows.add(sample.partitions[0].low)
        print(f"{taken} samples in {time.monotonic() - started:.1f} s, {len(lows)} log starts")
    assert problems == []
    assert gaps == []
    assert alarms == []
    assert len(lows) > LOG_STARTS, "the log start moved all the time, or this proves nothing"


@pytest.mark.timeout(LONG)
def test_in_the_wrong_order_the_same_group_seems_to_lose(
    kafka: EmbeddedKafka, topic: MakeTopic, group: str
) -> None:
    properties, name = properties_of(kafka.bootstrap), topic(partitions=3)
    admin = make_admin(properties)
    with run_busy_group(properties, name, group):
        for _ in range(WRONG_ORDER_TRIES):
            committed = verbs.committed_offsets(admin, group, name, range(3))
            low = verbs.list_offsets(admin, name, range(3), "earliest")
            if any((committed[p] or 0) < low[p] for p in range(3)):
                return  # a loss that never happened
    pytest.fail("the wrong order was never wrong: the busy group is not busy enough")
