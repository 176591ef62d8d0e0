"""The topics of a redrive as they are when it is planned."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from backlog.kafka.admin import TopicInfo
from backlog.values import Gap
from replay.injection.archived import ArchivedGap
from replay.injection.plan import PlannedTarget
from replay.kinds.redrive.sources import Source


@dataclass(slots=True)
class Seen:
    """The stream's topic, the source, and the target with its offsets.

    Attributes:
        target: None for the stream's topic; `target_info` is the stream's for a rehearsal, too.
        gaps: what is put back, where it was found lost; else it is chosen by what was said.
        archived: the same of an archive.
        others: other groups that read the target; `others_unknown` says why there may be more.
    """

    topic: TopicInfo
    source: Source
    target: PlannedTarget | None
    target_info: TopicInfo
    lows: Mapping[int, int]
    ends: Mapping[int, int]
    gaps: tuple[Gap, ...] = ()
    archived: tuple[ArchivedGap, ...] = ()
    others: tuple[str, ...] = ()
    others_unknown: str = ""
    warnings: list[str] = field(default_factory=list)

    @property
    def target_id(self) -> str:
        """Empty where the topic is not made yet."""
        return self.topic.topic_id if self.target is None else self.target.topic_id or ""

    @property
    def target_name(self) -> str:
        return self.topic.name if self.target is None else self.target.topic
