"""What of the temporary topic is unread, by reading it (protocol P4.8).

Lag is no test: each transaction leaves a control record, which keeps it above zero for ever.
"""

from __future__ import annotations

from collections.abc import Mapping

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from backlog.clock import Deadline
from backlog.errors import ClusterUnreachable
from backlog.kafka.admin import committed_offsets, list_offsets
from backlog.kafka.clients import Admin, assign_partitions, find_addresses, make_consumer
from backlog.kafka.errors import translate

COUNT_SECONDS = 3600.0
_SETTINGS: Mapping[str, object] = {
    "enable.partition.eof": True,
    "isolation.level": "read_committed",
    "fetch.wait.max.ms": 50,
}


def find_unread(
    admin: Admin,
    properties: Mapping[str, str],
    topic: str,
    group: str,
    partitions: int,
    limit: Deadline | None = None,
) -> dict[int, int]:
    """The first data record in `[committed, LSO)` of each partition that has one.

    Empty when the group has read every committed message.

    Raises:
        ClusterUnreachable, KafkaFailure: it is not known.
    """
    deadline = limit or Deadline(60.0)
    commits = committed_offsets(
        admin, group, topic, range(partitions), deadline, require_stable=True
    )
    ends = list_offsets(admin, topic, range(partitions), "latest", "read_committed", deadline)
    starts = {number: commits[number] or 0 for number in ends}
    lagging = {number: at for number, at in starts.items() if at < ends[number]}
    return dict(_read(properties, topic, lagging, ends, deadline, first_only=True))


def count_records(
    properties: Mapping[str, str],
    topic: str,
    ends: Mapping[int, int],
    limit: Deadline | None = None,
) -> dict[int, int]:
    """Committed data records of each partition from its beginning up to `ends`.

    Raises:
        ClusterUnreachable, KafkaFailure: it was not read to the end.
    """
    starts = {number: 0 for number, end in ends.items() if end > 0}
    deadline = limit or Deadline(COUNT_SECONDS)
    counted = _read(properties, topic, starts, ends, deadline, first_only=False)
    return {**dict.fromkeys(ends, 0), **dict(counted)}


def _read(
    properties: Mapping[str, str],
    topic: str,
    starts: Mapping[int, int],
    ends: Mapping[int, int],
    limit: Deadline,
    *,
    first_only: bool,
) -> list[tuple[int, int]]:
    """(partition, its first data offset, or how many data records) up to the ends."""
    if not starts:
        return []
    subject = f"topic {topic}"
    firsts: dict[int, int] = {}
    counts = dict.fromkeys(starts, 0)
    open_ones = set(starts)
    consumer = make_consumer(properties, _SETTINGS)
    try:
        assign_partitions(consumer, [TopicPartition(topic, p, at) for p, at in starts.items()])
        while open_ones:
            if limit.expired:
                raise ClusterUnreachable(
                    f"could not read it to the end within {limit.seconds:g} s",
                    subject=subject,
                    hint=f"check the brokers at {find_addresses(properties)}",
                )
            for message in consumer.consume(5_000, 0.2):
                number, offset, error = message.partition(), message.offset(), message.error()
                if error is not None and error.code() in (
                    KafkaError._TRANSPORT,
                    KafkaError._ALL_BROKERS_DOWN,
                ):
                    continue
                if error is not None and error.code() != KafkaError._PARTITION_EOF:
                    raise translate(error, subject, "read it")
                if number is None or offset is None or number not in open_ones:
                    continue
                if error is None and offset < ends[number]:
                    counts[number] += 1
                    firsts.setdefault(number, offset)
                    if first_only:
                        open_ones.discard(number)
                        consumer.pause([TopicPartition(topic, number)])
                if offset + (error is None) >= ends[number]:
                    open_ones.discard(number)
        chosen = firsts if first_only else counts
        return sorted(chosen.items())
    except KafkaException as error:
        raise translate(error, subject, "read it") from error
    finally:
        consumer.close()
