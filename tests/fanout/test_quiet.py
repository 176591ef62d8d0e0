"""A group has stopped when it is empty, and its commits do not move."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from confluent_kafka import TopicPartition

from backlog.embedded import EmbeddedKafka
from backlog.kafka.clients import make_consumer
from backlog.kafka.errors import GroupActive
from fanout.quiet import GroupStillCommits, await_quiet
from fanout.relay.guard import Guard
from tests.conftest import MakeTopic
from tests.kafka_tools import join, properties_of, publish, set_offsets_raw


@contextmanager
def committing(properties: dict[str, str], group: str, topic: str, each: float) -> Iterator[None]:
    """A consumer that assigns its partitions itself and commits by the clock."""
    stopping = threading.Event()

    def run() -> None:
        consumer = make_consumer(properties, {"group.id": group})
        consumer.assign([TopicPartition(topic, 0, 0)])
        at = 0
        while not stopping.wait(each):
            at += 1
            consumer.commit(offsets=[TopicPartition(topic, 0, at)], asynchronous=False)
        consumer.close()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join()


def test_a_group_that_is_empty_or_unknown_is_quiet(
    kafka: EmbeddedKafka, topic: MakeTopic, group: str
) -> None:
    properties, name = properties_of(kafka.bootstrap), topic(2)
    looks: list[None] = []
    await_quiet(properties, group, name, 2, lambda: looks.append(None), within=5, quiet=0.6)
    set_offsets_raw(properties, group, name, {0: 3})
    began = time.monotonic()
    await_quiet(properties, group, name, 2, lambda: looks.append(None), within=5, quiet=0.6)
    assert 0.6 <= time.monotonic() - began < 5
    assert len(looks) >= 6


def test_fault_66_a_consumer_that_assigns_its_partitions_is_noticed(
    kafka: EmbeddedKafka, topic: MakeTopic, group: str
) -> None:
    properties, name = properties_of(kafka.bootstrap), topic(2)
    publish(properties, name, {0: 100})
    with (
        committing(properties, group, name, 0.5),
        pytest.raises(GroupStillCommits, match=r"partitions 0: .* assigns"),
    ):
        await_quiet(properties, group, name, 2, lambda: None, within=5, quiet=1.6)


def test_the_members_that_do_not_leave_are_named(
    kafka: EmbeddedKafka, topic: MakeTopic, group: str
) -> None:
    properties, name = properties_of(kafka.bootstrap), topic(1)
    consumer = join(properties, group, name, client_id="orders-7")
    with pytest.raises(GroupActive, match=r"within 0\.5 s; still there: orders-7 at"):
        await_quiet(properties, group, name, 1, lambda: None, within=0.5, quiet=0.1)
    leaving = threading.Timer(0.5, consumer.close)
    leaving.start()
    await_quiet(properties, group, name, 1, lambda: None, within=10, quiet=0.1)
    leaving.join()


def test_a_guard_of_a_run_that_died_is_waited_for_longer(
    kafka: EmbeddedKafka, topic: MakeTopic, group: str
) -> None:
    properties, name = properties_of(kafka.bootstrap), topic(1)
    guard = Guard(properties, group, name, 1, "r-1")
    guard.join(lambda: None)
    leaving = threading.Timer(1.0, guard.leave)
    leaving.start()
    await_quiet(properties, group, name, 1, lambda: None, within=0.2, quiet=0.1)
    leaving.join()


def test_what_stops_the_run_stops_the_waiting(
    kafka: EmbeddedKafka, topic: MakeTopic, group: str
) -> None:
    def look() -> None:
        raise InterruptedError

    with pytest.raises(InterruptedError):
        await_quiet(properties_of(kafka.bootstrap), group, topic(1), 1, look, within=5)
