"""Lags of one or two offsets that hold no data: control records, or what was aborted.

A reader that commits after each message of a transactional producer stays that far behind for
ever. Reading a few offsets shows it, for as long as nothing is written or committed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from backlog.clock import Deadline
from backlog.errors import BacklogError
from backlog.kafka.clients import Properties
from monitoring.groups.reading import TailReader
from monitoring.lag import TAIL_AT_MOST, EmptyReading, TopicOffset, read_empty

CANDIDATES_A_PASS = 256
_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Tail:
    """The unread end of a partition: `[start, end)` in one life of a topic."""

    topic: str
    topic_id: str
    partition: int
    start: int
    end: int


_Start = tuple[str, str, int, int]


@dataclass
class Tails:
    """Remembers which tails are empty; forgets those that nobody asked for in a pass."""

    read: TailReader
    _known: dict[Tail, bool] = field(default_factory=dict)
    _asked: dict[Tail, bool] = field(default_factory=dict)
    # The newest empty range of a partition at a start: (topic, topic_id, partition, start) -> end
    _ranges: dict[_Start, int] = field(default_factory=dict)
    _wanted: dict[_Start, int] = field(default_factory=dict)
    _places: set[tuple[str, str, int]] = field(default_factory=set)
    # By topic why it may not be read; of those that were to be read in the last pass.
    denied: dict[str, BacklogError] = field(default_factory=dict)

    def look(self, candidates: Iterable[Tail]) -> None:
        """Reads those that are not known, at most `CANDIDATES_A_PASS`."""
        wanted = list(dict.fromkeys(candidates))
        # One place of a partition a pass: several groups may stand at several.
        self.denied = {t.topic: self.denied[t.topic] for t in wanted if t.topic in self.denied}
        # Of a topic that may not be read one is enough: the others get their turn.
        places = {
            (t.topic, None if t.topic in self.denied else t.partition): t
            for t in wanted
            if t not in self._known
        }
        if new := list(places.values())[:CANDIDATES_A_PASS]:
            with suppress(BacklogError):  # without it they show as lag
                reading = self.read([(tail.topic, tail.partition, tail.start) for tail in new])
                found = reading.found
                self.denied.update(reading.denied)
                for tail in new:
                    if (tail.topic, tail.partition) in found:
                        empty = self._known[tail] = found[tail.topic, tail.partition]
                        self.denied.pop(tail.topic, None)
                        if empty:
                            start = (tail.topic, tail.topic_id, tail.partition, tail.start)
                            self._ranges[start] = self._wanted[start] = tail.end
                            self._places.add(start[:3])
        for tail in wanted:
            self.is_empty(tail)

    def is_empty(self, tail: Tail) -> bool:
        """Whether it is known to hold no data."""
        known = self._known.get(tail)
        if known is not None:
            self._asked[tail] = known
        return bool(known)

    def find_range(
        self, topic: str, topic_id: str, partition: int, starts: Iterable[int]
    ) -> tuple[int, int] | None:
        """The last range from one of these offsets on that was read and held no data."""
        if not self._ranges:
            return None
        for at in starts:
            start = (topic, topic_id, partition, at)
            if start in self._ranges:
                self._wanted[start] = self._ranges[start]
                return at, self._ranges[start]
        return None

    def knows(self, topic: str, topic_id: str, partition: int) -> bool:
        """Whether a range of this partition was empty lately, for any group."""
        return (topic, topic_id, partition) in self._places

    def was_empty(self, topic: str, topic_id: str, partition: int, start: int, low: int) -> bool:
        """Whether what expired from `start` up to the log start is known to have been no data."""
        return any(
            self.is_empty(Tail(topic, topic_id, partition, start, end))
            for end in range(low, start + TAIL_AT_MOST + 1)
        )

    def end_pass(self) -> None:
        """Forgets what was not asked for since the last call."""
        self._known, self._asked = self._asked, {}
        self._ranges, self._wanted = self._wanted, {}
        self._places = {start[:3] for start in self._ranges}


def make_tail_reader(properties: Properties) -> TailReader:
    """Reads tails with a consumer of its own each time; in most passes there is nothing to read."""

    def read(places: Sequence[TopicOffset]) -> EmptyReading:
        return read_empty(properties, places, Deadline(_SECONDS), "all groups")

    return read
