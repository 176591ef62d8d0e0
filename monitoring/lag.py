"""What is unread, what is lost, and what of it holds data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from backlog.clock import Deadline
from backlog.errors import ClusterUnreachable
from backlog.kafka.clients import Properties, find_addresses, make_consumer
from backlog.kafka.errors import translate, unwrap
from backlog.values import Gap, GapState, PartitionSample, Sample

# A reader that commits after each message stays at most this far behind by control records.
TAIL_AT_MOST = 2
# How fast a group is, for the plan of an expansion, is told from the samples of this window.
RATE_WINDOW = timedelta(minutes=15)


def find_end(part: PartitionSample, isolation: str) -> int:
    """Where the group's reading ends: the LSO if it reads committed, else the high watermark."""
    return part.lso if isolation == "read_committed" else part.high


def count_lag(part: PartitionSample, isolation: str) -> int | None:
    """Unread offsets that still exist; None without a commit. What expired is loss, not lag."""
    if part.committed is None:
        return None
    return max(0, find_end(part, isolation) - max(part.committed, part.low))


def read_tails(
    properties: Properties,
    sample: Sample,
    isolation: str,
    deadline: Deadline | None = None,
) -> frozenset[int]:
    """Partitions whose small lag (at most 2) holds no data, only control or aborted records.

    Raises:
        ClusterUnreachable, KafkaFailure.
    """
    limit = deadline or Deadline(10.0)
    starts: dict[int, int] = {}
    for part in sample.partitions:
        lag = count_lag(part, isolation)
        if part.committed is not None and lag and lag <= TAIL_AT_MOST:
            starts[part.partition] = max(part.committed, part.low)
    if not starts:
        return frozenset()
    consumer = make_consumer(
        properties,
        {
            "enable.partition.eof": True,
            "isolation.level": isolation,
            "auto.offset.reset": "earliest",
            "fetch.wait.max.ms": 100,
        },
    )
    subject = f"topic {sample.topic}"
    try:
        consumer.assign([TopicPartition(sample.topic, p, at) for p, at in starts.items()])
        undecided: set[int | None] = set(starts)
        without_data: set[int] = set()
        while undecided:
            if limit.expired:
                raise ClusterUnreachable(
                    f"could not read the tail within {limit.seconds:g} s",
                    subject=subject,
                    hint=f"check the brokers at {find_addresses(properties)}",
                )
            message = consumer.poll(limit.remaining(0.5))
            if message is None:
                continue
            error = message.error()
            if error is None:
                undecided.discard(message.partition())
            elif error.code() == KafkaError._PARTITION_EOF:
                partition = message.partition()
                if partition is not None and partition in undecided:
                    undecided.discard(partition)
                    without_data.add(partition)
            elif error.fatal() or error.code() not in (
                KafkaError._ALL_BROKERS_DOWN,
                KafkaError._TRANSPORT,
            ):
                raise translate(error, subject, "read the tail")
        return frozenset(without_data)
    except KafkaException as error:
        raise translate(unwrap(error) or error, subject, "read the tail") from error
    finally:
        consumer.close()


def read_size_limit(config: Mapping[str, str]) -> int | None:
    """`retention.bytes` of a topic's settings; None where size deletes nothing."""
    text = config.get("retention.bytes", "-1")
    if "delete" not in config.get("cleanup.policy", "delete") or int(text) < 0:
        return None
    return int(text)


def read_retention(config: Mapping[str, str]) -> timedelta | None:
    """`retention.ms` of a topic's settings; None where time deletes nothing."""
    text = config.get("retention.ms", "-1")
    if "delete" not in config.get("cleanup.policy", "delete") or int(text) < 0:
        return None
    # "For ever" is often written as the largest long, which no timedelta holds.
    return timedelta(milliseconds=min(int(text), 10**14))


def count_lost(part: PartitionSample, sample: Sample, gaps: Iterable[Gap]) -> int | None:
    """Offsets in gaps that are neither verified nor waived, and what expired since.

    None where nobody knows: there is no commit, and no gap.
    """
    place = (sample.group, sample.topic_id, part.partition)
    ours = [gap for gap in gaps if (gap.group, gap.topic_id, gap.partition) == place]
    settled = (GapState.VERIFIED, GapState.WAIVED)
    recorded = sum(gap.count or 0 for gap in ours if gap.state not in settled)
    if part.committed is None:
        # Without a commit nobody knows; what the ledger has is known to be lost at least.
        return recorded or None
    # What expired below the commit and is in no gap yet.
    cursor, fresh = part.committed, 0
    ranges = [(g.start, g.end) for g in ours if g.start is not None and g.end is not None]
    for start, end in sorted(ranges):
        if start >= part.low:
            break
        fresh += max(0, start - cursor)
        cursor = max(cursor, end)
    return recorded + fresh + max(0, part.low - cursor)
