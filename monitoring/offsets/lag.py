"""Lag, loss, and whether the last unread offsets hold data."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import NamedTuple

from confluent_kafka import (
    TIMESTAMP_NOT_AVAILABLE,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)

from backlogctl.clock import Deadline, read_millis
from backlogctl.errors import BacklogError
from backlogctl.kafka.admin import list_newest_times, list_offsets
from backlogctl.kafka.clients import Admin, Properties, make_consumer
from backlogctl.kafka.errors import translate
from backlogctl.kafka.log_dirs import LogDirs
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


@dataclass(frozen=True, slots=True)
class FirstMessage:
    """The first message that a reader gets: its offset; its own time, None where it has none."""

    offset: int
    at: datetime | None = None


@dataclass(frozen=True, slots=True)
class TailReading:
    """What is unread, by partition.

    Attributes:
        tails: where it holds no data.
        empty: the range [first, end) without data that it begins with.
        oldest: the own time of its first message.
        denied: why the topic may not be read.
    """

    tails: frozenset[int] = frozenset()
    empty: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    oldest: Mapping[int, datetime] = field(default_factory=dict)
    denied: BacklogError | None = None


@dataclass(frozen=True, slots=True)
class FirstReading:
    """The first messages of places, by topic and partition; None where no data lies there. Those
    that were not found out are missing. `denied`: by topic why it may not be read."""

    found: Mapping[tuple[str, int], FirstMessage | None] = field(default_factory=dict)
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


class UnreadPlace(NamedTuple):
    """Where a partition's unread part begins: from `first` up to `start` there is no data, by what
    was read before. Committed data ends at `stable`, the group's reading at `end`."""

    partition: int
    first: int
    start: int
    stable: int
    end: int


def list_unread(
    sample: Sample, isolation: str, known: Mapping[int, tuple[int, int]] | None = None
) -> list[UnreadPlace]:
    """The partitions that are behind.
    `known`: by partition a range [first, end) that was read before and held none.
    """
    found = []
    for part in sample.partitions:
        if part.committed is None or not count_lag(part, isolation):
            continue
        first = start = max(part.committed, part.low)
        before, until = (known or {}).get(part.partition, (0, 0))
        if before <= first < until:
            first, start = before, until
        stable = part.high if isolation == "read_uncommitted" else part.lso
        end = find_partition_end(part, isolation)
        found.append(UnreadPlace(part.partition, first, start, stable, end))
    return found


def list_places(topic: str, unread: Iterable[UnreadPlace]) -> list[TopicOffset]:
    """Where the first messages have to be read."""
    return [(topic, one.partition, one.start) for one in unread if one.start < one.stable]


def read_tails(
    properties: Properties,
    sample: Sample,
    isolation: str,
    deadline: Deadline | None = None,
    known: Mapping[int, tuple[int, int]] | None = None,
) -> TailReading:
    """What lies unread on each partition that is behind.

    What a reader passes over, control and aborted records, is no data. A tail without any is read
    to its end, however long it is, within the deadline; what is not found out by then counts as
    data.

    Args:
        known: by partition a range [first, end) that was read before and held none.
    """
    unread = list_unread(sample, isolation, known)
    places = list_places(sample.topic, unread)
    limit, subject = deadline or Deadline(10.0), f"topic {sample.topic}"
    reading = read_firsts(properties, places, limit, subject, isolation)
    firsts = {place: reading.found[place[:2]] for place in places if place[:2] in reading.found}
    return judge_tails(sample.topic, unread, firsts, reading.denied.get(sample.topic))


def judge_tails(
    topic: str,
    unread: Iterable[UnreadPlace],
    firsts: Mapping[TopicOffset, FirstMessage | None],
    denied: BacklogError | None = None,
) -> TailReading:
    """What the first messages of places show."""
    empty: dict[int, tuple[int, int]] = {}
    oldest: dict[int, datetime] = {}
    tails: set[int] = set()
    for one in unread:
        place = (topic, one.partition, one.start)
        message, reached = firsts.get(place), one.start
        if message is not None:
            reached = message.offset
            if message.at is not None:
                oldest[one.partition] = message.at
        elif place in firsts or one.start >= one.stable:
            reached = max(one.start, one.stable)
            if reached >= one.end:
                tails.add(one.partition)
        if one.first < reached:
            empty[one.partition] = one.first, reached
    return TailReading(frozenset(tails), empty, oldest, denied)


def read_empty(
    properties: Properties, places: Sequence[TopicOffset], limit: Deadline, subject: str
) -> EmptyReading:
    """By topic and partition whether no committed data lies at the offset or above.

    What is not found out within the limit is left out. Of each partition only one place is read.
    """
    reading = read_firsts(properties, places, limit, subject)
    found = {place: first is None for place, first in reading.found.items()}
    return EmptyReading(found, reading.denied)


def read_firsts(
    properties: Properties,
    places: Sequence[TopicOffset],
    limit: Deadline,
    subject: str,
    isolation: str = "read_committed",
) -> FirstReading:
    """By topic and partition the first message at the offset or above.

    What is not found out within the limit, or has expired meanwhile, is left out. Of each partition
    only one place is read. Of an unknown isolation committed data counts.
    """
    starts = {(topic, partition): offset for topic, partition, offset in places}
    if not starts:
        return FirstReading()
    found: dict[tuple[str, int], FirstMessage | None] = {}
    denied: dict[str, BacklogError] = {}
    undecided = set(starts)
    level = "read_uncommitted" if isolation == "read_uncommitted" else "read_committed"
    consumer = make_consumer(
        properties,
        {
            "enable.partition.eof": True,
            "isolation.level": level,
            # Another offset would say nothing of what has expired before it.
            "auto.offset.reset": "error",
            "fetch.wait.max.ms": 100,
            "fetch.message.max.bytes": 65536,
            "queued.min.messages": 1,
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
            if error is None:
                found[topic, partition] = _take_first(message)
            elif error.code() == KafkaError._PARTITION_EOF:
                found[topic, partition] = None
            elif error.code() == KafkaError._TRANSPORT or is_retriable(error):
                continue
            elif error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                denied[topic] = translate(error, f"topic {topic}", "read the tail")
            undecided.discard((topic, partition))
            consumer.pause([TopicPartition(topic, partition)])
    except KafkaException as error:
        raise translate(unwrap(error) or error, subject, "read the tail") from error
    finally:
        consumer.close()
    return FirstReading(found, denied)


def _take_first(message: Message) -> FirstMessage:
    kind, at = message.timestamp()
    known = kind != TIMESTAMP_NOT_AVAILABLE and at > 0
    offset = message.offset()
    assert offset is not None
    return FirstMessage(offset, read_millis(at) if known else None)


# Between so many times the expiry is taken for linear.
_CUTS = 6


def list_cuts(last: float, horizon: float = 86_400.0) -> tuple[float, ...]:
    """Seconds from now for which the broker is asked what retention has passed by then.
    `last`: when it has passed everything.
    """
    until = max(0.0, min(last, horizon))
    return tuple(until * number / _CUTS for number in range(_CUTS))


def read_reached(
    admin: Admin,
    topic: str,
    partitions: Collection[int],
    retention: timedelta,
    limit: Deadline,
    at: datetime,
) -> dict[int, tuple[tuple[int, float], ...]]:
    """By partition (offset, seconds from now until retention has passed all timestamps below it).

    The broker has an index of them: ListOffsets of a timestamp tells the first offset of it or of a
    later one, whoever's clock wrote them. The last one is the end of the log. `at`: now, by a clock
    that can be trusted.
    """
    now, kept = round(at.timestamp() * 1000), retention // timedelta(milliseconds=1)
    newest = list_newest_times(admin, topic, partitions, limit)
    ends = list_offsets(admin, topic, partitions, "latest", deadline=limit)
    known = [number for number in partitions if newest[number] >= 0]
    if not known:
        return {}
    lasts = {number: (newest[number] + kept - now) / 1000 for number in known}
    found: dict[int, list[tuple[int, float]]] = {number: [] for number in known}
    for cut in list_cuts(max(lasts.values())):
        time = max(0, now + round(cut * 1000) - kept)
        for number, offset in list_offsets(admin, topic, known, time, deadline=limit).items():
            if offset >= 0 and cut < lasts[number]:
                found[number].append((offset, cut))
    return {
        number: (*reached, (ends[number], max(0.0, lasts[number])))
        for number, reached in found.items()
    }


def read_size_limit(config: Mapping[str, str]) -> int | None:
    """`retention.bytes` of a topic's settings; None where size deletes nothing."""
    text = config.get("retention.bytes", "-1")
    if "delete" not in config.get("cleanup.policy", "delete") or int(text) < 0:
        return None
    return int(text)


def read_log_sizes(
    properties: Properties,
    sample: Sample,
    config: Mapping[str, str],
    log_dirs: LogDirs,
    limit: Deadline,
) -> dict[int, int]:
    """By partition the bytes that `retention.bytes` is compared with, about; without those unknown.

    Brokers tell what is on their own disks. Of a tiered topic (KIP-405) the limit is on all of the
    log, and nobody tells how large the part in the remote storage is: the bytes of an offset in the
    local part stand for all.

    Raises:
        ConfigurationError, ClusterUnreachable, KafkaFailure: where the local part of a tiered topic
            begins cannot be asked.
    """
    starts = {part.partition: part.low for part in sample.partitions}
    if config.get("remote.storage.enable") == "true":
        from backlogctl.kafka.bulk import read_local_starts

        starts = read_local_starts(properties, sample.topic, limit)
    return {
        part.partition: round(size * (part.high - part.low) / (part.high - start))
        for part in sample.partitions
        if (size := log_dirs.partition_bytes(part.partition)) is not None
        and (start := starts.get(part.partition, part.high)) < part.high
    }


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
