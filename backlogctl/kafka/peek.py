"""The first unread messages of each partition: when they were written, and where keys lie."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import cast

from confluent_kafka import (
    TIMESTAMP_NOT_AVAILABLE,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)

from backlogctl.clock import Deadline, read_millis
from backlogctl.kafka.clients import Admin, Connection, assign_partitions, make_consumer
from backlogctl.kafka.errors import translate
from backlogctl_delivery.kafka import unwrap
from backlogctl_delivery.stamps import Headers

# Nothing more comes from the partition: its end, or the offset has expired meanwhile.
_ENDS = (KafkaError._PARTITION_EOF, KafkaError.OFFSET_OUT_OF_RANGE, KafkaError._AUTO_OFFSET_RESET)

_SETTINGS = {
    "enable.partition.eof": True,
    # The end of a partition is told by a fetch that has waited so long for more.
    "fetch.wait.max.ms": 10,
    "fetch.message.max.bytes": 65536,
    # A partition with an answer is not fetched further.
    "queued.min.messages": 1,
}


@dataclass(frozen=True, slots=True)
class Peeked:
    """One message: its offset, key and time, None where it has none; its headers; its size is that
    of key, value and headers in bytes, before compression; `at_ms` is its timestamp as it is, which
    may be no time; `value` its bytes."""

    offset: int
    key: bytes | None
    at: datetime | None
    headers: Headers = ()
    size: int = 0
    at_ms: int | None = None
    value: bytes | None = None


def peek_at(
    connection: Connection,
    topic: str,
    starts: Mapping[int, int],
    each: int,
    deadline: Deadline,
    *,
    isolation: str = "read_committed",
) -> dict[int, tuple[Peeked, ...]]:
    """At most `each` committed messages of each partition, from its offset on.

    A partition that does not answer in time has none: what is read here is for information only.

    Args:
        connection: an admin client keeps its consumer for the next time.
        isolation: `read_uncommitted` gives those of open and aborted transactions too; then
            `connection` must be properties.
    """
    if not starts:
        return {}
    subject = f"topic {topic}"
    try:
        with _open_consumer(connection, isolation) as consumer:
            places = [TopicPartition(topic, p, at) for p, at in sorted(starts.items())]
            assign_partitions(consumer, places, deadline.remaining(30.0))
            return _read(consumer, topic, starts, each, deadline)
    except KafkaException as error:
        raise translate(unwrap(error) or error, subject, "read the oldest messages") from error


def _read(
    consumer: Consumer, topic: str, partitions: Iterable[int], each: int, deadline: Deadline
) -> dict[int, tuple[Peeked, ...]]:
    found: dict[int, list[Peeked]] = {partition: [] for partition in partitions}
    undecided = set(found)
    while undecided and not deadline.expired:
        message = consumer.poll(deadline.remaining(0.5))
        # A consumer that is kept may still tell of what it read before.
        if message is None or message.topic() not in (topic, None):
            continue
        partition, offset, error = message.partition(), message.offset(), message.error()
        if error is not None and error.code() not in _ENDS:
            if error.fatal() or not error.retriable():
                raise translate(error, f"topic {topic}", "read the oldest unread messages")
            continue
        if partition is None or partition not in undecided:
            continue
        if error is None and offset is not None:
            kind, at = message.timestamp()
            known = kind != TIMESTAMP_NOT_AVAILABLE and at > 0
            headers = cast(Headers, message.headers() or ())
            found[partition].append(
                Peeked(
                    *(offset, message.key(), read_millis(at) if known else None, headers),
                    _count_bytes(message, headers),
                    at if known else None,
                    message.value(),
                )
            )
        if error is not None or len(found[partition]) >= each:
            undecided.discard(partition)
            consumer.pause([TopicPartition(topic, partition)])
    return {partition: tuple(messages) for partition, messages in found.items()}


@contextmanager
def _open_consumer(connection: Connection, isolation: str) -> Iterator[Consumer]:
    if isinstance(connection, Admin):
        consumer = connection.keep_consumer(_SETTINGS)
        try:
            yield consumer
        finally:
            # A partition stays paused when it is assigned again.
            consumer.resume(consumer.assignment())
            consumer.unassign()
        return
    consumer = make_consumer(connection, {**_SETTINGS, "isolation.level": isolation})
    try:
        yield consumer
    finally:
        consumer.close()


def _count_bytes(message: Message, headers: Headers) -> int:
    parts = [message.key(), message.value(), *(part for header in headers for part in header)]
    return sum(len(part) for part in parts if part)
