"""Looks at a stream: a sample, its gaps, and the status that on-call reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Protocol

from backlog.clock import Deadline
from backlog.errors import BacklogError, KafkaFailure
from backlog.kafka.admin import describe_topic
from backlog.kafka.calls import connect
from backlog.kafka.clients import Admin, Properties
from backlog.kafka.errors import TopicMissing
from backlog.kafka.log_dirs import read_log_dirs
from backlog.kafka.peek import peek_at
from backlog.ledger import Ledger
from backlog.values import Sample
from monitoring.assessing import StreamContext, assess_stream
from monitoring.held import record_hold_state
from monitoring.lag import find_end, read_retention, read_size_limit, read_tails
from monitoring.marks import Marks
from monitoring.observing import OBSERVE_SECONDS, Observation, observe_stream
from monitoring.sampler import StreamLike
from monitoring.status import UNLIMITED, GroupStatus, Retention
from monitoring.stopped import with_stopped_warning
from monitoring.unseen import Unseen, make_unseen
from monitoring.waiting import with_archived_note

PEEK_SECONDS = 5.0


class WatchLike(Protocol):
    """What judging needs of the configuration."""

    @property
    def window(self) -> timedelta: ...
    @property
    def horizon(self) -> timedelta: ...


@dataclass(frozen=True, slots=True)
class StreamLook:
    observation: Observation
    status: GroupStatus


def look_at_stream(
    ledger: Ledger,
    stream: StreamLike,
    properties: Properties,
    watch: WatchLike,
    deadline: Deadline | None = None,
    *,
    admin: Admin | None = None,
    marks: Marks | None = None,
) -> StreamLook:
    """Samples a stream, records its gaps, and judges it.

    Args:
        admin, marks: kept from the last look by those who look often.

    Raises:
        TopicMissing, ClusterUnreachable, KafkaFailure, LedgerError.
    """
    limit = deadline or Deadline(OBSERVE_SECONDS)
    connection = admin or connect(properties)
    seen = observe_stream(ledger, stream, connection, limit, marks=marks)
    status = assess_now(
        *(ledger, stream, properties, watch, seen.sample, limit, connection),
        unmarked=seen.unmarked,
    )
    return StreamLook(seen, status)


def assess_now(
    ledger: Ledger,
    stream: StreamLike,
    properties: Properties,
    watch: WatchLike,
    sample: Sample,
    limit: Deadline,
    admin: Admin,
    history: Sequence[Sample] | None = None,
    empty_tails: dict[int, tuple[int, int]] | None = None,
    *,
    unmarked: BacklogError | None = None,
) -> GroupStatus:
    """The status at a sample that was just taken, with what only the brokers know.

    Args:
        history: the stream's samples; None reads the ledger.
        empty_tails: by partition, the last range that was read and held no data; those that are
            found are added.
        unmarked: why the sample's commits could not be bookmarked.

    Raises:
        TopicMissing, ClusterUnreachable, KafkaFailure, LedgerError.
    """
    if history is None:
        history = read_timeline(ledger, stream)
    gaps = ledger.gaps.list(stream=stream.name)
    unseen: list[Unseen] = []
    if unmarked is not None:
        unseen.append(Unseen("bookmarks", unmarked))
    config = _read_settings(admin, stream.topic, limit, unseen)
    if config is not None:
        record_hold_state(ledger, sample, config)
    around = _describe_stream(stream, _find_retention(config))
    tails = _read_tails(properties, stream, sample, limit, unseen)
    remembered = {} if empty_tails is None else empty_tails
    for part in sample.partitions:
        if part.partition in tails and part.committed is not None:
            begin = max(part.committed, part.low)
            remembered[part.partition] = (begin, find_end(part, stream.isolation))
    around = replace(around, tails=tails, empty_tails=remembered)
    # Only partitions that are behind need more.
    starts = {
        part.partition: begin
        for part in sample.partitions
        if part.committed is not None and part.partition not in tails
        if (begin := max(part.committed, part.low)) < find_end(part, stream.isolation)
        if part.committed <= part.high
    }
    status = assess_stream(
        sample,
        stream.isolation,
        history,
        gaps,
        replace(
            around,
            oldest=_read_oldest(properties, stream.topic, starts, around.retention, limit, unseen),
            sizes=_read_sizes(properties, stream.topic, starts, around.retention, limit, unseen),
        ),
        window=watch.window,
        horizon=watch.horizon,
    )
    return with_stopped_warning(
        ledger, with_archived_note(replace(status, unseen=tuple(unseen)), gaps)
    )


def judge_stored(
    ledger: Ledger, stream: StreamLike, watch: WatchLike, now: datetime
) -> GroupStatus | None:
    """The status at the newest stored sample, without asking a broker; None without a sample.

    Retention is not in the ledger, so no losses are forecast; nor is there the warning of
    `with_stopped_warning`.

    Args:
        now: samples younger than this are left out.

    Raises:
        LedgerError.
    """
    history = [sample for sample in read_timeline(ledger, stream) if sample.taken_at <= now]
    if not history:
        return None
    return assess_stream(
        history[-1],
        stream.isolation,
        history[:-1],
        ledger.gaps.list(stream=stream.name),
        _describe_stream(stream, UNLIMITED),
        window=watch.window,
        horizon=watch.horizon,
    )


def read_timeline(ledger: Ledger, stream: StreamLike) -> tuple[Sample, ...]:
    """The samples of the stream's present topic and group, oldest first."""
    return tuple(
        sample
        for sample in ledger.samples.history(stream.name)
        if (sample.cluster, sample.topic, sample.group)
        == (stream.cluster, stream.topic, stream.group)
    )


def _read_settings(
    admin: Admin, topic: str, limit: Deadline, unseen: list[Unseen]
) -> Mapping[str, str] | None:
    """The topic's settings in force; None where they may not be read, which is said."""
    try:
        return describe_topic(admin, topic, limit).config
    except KafkaFailure as error:
        if error.retryable or isinstance(error, TopicMissing):
            raise
        unseen.append(Unseen("retention", error))
        return None


def _read_tails(
    properties: Properties,
    stream: StreamLike,
    sample: Sample,
    limit: Deadline,
    unseen: list[Unseen],
) -> frozenset[int]:
    """Partitions whose small lag holds no data; without it a reader one control record behind
    shows as lag, and so it does where it cannot be read, which is said."""
    try:
        within = Deadline(limit.remaining(PEEK_SECONDS))
        reading = read_tails(properties, sample, stream.isolation, within)
    except BacklogError as error:
        unseen.append(Unseen("tails", error))
        return frozenset()
    unseen += [Unseen("tails", error) for error in reading.denied.values()]
    return frozenset(partition for (_, partition), empty in reading.found.items() if empty)


def _find_retention(config: Mapping[str, str] | None) -> Retention:
    if config is None:
        return UNLIMITED
    return Retention(read_retention(config), read_size_limit(config))


def _describe_stream(stream: StreamLike, retention: Retention) -> StreamContext:
    # Not every stream can be repaired: one of `--bootstrap` has no such sections.
    consumers: Any = getattr(stream, "consumers", None)
    return StreamContext(
        retention=retention,
        consumers=None if consumers is None else consumers.replicas,
        has_consumers=consumers is not None,
        has_source=getattr(stream, "source", None) is not None,
    )


def _read_oldest(
    properties: Properties,
    topic: str,
    starts: Mapping[int, int],
    retention: Retention,
    limit: Deadline,
    unseen: list[Unseen],
) -> dict[int, datetime]:
    """The oldest unread messages' own times, which retention goes by; where they can be read."""
    if retention.time is None or not starts:
        return {}
    try:
        found = peek_at(properties, topic, starts, 1, Deadline(limit.remaining(PEEK_SECONDS)))
        return {
            number: messages[0].at
            for number, messages in found.items()
            if messages and messages[0].at is not None
        }
    except BacklogError as error:
        unseen.append(Unseen("oldest", error))
        return {}


def _read_sizes(
    properties: Properties,
    topic: str,
    starts: Mapping[int, int],
    retention: Retention,
    limit: Deadline,
    unseen: list[Unseen],
) -> dict[int, int]:
    if retention.bytes is None or not starts:
        return {}
    log_dirs = read_log_dirs(properties, topic, Deadline(limit.remaining(PEEK_SECONDS)))
    if log_dirs.brokers is None:
        unseen.append(make_unseen("disks", log_dirs.reason, f"topic {topic}"))
    sizes = {number: log_dirs.partition_bytes(number) for number in starts}
    return {number: size for number, size in sizes.items() if size is not None}
