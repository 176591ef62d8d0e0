"""The plan of a rebuild: which messages were lost, and what is staged to be put back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, Self

from backlog.config import StreamLimits
from backlog.values import Gap
from replay.kinds.rebuild.options import RebuildOptions
from replay.recovery.plan import Plan, PlanPart
from spark_backfill.injection.snapshots import LedgerSnapshot
from spark_backfill.request import RebuildOutcome

NAME: Final = "rebuild"


class PlannedGap(PlanPart):
    """A lost range `[start, end)` as it was when the plan was made."""

    id: str
    partition: int
    start: int
    end: int
    cause: str = "expired"
    certainty: str = "exact"

    @classmethod
    def freeze(cls, gap: Gap) -> PlannedGap:
        """A gap whose range is known."""
        assert gap.start is not None
        assert gap.end is not None
        return cls(
            id=gap.id,
            partition=gap.partition,
            start=gap.start,
            end=gap.end,
            cause=str(gap.cause),
            certainty=str(gap.certainty),
        )


class RebuildPlan(Plan):
    """What is approved, put back and verified.

    Attributes:
        outcome: what Spark found, staged and judged.
        manifest_sha256: of the manifest that names every staged chunk.
        ledger_topic: the Kafka ledger as it was; None where the first run makes it.
        topic_end_offsets: high watermark by partition: what is injected lies behind it.
        transactional_prefix: of the slots' transactional.id; None takes the configuration's.
        deliver: `topic` where the stream says by name that other groups get the messages too.
    """

    version: int = 1
    kind: Literal["rebuild"] = NAME
    gaps: tuple[PlannedGap, ...]
    outcome: RebuildOutcome
    manifest_sha256: str
    ledger_topic: LedgerSnapshot | None
    transactional_prefix: str | None = None
    topic_end_offsets: Mapping[int, int]
    deliver: str | None = None
    limits: StreamLimits
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
        """The partitions that get messages: one slot each."""
        return self.outcome.slots or tuple(row.partition for row in self.outcome.partitions)


def _leave_out(document: Mapping[str, Any], *path: str) -> Mapping[str, Any]:
    """The document without what stands there; as it is where nothing does."""
    first, *rest = path
    inside = document.get(first)
    if rest:
        if not isinstance(inside, Mapping):
            return document
        return {**document, first: _leave_out(inside, *rest)}
    return {name: value for name, value in document.items() if name != first}
