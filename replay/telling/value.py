"""A plan as people see it: one neutral value, made by its kind, drawn by every renderer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from backlog.numbers import format_count, format_plural

Tone = Literal["", "good", "bad", "warn", "strong"]


@dataclass(frozen=True, slots=True)
class Count:
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
    counts: tuple[Count, ...] = ()
    tables: tuple[Table, ...] = ()
    facts: tuple[Fact, ...] = ()
    actions: tuple[Action, ...] = ()
    other_groups: tuple[str, ...] = ()
    others_unknown: str = ""
    warnings: tuple[str, ...] = ()
    size: int | None = None
    document: Mapping[str, Any] = field(default_factory=dict)

    @property
    def own_counts(self) -> tuple[Count, ...]:
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
