"""The plan of a rebuild: which messages were lost, and what is staged to be put back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, Self

from backlog.values import Gap, SequenceRange
from replay.injection.plan import InjectionPlan
from replay.kinds.rebuild.options import RebuildOptions
from replay.recovery.plan import PlanPart
from spark_backfill.request import RebuildOutcome

NAME: Final = "rebuild"


class PlannedGap(PlanPart):
    """A lost range `[start, end)` as it was when the plan was made.

    `sequences` are those of messages that never had an offset: then `start` and `end` are 0.
    """

    id: str
    partition: int
    start: int
    end: int
    cause: str = "expired"
    certainty: str = "exact"
    sequences: SequenceRange | None = None

    @property
    def count(self) -> int:
        """Messages lost at most."""
        return self.end - self.start if self.sequences is None else self.sequences.count

    @property
    def place(self) -> str:
        """Its offsets, both included, or its sequences."""
        if self.sequences is not None:
            named = self.sequences
            return f"sequence {named.first:,}–{named.last:,} of {named.producer}"
        return f"{self.start:,}–{self.end - 1:,}"

    @classmethod
    def freeze(cls, gap: Gap) -> PlannedGap:
        """A gap whose range is known."""
        assert gap.count is not None
        return cls(
            id=gap.id,
            partition=gap.partition,
            start=gap.start or 0,
            end=gap.end or 0,
            cause=str(gap.cause),
            certainty=str(gap.certainty),
            sequences=gap.sequences,
        )


class RebuildPlan(InjectionPlan):
    """What is approved, put back and verified.

    Attributes:
        outcome: what Spark found, staged and judged.
    """

    version: int = 1
    kind: Literal["rebuild"] = NAME
    gaps: tuple[PlannedGap, ...]
    outcome: RebuildOutcome
    options: RebuildOptions

    @classmethod
    def read(cls, stored: Mapping[str, Any]) -> Self:
        """The plan that `dump` gave, or the first programs of this version.

        Those stored `outcome.proof.rate` too, which follows from the numbers beside it.

        Raises:
            pydantic.ValidationError: another version wrote it, or it was changed.
        """
        return super().read(_leave_out(stored, "outcome", "proof", "rate"))

    @property
    def slots(self) -> tuple[int, ...]:
        """The partitions of the target that get messages: one slot each."""
        return self.outcome.slots or tuple(row.partition for row in self.outcome.partitions)

    @property
    def message_count(self) -> int:
        """Messages that are staged."""
        return self.outcome.counts.rebuilt

    @property
    def quarantined(self) -> int:
        """Rows that could not be built."""
        return self.outcome.counts.quarantined


def _leave_out(document: Mapping[str, Any], *path: str) -> Mapping[str, Any]:
    """The document without what stands there; as it is where nothing does."""
    first, *rest = path
    inside = document.get(first)
    if rest:
        if not isinstance(inside, Mapping):
            return document
        return {**document, first: _leave_out(inside, *rest)}
    return {name: value for name, value in document.items() if name != first}
