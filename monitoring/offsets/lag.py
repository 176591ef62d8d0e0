"""Lag, loss, and whether the last unread offsets hold data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from backlogctl.clock import Deadline
from backlogctl.errors import BacklogError
from backlogctl.kafka.clients import Properties, make_consumer
from backlogctl.kafka.errors import translate
from backlogctl.monitoring.offsets.history import is_memberless
from backlogctl.values import Certainty, Gap, GapState, PartitionSample, Sample
from backlogctl_delivery.kafka import is_retriable, unwrap

# A reader that commits after each message stays at most this far behind by control records.
TAIL_AT_MOST = 2
# (topic, partition, offset)
TopicOffset = tuple[str, int, int]
# The plan of an expansion measures the group's speed over the samples of this window.
RATE_WINDOW = timedelta(minutes=15)


@dataclass(frozen=True, slots=True)
class EmptyReading:
    """Which places were found to hold no data.

    Attributes:
        found: by topic and partition, whether no data lies there; those not found out are missing.
        denied: by topic why it may not be read.
    """

    found: Mapping[tuple[str, int], bool] = field(default_factory=dict)
    denied: Mapping[str, BacklogError] = field(default_factory=dict)


def find_partition_end(part: PartitionSample, isolation: str) -> int:
    """Where the group's reading ends: the LSO if it reads committed, else the high watermark.

    Of a group whose isolation is unknown it is the high watermark, unless its commit is exactly the
    LSO: then it has read all that a reader of committed data can (decision 0035).
    """
    is_at_end = isolation == "unknown" and part.committed == part.lso
    return part.lso if is_at_end or isolation == "read_committed" else part.high


def count_lag(part: PartitionSample, isolation: str) -> int | None:
    """Unread offsets that still exist; None without a commit, or with one beyond the end of the
    log: how much is unread is not known then. What expired is loss, not lag.
    """
    if part.committed is None or part.committed > part.high:
        return None
    return max(0, find_partition_end(part, isolation) - max(part.committed, part.low))


def read_tails(
    properties: Properties,
    sample: Sample,
    isolation: str,
    deadline: Deadline | None = None,
) -> EmptyReading:
    """Of the partitions whose lag is small (at most 2), whether it holds no data, only control or
    aborted records.

    Raises:
        ClusterUnreachable, KafkaFailure.
    """
    places = [
        (sample.topic, part.partition, max(part.committed, part.low))
        for part in sample.partitions
        if part.committed is not None and 0 < (count_lag(part, isolation) or 0) <= TAIL_AT_MOST
    ]
    subject = f"topic {sample.topic}"
    return read_empty(properties, places, deadline or Deadline(10.0), subject, isolation)


def read_empty(
    properties: Properties,
    places: Sequence[TopicOffset],
    limit: Deadline,
    subject: str,
    isolation: str = "read_committed",
) -> EmptyReading:
    """By topic and partition whether no data lies at the offset or above.

    What is not found out within the limit is left out. Of each partition only one place is read.

    Raises:
        ClusterUnreachable, KafkaFailure.
    """
    starts = {(topic, partition): offset for topic, partition, offset in places}
    if not starts:
        return EmptyReading()
    found: dict[tuple[str, int], bool] = {}
    denied: dict[str, BacklogError] = {}
    undecided = set(starts)
    consumer = make_consumer(
        properties,
        {
            "enable.partition.eof": True,
            "isolation.level": isolation,
            "auto.offset.reset": "earliest",
            "fetch.wait.max.ms": 100,
            "fetch.message.max.bytes": 65536,
        },
    )
    try:
        consumer.assign([TopicPartition(*place, at) for place, at in starts.items()])
        while undecided and not limit.expired:
            message = consumer.poll(limit.remaining(0.5))
            if message is None:
                continue
            topic, partition, error = message.topic(), message.partition(), message.error()
            if error is not None and error.fatal():
                raise translate(error, subject, "read the tail")
            if topic is None or partition is None or (topic, partition) not in undecided:
                continue
            if error is None or error.code() == KafkaError._PARTITION_EOF:
                found[topic, partition] = error is not None
            elif error.code() == KafkaError._TRANSPORT or is_retriable(error):
                continue
            elif error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                denied[topic] = translate(error, f"topic {topic}", "read the tail")
            undecided.discard((topic, partition))
    except KafkaException as error:
        raise translate(unwrap(error) or error, subject, "read the tail") from error
    finally:
        consumer.close()
    return EmptyReading(found, denied)


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


@dataclass(frozen=True, slots=True)
class LostCount:
    """Offsets of one partition that are gone, and not put back.

    Attributes:
        lost: at most; None where unknown: there is no commit, and no gap.
        likely: about how many of them, by the group's pace.
        undecided: more that may be in the client's buffer, or were passed and perhaps read.
        possible: more that were skipped, if they were not read.
    """

    lost: int | None
    likely: int | None
    undecided: int
    possible: int


def count_lost(
    part: PartitionSample, sample: Sample, gaps: Iterable[Gap], undecided: int | None = None
) -> LostCount:
    """What is in gaps that are neither verified nor waived, and what expired since. What lies in
    an archive is not lost.

    Args:
        undecided: of an observation; None where there was none: what expired in front of a group
            with members counts as undecided then.
    """
    place = (sample.group, sample.topic_id, part.partition)
    ours = [gap for gap in gaps if (gap.group, gap.topic_id, gap.partition) == place]
    settled = (GapState.VERIFIED, GapState.WAIVED)
    open_gaps = [gap for gap in ours if gap.state not in settled and gap.archive is None]
    certain = [gap for gap in open_gaps if gap.certainty is not Certainty.POSSIBLE]
    possible = sum(gap.count or 0 for gap in open_gaps if gap.certainty is Certainty.POSSIBLE)
    lost = sum(gap.count or 0 for gap in certain)
    likely = sum((gap.count or 0) if gap.likely is None else gap.likely for gap in certain)
    if part.committed is None:
        # Without a commit the ledger's gaps are what is known to be lost at least.
        return LostCount(lost or None, likely or None, undecided or 0, possible)
    fresh = _count_fresh(part, part.committed, ours)
    if undecided or (undecided is None and not is_memberless(sample)):
        return LostCount(lost, likely, undecided or fresh, possible)
    return LostCount(lost + fresh, likely + fresh, 0, possible)


def _count_fresh(part: PartitionSample, committed: int, gaps: Sequence[Gap]) -> int:
    """What expired below the commit and is in no gap yet."""
    cursor, fresh = committed, 0
    ranges = [(g.start, g.end) for g in gaps if g.start is not None and g.end is not None]
    for start, end in sorted(ranges):
        if start >= part.low:
            break
        fresh += max(0, start - cursor)
        cursor = max(cursor, end)
    return fresh + max(0, part.low - cursor)
