"""Where a rebuild's messages go, where that is not the stream's own topic (`--to`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from backlog.clock import Deadline
from backlog.config import Stream
from backlog.kafka.admin import TopicInfo, describe_topic, list_offsets, list_topic_readers
from backlog.kafka.readers import TopicReaders
from replay.injection.plan import PlannedTarget, To
from replay.injection.target import choose_target
from replay.recovery.workspace import Workspace

_SECONDS = 60.0
_MAX_BYTES = "max.message.bytes"


@dataclass(frozen=True, slots=True)
class Target:
    """A target as it is now: its high watermarks, what it takes, and who reads it."""

    planned: PlannedTarget
    ends: Mapping[int, int]
    config: Mapping[str, str]
    readers: TopicReaders = field(default_factory=lambda: TopicReaders({}))

    def limit(self, topic: TopicInfo) -> dict[str, str]:
        """The topic's settings, with the size of messages that both take."""
        known = [it[_MAX_BYTES] for it in (topic.config, self.config) if _MAX_BYTES in it]
        return {**topic.config, **({_MAX_BYTES: min(known, key=int)} if known else {})}


def find_target(
    workspace: Workspace, stream: Stream, said: str | None, recovery_id: str
) -> Target | None:
    """What `--to` means; None for the stream's own topic.

    Raises:
        UsageError: there is no topic of that name.
        Refused: a guard says no.
    """
    if said in (None, str(To.TOPIC), stream.topic):
        return None
    properties, limit = workspace.properties(stream), Deadline(_SECONDS)
    source = describe_topic(properties, stream.topic, limit)
    planned = choose_target(workspace, stream, said, recovery_id, source)
    if planned is None:
        return None
    numbers = range(planned.partitions)
    if planned.to is To.REHEARSAL:
        return Target(planned, dict.fromkeys(numbers, 0), {})
    found = describe_topic(properties, planned.topic, limit)
    ends = list_offsets(properties, planned.topic, numbers, "latest", deadline=limit)
    readers = list_topic_readers(properties, planned.topic, limit)
    return Target(planned, ends, found.config, readers)
