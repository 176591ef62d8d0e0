"""Which offsets an audit reads, and which of them are old enough to be judged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from backlogctl.clock import Deadline, utc_now
from backlogctl.config import Stream
from backlogctl.errors import KafkaFailure
from backlogctl.kafka.admin import TopicInfo, describe_topic, list_offsets
from backlogctl.monitoring.offsets.bulk_look import measure_clock_skew
from backlogctl.monitoring.offsets.observation import observe_stream
from backlogctl.replay.audits.audit import AuditOptions
from backlogctl.replay.engine.kind import Workspace
from backlogctl.values import OffsetRange, Sample

_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Span:
    """A topic as it is now.

    Attributes:
        ranges: of each partition, from its log start or the first message of the time asked for to
            the last stable offset.
        lows: log start offsets.
    """

    topic: TopicInfo
    ranges: tuple[OffsetRange, ...]
    lows: Mapping[int, int]

    @property
    def is_compacted(self) -> bool:
        """Whether messages vanish in between by themselves."""
        return "compact" in self.topic.config.get("cleanup.policy", "")


def read_span(workspace: Workspace, stream: Stream, since: datetime | None) -> Span:
    """What there is to read.

    Raises:
        TopicMissing, KafkaFailure, ClusterUnreachable.
    """
    properties, limit = workspace.properties(stream), Deadline(_SECONDS)
    topic = describe_topic(properties, stream.topic, limit)
    numbers = range(topic.partitions)
    lows = list_offsets(properties, topic.name, numbers, "earliest", deadline=limit)
    ends = list_offsets(
        properties, topic.name, numbers, "latest", isolation="read_committed", deadline=limit
    )
    starts = dict(lows)
    if since is not None:
        at = round(since.timestamp() * 1000)
        for number, first in list_offsets(
            properties, topic.name, numbers, at, deadline=limit
        ).items():
            # A negative one says that no message is of this time or later.
            starts[number] = max(lows[number], first) if first >= 0 else ends[number]
    ranges = tuple(OffsetRange(n, starts[n], max(starts[n], ends[n])) for n in numbers)
    return Span(topic, ranges, lows)


def find_settled(
    workspace: Workspace, stream: Stream, topic_id: str, grace: timedelta, now: datetime
) -> dict[int, int]:
    """By partition, the end of the log when it was sampled last at least `grace` ago.

    Messages' own timestamps do not say when they came; samples do. Partitions of which there is no
    sample so old are left out.

    Args:
        now: by the ledger's clock.
    """
    found: dict[int, int] = {}
    for sample in workspace.ledger.samples.history(stream.name):
        is_old = sample.taken_at + timedelta(seconds=sample.took) <= now - grace
        if sample.topic_id == topic_id and is_old:
            found.update({part.partition: part.high for part in sample.partitions})
    return found


# A group's committed offsets, and which of them are old enough to be judged.


@dataclass(frozen=True, slots=True)
class GroupSnapshot:
    """A group as it was before its table was read.

    Attributes:
        span: the topic; `below` and `ahead` are its committed messages below the group's offsets,
            and from these on.
        committed: by partition; None where the group has no committed offset.
        settled: by partition, below which offset was committed at least the grace ago.
        hidden: offsets that are settled and that an open transaction hides.
    """

    span: Span
    below: tuple[OffsetRange, ...]
    ahead: tuple[OffsetRange, ...]
    committed: Mapping[int, int | None]
    settled: Mapping[int, int]
    hidden: tuple[OffsetRange, ...]


def look_at_group(workspace: Workspace, stream: Stream, bounds: AuditOptions) -> GroupSnapshot:
    """The topic and the group's offsets; samples the stream, so that a later audit can judge more.

    Raises:
        TopicMissing, KafkaFailure, ClusterUnreachable, LedgerError.
    """
    properties = workspace.properties(stream)
    seen = observe_stream(workspace.ledger, stream, properties, Deadline(_SECONDS)).sample
    span = read_span(workspace, stream, bounds.since)
    if span.topic.topic_id != seen.topic_id:
        subject = f"topic {stream.topic}"
        raise KafkaFailure("it was made anew meanwhile", subject=subject, hint="look again")
    now = utc_now() + measure_clock_skew(workspace.ledger)  # the samples are in the ledger's time
    settled = find_settled_commits(workspace, stream, seen, bounds.waits, now)
    committed = {part.partition: part.committed for part in seen.partitions}
    ends = {part.partition: part.high for part in seen.partitions}
    below, ahead, hidden = [], [], []
    for item in span.ranges:
        at = committed.get(item.partition)
        cut = item.start if at is None else min(max(at, item.start), item.end)
        below.append(OffsetRange(item.partition, item.start, cut))
        ahead.append(OffsetRange(item.partition, cut, item.end))
        old = min(settled.get(item.partition, 0), ends.get(item.partition, 0))
        if old > item.end:
            hidden.append(OffsetRange(item.partition, item.end, old))
    return GroupSnapshot(span, tuple(below), tuple(ahead), committed, settled, tuple(hidden))


def find_settled_commits(
    workspace: Workspace, stream: Stream, seen: Sample, grace: timedelta, now: datetime
) -> dict[int, int]:
    """By partition, below which offset the group had committed at least `grace` ago and ever since.

    A group that was set back works on what it had committed once more. Partitions of which there is
    no sample so old are left out.

    Args:
        seen: the newest sample; it is in the ledger.
    """
    found: dict[int, int] = {}
    place = (stream.cluster, stream.topic, stream.group, seen.topic_id)
    for sample in workspace.ledger.samples.history(stream.name):
        if (sample.cluster, sample.topic, sample.group, sample.topic_id) != place:
            continue
        is_old = sample.taken_at + timedelta(seconds=sample.took) <= now - grace
        for part in sample.partitions:
            at = part.committed
            if is_old and at is not None:
                found[part.partition] = at
            elif part.partition in found:
                found[part.partition] = min(found[part.partition], at or 0)
    return found
