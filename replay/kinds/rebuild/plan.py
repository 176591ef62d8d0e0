"""The plan of a rebuild: which messages were lost, and what is staged to be put back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, Self

from pydantic import Field, model_validator

from backlogctl.config.base import fail_at
from backlogctl.replay.engine.options import OptionalMoment, list_words
from backlogctl.replay.engine.plan import AllowedWords, Options, PlanPart
from backlogctl.replay.injection.plan import ALLOW_LEDGER, InjectionPlan
from backlogctl.spark_backfill.request import ALLOW_IDS, ALLOW_PROOF, RebuildOutcome
from backlogctl.values import Gap, SequenceRange

# What an operator says of a rebuild.

ALLOW_SURPLUS, ALLOW_UNCERTAIN = "surplus", "uncertain"
ALLOWED = (ALLOW_SURPLUS, ALLOW_UNCERTAIN, ALLOW_PROOF, ALLOW_LEDGER, ALLOW_IDS)


class RebuildOptions(Options):
    """Time bounds, chosen gaps, and what is allowed by name; None and () leave it to the plan."""

    since: OptionalMoment = Field(
        default=None,
        title="Since",
        description="Read source rows from this time on, and `margin` before it. "
        "Else as the samples say.",
    )
    until: OptionalMoment = Field(
        default=None,
        title="Until",
        description="Read source rows up to this time, and `margin` beyond it. "
        "Else as the samples say.",
    )
    gaps: tuple[str, ...] = Field(
        default=(),
        title="Gaps",
        description="Only this gap; may be said again.",
        json_schema_extra={"option": "gap"},
    )
    to: str | None = Field(
        default=None,
        title="To",
        description="`topic` (the stream's own), `rehearsal` (a side topic that expires), or the "
        "name of another topic; only the first repairs the gaps. Else `topic`.",
    )
    allow: AllowedWords = Field(
        default=(),
        title="Allow",
        description="`surplus`, `uncertain`, `proof`, `ledger` or `ids`: go on in spite of it.",
    )

    _check_allow = list_words("allow", ALLOWED)

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        if self.since and self.until and self.since >= self.until:
            raise fail_at(("since",), "is not before `until`")
        return self


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
    maybe_empty: bool = False
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
            maybe_empty=gap.maybe_empty,
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
    def is_mostly_uncertain(self) -> bool:
        """Whether of most of its messages it is not known that they were lost."""
        outcome = self.outcome
        return outcome.verdict == "short" and 2 * outcome.uncertain.taken > outcome.counts.rebuilt

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
