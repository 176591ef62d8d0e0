"""How a demo reads topics: everything that is committed in one, and how far a group has come."""

from __future__ import annotations

import time

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from backlog.clock import Deadline
from backlog.errors import KafkaFailure
from backlog.kafka.admin import committed_offsets, list_offsets
from backlog.kafka.clients import Properties, make_admin

_TICK, _PATIENCE_SECONDS = 0.05, 60.0


def read_topic(client: Properties, topic: str, partitions: int) -> list[Message]:
    """Every committed message; those of a partition in their order."""
    reader = Consumer(
        {
            **client,
            "group.id": "demo-audit",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "log_level": 0,
        }
    )
    # Assigned, never committed: the audit does not become a group that reads the topic.
    reader.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
    found: list[Message] = []
    open_partitions = set(range(partitions))
    try:
        while open_partitions:
            for message in reader.consume(2000, timeout=1.0):
                error = message.error()
                if error is None:
                    found.append(message)
                elif error.code() == KafkaError._PARTITION_EOF:
                    open_partitions.discard(message.partition() or 0)
                else:
                    raise RuntimeError(str(error))
    finally:
        reader.close()
    return found


def await_handled(
    client: Properties, topic: str, group: str, partitions: int, *, slack: int = 0
) -> None:
    """Waits until a group has committed everything that is in its topic.

    Args:
        slack: offsets at the end of each partition that hold no message: the control record of a
            transaction is never committed.

    Raises:
        KafkaFailure: it has not after a minute.
    """
    admin, limit, numbers = make_admin(client), Deadline(_PATIENCE_SECONDS), range(partitions)
    while True:
        ends = list_offsets(admin, topic, numbers, "latest", "read_committed")
        commits = committed_offsets(admin, group, topic, numbers)
        if all((commits[number] or 0) + slack >= ends[number] for number in numbers):
            return
        if limit.expired:
            raise KafkaFailure(
                f"not all of {topic} is handled after {_PATIENCE_SECONDS:g} s",
                subject=f"group {group}",
            )
        time.sleep(_TICK)
