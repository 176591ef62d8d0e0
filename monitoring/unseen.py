"""What could not be read of a stream, and what is unknown for that: said, never left out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from backlog.errors import BacklogError, KafkaFailure

What = Literal["retention", "oldest", "disks", "bookmarks", "tails", "groups"]
# What is unknown where it cannot be read.
_UNKNOWN: dict[What, str] = {
    "retention": "whether retention will delete unread messages",
    "oldest": "how old the oldest unread message is (the forecast goes by samples only)",
    "disks": "when retention by size reaches the group",
    "bookmarks": "where exactly a loss would begin (a rebuild would count instead)",
    "tails": "whether the last one or two unread offsets hold data (they count as lag)",
    "groups": "which other groups there are, and how far behind they are",
}
# Those of a stream; `groups` is of a cluster.
STREAM_WHATS: tuple[What, ...] = tuple(what for what in _UNKNOWN if what != "groups")


@dataclass(frozen=True, slots=True)
class Unseen:
    """One thing that could not be read; `error` says why."""

    what: What
    error: BacklogError

    @property
    def unknown(self) -> str:
        """What nobody knows now."""
        return _UNKNOWN[self.what]

    def __str__(self) -> str:
        return f"unknown: {self.unknown}: {self.error.subject}: {self.error.message}"

    def to_json(self) -> dict[str, Any]:
        return {"what": self.what, "unknown": self.unknown, "error": self.error.to_json()}


def make_unseen(what: What, reason: BacklogError | str, subject: str) -> Unseen:
    """From an error, or a reason in words."""
    if isinstance(reason, str):
        return Unseen(what, KafkaFailure(reason, subject=subject))
    return Unseen(what, reason)
