"""Messages of ranges of a topic, to their end: for what must be read whole."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Any

from confluent_kafka import KafkaError, Message, TopicPartition

from backlogctl.clock import Deadline
from backlogctl.errors import ClusterUnreachable
from backlogctl.kafka.clients import Properties, assign_partitions, find_addresses, make_consumer
from backlogctl.kafka.errors import translate

_AT_ONCE = 5_000
# Without a message for so long, nothing more comes.
_SECONDS = 60.0


def read_ranges(
    properties: Properties,
    topic: str,
    starts: Mapping[int, int],
    ends: Mapping[int, int],
    doing: str,
    *,
    isolation: str = "read_committed",
) -> Generator[Message]:
    """What stands in `[start, end)` of each partition, each partition in its order.

    What retention removes meanwhile is an error, and so is an end that an open transaction hides:
    nothing is left out in silence.

    Args:
        doing: to follow "could not": `read the canary back`.
    """
    pending = {p: ends[p] for p, at in starts.items() if at < ends[p]}
    if not pending:
        return
    consumer = make_consumer(
        properties,
        {"enable.partition.eof": True, "isolation.level": isolation, "fetch.wait.max.ms": 20},
    )
    try:
        assign_partitions(consumer, [TopicPartition(topic, p, starts[p]) for p in pending])
        limit = Deadline(_SECONDS)
        while pending:
            messages = consumer.consume(_AT_ONCE, limit.remaining(0.2))
            if messages:
                limit = Deadline(_SECONDS)
            elif limit.expired:
                raise ClusterUnreachable(
                    f"could not {doing}: no answer for {_SECONDS:g} s from "
                    f"{find_addresses(properties)}",
                    subject=f"topic {topic}",
                    hint="check the brokers, then try again",
                )
            for message in messages:
                if _settle(message, pending, f"topic {topic}", doing):
                    yield message
    finally:
        consumer.close()


def _settle(message: Message, pending: dict[int, int], subject: str, doing: str) -> bool:
    """Whether it is a message of a range; takes partitions away that are read."""
    error = message.error()
    partition: Any = message.partition()
    offset: Any = message.offset()
    if error is not None and error.code() != KafkaError._PARTITION_EOF:
        raise translate(error, f"{subject}[{partition}]", doing)
    if partition not in pending:
        return False
    is_inside = error is None and offset < pending[partition]
    reached = offset + 1 if error is None else offset
    if reached >= pending[partition]:
        del pending[partition]
    return is_inside
