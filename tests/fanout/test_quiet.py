"""A group has stopped when it is empty, and its commits do not move."""

from __future__ import annotations

import threading
import time

import pytest
from confluent_kafka import Consumer, TopicPartition

from backlogctl.fanout.quiet import GroupStillCommits, await_empty, await_quiet
from backlogctl.fanout.relay.guard import GroupGuard
from backlogctl.kafka.admin import describe_group_state
from backlogctl.kafka.clients import make_admin, make_consumer
from backlogctl.kafka.errors import GroupActive
from backlogctl.sandbox.embedded import EmbeddedKafka
from tests.conftest import MakeTopic
from tests.kafka_tools import join, properties_of, publish, set_offsets_raw, wait_until


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


def test_who_joins_while_it_is_watched_is_named(
    kafka: EmbeddedKafka, topic: MakeTopic, group: str
) -> None:
    """Also where it has committed: it does not assign its partitions itself."""
    properties, name = properties_of(kafka.bootstrap), topic(1)
    publish(properties, name, {0: 100})
    joined: list[Consumer] = []

    def look() -> None:
        looks.append(None)
        if len(looks) == 2:  # the first look is before the group was seen empty
            joined.append(join(properties, group, name, client_id="orders-7"))
            place = TopicPartition(name, 0, 7)
            joined[0].commit(offsets=[place], asynchronous=False)

    looks: list[None] = []
    with pytest.raises(GroupActive, match="orders-7 at"):
        await_quiet(properties, group, name, 1, look, within=0.5, quiet=0.6)
    joined[0].close()


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
    guard = GroupGuard(properties, group, name, 1, "r-1")
    guard.join(lambda: None)
    leaving = threading.Timer(1.0, guard.leave)
    leaving.start()
    await_quiet(properties, group, name, 1, lambda: None, within=0.2, quiet=0.1)
    leaving.join()


def test_what_stops_the_run_stops_the_waiting(
    properties: dict[str, str], topic: MakeTopic, group: str
) -> None:
    def look() -> None:
        raise InterruptedError

    with pytest.raises(InterruptedError):
        await_quiet(properties, group, topic(1), 1, look, within=5)


def test_static_members_are_waited_for_until_their_session_ends(
    kafka: EmbeddedKafka, topic: MakeTopic, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A static member that closes does not leave (KIP-345)."""
    properties, name = properties_of(kafka.bootstrap), topic(1)
    settings = {"group.id": group, "group.instance.id": "one", "session.timeout.ms": 6_000}
    member = make_consumer(properties, settings)
    member.subscribe([name])
    wait_until(lambda: (member.poll(0.1), bool(member.assignment()))[1])
    (found,) = describe_group_state(properties, group).members
    assert found.instance == "one"
    member.close()
    await_empty(make_admin(properties), group, lambda: None, within=0.5)
    monkeypatch.setattr("backlogctl.fanout.quiet.STATIC_SECONDS", 0.5)
    member = make_consumer(properties, settings)
    member.subscribe([name])
    wait_until(lambda: (member.poll(0.1), bool(member.assignment()))[1])
    with pytest.raises(GroupActive) as caught:
        await_empty(make_admin(properties), group, lambda: None, within=0.5)
    assert "session.timeout.ms" in caught.value.hint
    member.close()
