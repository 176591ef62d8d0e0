"""The first unread messages of each partition: when they were written, and where keys lie."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, KafkaError, KafkaException, TopicPartition

from backlog.clock import Deadline
from backlog.kafka.clients import Properties, assign_partitions, make_consumer
from backlog.kafka.errors import translate, unwrap

# Nothing more comes from the partition: its end, or the offset has expired meanwhile.
_ENDS = (KafkaError._PARTITION_EOF, KafkaError.OFFSET_OUT_OF_RANGE, KafkaError._AUTO_OFFSET_RESET)


@dataclass(frozen=True, slots=True)
class Peeked:
    """One message: its offset, key and time; None where it has none."""

    offset: int
    key: bytes | None
    at: datetime | None


def peek_at(
    properties: Properties,
    topic: str,
    starts: Mapping[int, int],
    each: int,
    deadline: Deadline,
) -> dict[int, tuple[Peeked, ...]]:
    """At most `each` committed messages of each partition, from its offset on.

    A partition that does not answer in time has none: what is read here is for information only.

    Raises:
        ClusterUnreachable, KafkaFailure.
    """
    found: dict[int, list[Peeked]] = {partition: [] for partition in starts}
    if not starts:
        return {}
    subject = f"topic {topic}"
    consumer = make_consumer(
        properties,
        {"enable.partition.eof": True, "fetch.wait.max.ms": 100, "fetch.message.max.bytes": 65536},
    )
    try:
        places = [TopicPartition(topic, p, at) for p, at in sorted(starts.items())]
        assign_partitions(consumer, places, deadline.remaining(30.0))
        undecided = set(starts)
        while undecided and not deadline.expired:
            message = consumer.poll(deadline.remaining(0.5))
            if message is None:
                continue
            partition, offset, error = message.partition(), message.offset(), message.error()
            if error is not None and error.code() not in _ENDS:
                if error.fatal() or not error.retriable():
                    raise translate(error, subject, "read the oldest unread messages")
                continue
            if partition is None or partition not in undecided:
                continue
            if error is None and offset is not None:
                kind, at = message.timestamp()
                known = kind != TIMESTAMP_NOT_AVAILABLE and at > 0
                time = _to_time(at) if known else None
                found[partition].append(Peeked(offset, message.key(), time))
            if error is not None or len(found[partition]) >= each:
                undecided.discard(partition)
                consumer.pause([TopicPartition(topic, partition)])
    except KafkaException as error:
        raise translate(unwrap(error) or error, subject, "read the oldest messages") from error
    finally:
        consumer.close()
    return {partition: tuple(messages) for partition, messages in found.items()}


def _to_time(milliseconds: int) -> datetime | None:
    """None for what is no time: producers set it, some in microseconds."""
    try:
        return datetime.fromtimestamp(milliseconds / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return None
