"""Which offsets an audit reads, and which of them are old enough to be judged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from backlog.clock import Deadline
from backlog.config import Stream
from backlog.kafka.admin import TopicInfo, describe_topic, list_offsets
from backlog.values import OffsetRange
from replay.recovery.workspace import Workspace

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
    """
    found: dict[int, int] = {}
    for sample in workspace.ledger.samples.history(stream.name):
        if sample.topic_id == topic_id and sample.taken_at <= now - grace:
            found.update({part.partition: part.high for part in sample.partitions})
    return found
