"""A plan as people see it: one neutral value, made by its kind, drawn by every renderer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal

from backlogctl.formats import format_count, format_plural
from backlogctl.values import (
    FINAL,
    Gap,
    LedgerEvent,
    Recovery,
    RecoveryState,
    Sample,
    to_document,
    to_plain,
)

if TYPE_CHECKING:
    from backlogctl.ledger import BurndownSample
    from backlogctl.ledger.chunks import ChunkRecord
    from backlogctl.ledger.holds import Hold
    from backlogctl.ledger.measurements import DiskReading
    from backlogctl.ledger.steps import StepRecord

Tone = Literal["", "good", "bad", "warn", "strong"]


@dataclass(frozen=True, slots=True)
class PlanFigure:
    """A number of the plan, with its words.

    Attributes:
        sign: put before it: "−" for what is subtracted.
        in_facts: the facts say it too; left out where both stand beside each other.
    """

    name: str
    value: int
    words: str
    sign: str = ""
    strong: bool = False
    in_facts: bool = False

    def __str__(self) -> str:
        return f"{self.sign} {format_count(self.value)}".strip()


@dataclass(frozen=True, slots=True)
class Fact:
    """A line of the plan: a short name and a sentence.

    `decides`: an approver goes by it. `shows_rows`: it holds what rows or messages hold, and is for
    the operator's terminal alone.
    """

    name: str
    text: str
    tone: Tone = ""
    shows_rows: bool = False
    decides: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a table.

    Attributes:
        weight: decides which rows are shown where there is room for few.
        tone: of the cell in column `toned`; of the last one where nothing else is said.
    """

    cells: tuple[str, ...]
    weight: int = 0
    tone: Tone = ""
    toned: int = -1


@dataclass(frozen=True, slots=True)
class Table:
    """Rows in their order.

    `unit` says what the weights count, such as `behind`; "" for nothing. `noun` is one row's.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...] = ()
    unit: str = ""
    noun: str = "partition"

    def top(self, most: int) -> tuple[tuple[Row, ...], str]:
        """The `most` weightiest rows in their order, and a sentence on the rest; "" for none."""
        if len(self.rows) <= most:
            return self.rows, ""
        ranked = sorted(range(len(self.rows)), key=lambda n: (-self.rows[n].weight, n))
        shown = tuple(self.rows[number] for number in sorted(ranked[:most]))
        left = ranked[most:]
        rest = f"and {format_plural(len(left), self.noun)} more"
        if self.unit:
            total = sum(self.rows[number].weight for number in left)
            rest = f"and {format_plural(len(left), self.noun)} with "
            rest += f"{format_count(total)} {self.unit}"
        return shown, rest


@dataclass(frozen=True, slots=True)
class Action:
    """What is done to whom: `stops`, `raises`, `creates`, `gives back`; one sentence each."""

    verb: str
    sentences: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Telling:
    """A plan for people and programs.

    Attributes:
        verdict: the kind's word for how good the plan is, such as `exact` or `wins`.
        verdict_words: the same for a report, such as `plan: before retention`.
        request: what an approver is asked: `Put 1,000 messages back into orders`.
        summary: one sentence: what it does.
        reasons: why the verdict is not the best one.
        counts: the numbers that the verdict is made of.
        tables: by partition first; then what else there is, such as the lost ranges.
        facts: how it goes: proof, speed, window, disk.
        actions: what is stopped, raised, created, given back.
        other_groups: that read the topic.
        others_unknown: why there may be more of them; "" where there are none.
        warnings: what to know before the approval.
        size: messages that it is about, for a list; None where unknown.
        document: the kind's own fields of the JSON document, raw.
    """

    verdict: str
    verdict_words: str
    request: str
    summary: str
    reasons: tuple[str, ...] = ()
    counts: tuple[PlanFigure, ...] = ()
    tables: tuple[Table, ...] = ()
    facts: tuple[Fact, ...] = ()
    actions: tuple[Action, ...] = ()
    other_groups: tuple[str, ...] = ()
    others_unknown: str = ""
    warnings: tuple[str, ...] = ()
    size: int | None = None
    document: Mapping[str, Any] = field(default_factory=dict)

    @property
    def own_counts(self) -> tuple[PlanFigure, ...]:
        """The counts that no fact says."""
        return tuple(count for count in self.counts if not count.in_facts)

    @property
    def public_facts(self) -> tuple[Fact, ...]:
        """Those that may be kept and shown elsewhere than on the operator's terminal."""
        return tuple(fact for fact in self.facts if not fact.shows_rows)

    def say_others(self, nobody: str = "none") -> str:
        """The other groups, comma-separated; where there may be more, that it is unknown."""
        known = ", ".join(self.other_groups)
        if self.others_unknown:
            return f"{known}; more are unknown" if known else "unknown"
        return known or nobody


def make_actions(named: Sequence[tuple[str, Sequence[str]]]) -> tuple[Action, ...]:
    """Those that say something."""
    return tuple(Action(verb, tuple(told)) for verb, told in named if told)


# What came of a recovery: what the ledger has on it, and the kind's account of that.


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
    events: tuple[LedgerEvent, ...] = ()
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

    def find_last(self, action: str) -> LedgerEvent | None:
        """The last line of the record with that action."""
        return next((event for event in reversed(self.events) if event.action == action), None)

    def find_first(self, action: str) -> LedgerEvent | None:
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


# How a recovery stands, as a value: who reads, who is stopped, what is where.


class Reads(StrEnum):
    """Who reads the backlog."""

    NOBODY = "nobody"
    ORIGINALS = "originals"
    RECOVERY = "recovery"
    BOTH = "both"  # unexpected: original and recovery consumers are running
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Readers:
    """Members of the two groups; None where that is unknown, or of no meaning."""

    reads: Reads
    originals: int | None = None
    recovery: int | None = None


@dataclass(frozen=True, slots=True)
class LagReading:
    """Messages that were left at a moment, at most."""

    messages: int
    at: datetime


@dataclass(frozen=True, slots=True)
class OnlyThere:
    """Relayed into a temporary topic and not handled: the messages are nowhere else to be read.

    Attributes:
        messages: at most that many, now; None is unknown.
        last: when that was last known; None: never.
    """

    topic: str
    messages: int | None
    last: LagReading | None = None


@dataclass(frozen=True, slots=True)
class InArchive:
    """Messages in an archive; `is_only_there`: they may be deleted from the topic already."""

    location: str
    messages: int
    is_only_there: bool


@dataclass(frozen=True, slots=True)
class PutBack:
    """Messages that were put back, of those that the plan has, without those left out so far."""

    done: int
    planned: int


@dataclass(frozen=True, slots=True)
class RecoveryStatus:
    """How things stand now.

    Attributes:
        runner: who works on it now; None is nobody.
        stopped: whose consumers it has stopped; "" for nobody's.
        only_there: None for a kind, or a time, without a temporary topic.
        retention_held: topic settings that it holds.
        put_back: None for a kind that sends nothing.
        archive: None for a kind, or a time, without one.
        problem: why something is unknown; "" where nothing is.
    """

    recovery: str
    kind: str
    state: RecoveryState
    runner: str | None
    readers: Readers
    stopped: str
    only_there: OnlyThere | None
    retention_held: tuple[str, ...]
    put_back: PutBack | None
    next_commands: tuple[str, ...]
    problem: str
    at: datetime
    archive: InArchive | None = None

    @property
    def is_settled(self) -> bool:
        """Whether it is over, and nothing of it is left to be told."""
        left = self.stopped or self.only_there or self.retention_held
        return self.state in FINAL and not left

    def to_json(self) -> dict[str, Any]:
        """Fields are added, and none renamed."""
        names = ("recovery", "kind", "state", "runner", "stopped", "retention_held", "put_back")
        return {
            **to_document(self, *names, "archive", "next_commands", "problem", "at"),
            "reads": str(self.readers.reads),
            "originals": self.readers.originals,
            "recovery_consumers": self.readers.recovery,
            "temporary": to_plain(self.only_there),
        }
