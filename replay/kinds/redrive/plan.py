"""The plan of a redrive: where messages were read, which were chosen, and what is staged."""

from __future__ import annotations

from typing import Final, Literal

from backlog.values import OffsetRange
from replay.injection.plan import InjectionPlan
from replay.kinds.redrive.options import RedriveOptions
from replay.recovery.plan import PlanPart
from spark_backfill.redrive.request import Origin, RedriveOutcome

NAME: Final = "redrive"


class PlannedSource(PlanPart):
    """Where the messages were read: a topic, or an archive of one."""

    origin: Origin
    topic: str
    topic_id: str
    partitions: int
    archive: str | None = None

    @property
    def letters(self) -> str | None:
        """The topic of dead letters, where it is one."""
        return self.topic if self.origin is Origin.DEAD_LETTERS else None

    def __str__(self) -> str:
        """`the dead letters in topic orders-dlt`."""
        match self.origin:
            case Origin.ARCHIVE:
                return f"archive {self.archive} of topic {self.topic}"
            case Origin.DEAD_LETTERS:
                return f"the dead letters in topic {self.topic}"
            case _:
                return f"topic {self.topic}"


class ElsewhereTopic(PlanPart):
    """Dead letters of another topic; `exists` is None where that could not be asked."""

    topic: str
    count: int
    exists: bool | None


class RedrivePlan(InjectionPlan):
    """What is approved, put back and verified.

    Attributes:
        ranges: what was read of the source.
        keys: how many keys were asked for; 0 for all.
        gaps: those that it closes; () where messages were chosen.
        lost_only: of an archive it takes what waits there or was lost again, and nothing else.
        elsewhere: dead letters of other topics, which are not put back.
        outcome: what Spark found and staged.
        options: as they were said; without the keys where `mask` hides these.
    """

    version: int = 1
    kind: Literal["redrive"] = NAME
    source: PlannedSource
    ranges: tuple[OffsetRange, ...]
    keys: int
    elsewhere: tuple[ElsewhereTopic, ...]
    outcome: RedriveOutcome
    options: RedriveOptions
    gaps: tuple[str, ...] = ()
    lost_only: bool = False

    def closes(self, gap_id: str) -> bool:
        """Not one of which a message is left out: it stays open."""
        return gap_id in self.gaps

    @property
    def slots(self) -> tuple[int, ...]:
        """The partitions that get messages: one slot each."""
        return tuple(sorted(self.outcome.slots))

    @property
    def message_count(self) -> int:
        """Messages that are staged."""
        return self.outcome.counts.staged

    @property
    def quarantined(self) -> int:
        """Messages that are too large for the target."""
        return self.outcome.counts.quarantined
