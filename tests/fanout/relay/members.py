"""Consumers of the original group, as visitors of the relay's tests."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from confluent_kafka import Consumer, Message

from backlogctl.kafka.clients import make_consumer
from tests.fanout.relay.doing import RelayWorld
from tests.kafka_tools import wait_until


def drain_as_member(world: RelayWorld, count: int, **settings: str) -> list[Message]:
    """A member of the group reads `count` messages from its commits on, commits them, leaves."""
    with member_of(world, **settings) as consumer:
        return read_on(consumer, count)


@contextmanager
def member_of(world: RelayWorld, **settings: str) -> Iterator[Consumer]:
    """A consumer of the original group, as the launcher's would be."""
    named = {name.replace("_", "."): value for name, value in settings.items()}
    consumer = make_consumer(
        world.properties, {"group.id": world.group, "fetch.wait.max.ms": 50, **named}
    )
    consumer.subscribe([world.source])
    try:
        yield consumer
    finally:
        consumer.close()


def await_joined(consumer: Consumer) -> None:
    """Until it has partitions."""

    def has_partitions() -> bool:
        consumer.poll(0.05)
        return bool(consumer.assignment())

    wait_until(has_partitions, what="it has partitions")


def read_on(consumer: Consumer, count: int, seconds: float = 90.0) -> list[Message]:
    """Reads `count` messages and commits them."""
    found: list[Message] = []
    end = time.monotonic() + seconds
    while len(found) < count:
        assert time.monotonic() < end, f"read {len(found)} of {count}"
        message = consumer.poll(0.1)
        if message is not None and message.error() is None:
            found.append(message)
    last = {message.partition(): message for message in found}
    for message in last.values():
        consumer.commit(message=message, asynchronous=False)
    return found
