"""A group has stopped when it is empty, and its commits do not move."""

from __future__ import annotations

import threading
import time

import pytest
from confluent_kafka import TopicPartition

from backlog.kafka.clients import make_consumer
from backlog.kafka.errors import GroupActive
from fanout.quiet import GroupStillCommits, await_quiet
from fanout.relay.guard import Guard
from sandbox.embedded import EmbeddedKafka
from tests.conftest import MakeTopic
from tests.kafka_tools import join, properties_of, publish, set_offsets_raw


def test_a_group_that_is_empty_or_unknown_is_quiet(
    kafka: EmbeddedKafka, topic: MakeTopic, group: str
) -> None:
    properties, name = properties_of(kafka.bootstrap), topic(2)
    began = time.monotonic()
    assert await_counted(properties, group, name) >= 3
    set_offsets_raw(properties, group, name, {0: 3})
    # One look before, one after, one for each quarter of a second: what it waits for is not 5.5 s.
    assert 3 <= await_counted(properties, group, name) <= 5
    assert time.monotonic() - began >= 1.2


def await_counted(properties: dict[str, str], group: str, topic: str) -> int:
    """Waits for 0.6 s of quiet; how often it looked whether it has to stop."""
    looks: list[None] = []
    await_quiet(properties, group, topic, 2, lambda: looks.append(None), within=90, quiet=0.6)
    return len(looks)


def test_fault_66_a_consumer_that_assigns_its_partitions_is_noticed(
    kafka: EmbeddedKafka, topic: MakeTopic, group: str
) -> None:
    properties, name = properties_of(kafka.bootstrap), topic(2)
    publish(properties, name, {0: 100})
    consumer = make_consumer(properties, {"group.id": group})
    place = TopicPartition(name, 0, 0)
    consumer.assign([place])

    def go_on() -> None:
        """It commits while it is waited for."""
        place.offset += 1
        consumer.commit(offsets=[place], asynchronous=False)

    with pytest.raises(GroupStillCommits, match=r"partitions 0: .* assigns"):
        await_quiet(properties, group, name, 2, go_on, within=90, quiet=2.0)
    consumer.close()


def test_the_members_that_do_not_leave_are_named(
    kafka: EmbeddedKafka, topic: MakeTopic, group: str
) -> None:
    properties, name = properties_of(kafka.bootstrap), topic(1)
    consumer = join(properties, group, name, client_id="orders-7")
    with pytest.raises(GroupActive, match=r"within 0\.5 s; still there: orders-7 at"):
        await_quiet(properties, group, name, 1, lambda: None, within=0.5, quiet=0.1)
    leaving = threading.Timer(0.5, consumer.close)
    leaving.start()
    await_quiet(properties, group, name, 1, lambda: None, within=90, quiet=0.1)
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
