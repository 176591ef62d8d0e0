"""What came of a recovery: what the ledger has on it, and the kind's account of that."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal

from backlog.values import Event, Gap, Recovery, Sample

if TYPE_CHECKING:
    from backlog.ledger import BurndownSample
    from backlog.ledger.chunks import ChunkRecord
    from backlog.ledger.disks import DiskReading
    from backlog.ledger.holds import Hold
    from backlog.ledger.steps import StepRecord


@dataclass(frozen=True, slots=True)
class RecoveryRecord:
    """A recovery and everything that the ledger has about it, read once.

    Attributes:
        gaps: the losses that it is about, as its kind finds them.
        samples: of its topic and group, around it.
        disks: of its brokers, around it, where it moves what fills them.
        problem: what is wrong with the record of events; None for a whole one.
        plan_holds: whether the stored plan is still what its hash was made of.
    """

    recovery: Recovery
    now: datetime
    events: tuple[Event, ...] = ()
    steps: tuple[StepRecord, ...] = ()
    gaps: tuple[Gap, ...] = ()
    chunks: tuple[ChunkRecord, ...] = ()
    burndown: tuple[BurndownSample, ...] = ()
    samples: tuple[Sample, ...] = ()
    disks: tuple[DiskReading, ...] = ()
    holds: tuple[Hold, ...] = ()
    problem: str | None = None
    plan_holds: bool = True
    ended_at: datetime | None = None

    def find_last(self, action: str) -> Event | None:
        """The last line of the record with that action."""
        return next((event for event in reversed(self.events) if event.action == action), None)

    def find_first(self, action: str) -> Event | None:
        """The first line of the record with that action."""
        return next((event for event in self.events if event.action == action), None)

    def find_step(self, name: str) -> StepRecord | None:
        """A step that was started; None where it was not."""
        return next((step for step in self.steps if step.step == name), None)


@dataclass(frozen=True, slots=True)
class Checked:
    """A number that the verification found, with its words."""

    words: str
    value: int | None


@dataclass(frozen=True, slots=True)
class Verification:
    """What was checked, with which result, by partition; `pending` where nothing was yet."""

    result: Literal["passed", "failed", "pending"]
    told: str
    checks: tuple[Checked, ...]
    columns: tuple[str, ...]
    partitions: tuple[tuple[Any, ...], ...]


@dataclass(frozen=True, slots=True)
class Unexplained:
    """What the ledger cannot account for: a sentence, numbers by name, and what may explain it."""

    told: str
    items: tuple[tuple[str, int, str], ...] = ()
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Account:
    """A kind's account of one recovery.

    Attributes:
        aim: what it is for: `to put 10 lost messages of topic orders back`.
        achieved: the headline once it is verified.
        verified: one sentence on what that means.
        cancelled: one sentence on how things stand once it is cancelled.
        no_losses, after_losses: what the report says where there are no gaps, and after them.
        figures: a few numbers for the top: (words, value).
    """

    aim: str
    achieved: str
    verified: str
    cancelled: str
    no_losses: str
    after_losses: str
    figures: tuple[tuple[str, str], ...]
    verification: Verification
    unexplained: Unexplained
