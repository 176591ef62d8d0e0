"""How a recovery stands, as a value: who reads, who is stopped, what is where."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from backlog.clock import format_time
from backlog.values import FINAL, RecoveryState


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
class Reading:
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
    last: Reading | None = None


@dataclass(frozen=True, slots=True)
class InArchive:
    """Messages in an archive; `is_only_there`: they may be deleted from the topic already."""

    location: str
    messages: int
    is_only_there: bool


@dataclass(frozen=True, slots=True)
class PutBack:
    """Messages that were put back, of those that the plan has."""

    done: int
    planned: int


@dataclass(frozen=True, slots=True)
class Standing:
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
        only = self.only_there
        return {
            "recovery": self.recovery,
            "kind": self.kind,
            "state": str(self.state),
            "runner": self.runner,
            "reads": str(self.readers.reads),
            "originals": self.readers.originals,
            "recovery_consumers": self.readers.recovery,
            "stopped": self.stopped,
            "temporary": None
            if only is None
            else {
                "topic": only.topic,
                "messages": only.messages,
                "last": None
                if only.last is None
                else {"messages": only.last.messages, "at": format_time(only.last.at)},
            },
            "retention_held": list(self.retention_held),
            "put_back": None
            if self.put_back is None
            else {"done": self.put_back.done, "planned": self.put_back.planned},
            "archive": None if self.archive is None else asdict(self.archive),
            "next_commands": list(self.next_commands),
            "problem": self.problem,
            "at": format_time(self.at),
        }
