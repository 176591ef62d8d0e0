"""When the oldest unread messages were written, where they are older than our samples.

A topic's messages at a time are found by asking its leader (ListOffsets by timestamp), which needs
no right to read them. "The first offset that is not older than T" does not change while messages
are kept, so what was found once serves every later pass and every group.

What one pass asks is bounded: `PLACES_A_PASS` offsets, those that waited longest first, `ROUNDS`
requests for all of them, and `SECONDS_A_PASS`. What is not dated yet has no time.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from backlog.clock import Deadline
from backlog.errors import BacklogError
from backlog.kafka.layouts import NONE, ClusterLayout

PLACES_A_PASS = 256
ROUNDS = 14  # a year, or seven days, take eleven
SECONDS_A_PASS = 5.0
# Precision: a share of the retention, as losses are forecast from it, and of the age.
OF_RETENTION, OF_AGE, SECONDS = 1 / 128, 1 / 16, 10.0
LONGEST = 366 * 86400.0  # seconds; what is older is not dated
_MOST_STEPS = 64

FindOffsets = Callable[
    [ClusterLayout, Mapping[tuple[str, int], int]], Mapping[tuple[str, int], int]
]


@dataclass(frozen=True, slots=True)
class UndatedOffset:
    """The oldest unread offset of a partition, which exists.

    `retention` is in seconds, None where time deletes nothing; `high` is the end now.
    """

    topic: str
    topic_id: str
    partition: int
    offset: int
    high: int
    retention: float | None

    @property
    def place(self) -> tuple[str, str, int]:
        """The partition in one life of its topic."""
        return (self.topic, self.topic_id, self.partition)

    @property
    def reach(self) -> float:
        """How far back it can lie, in seconds."""
        return LONGEST if self.retention is None else min(self.retention, LONGEST)


@dataclass(slots=True)
class _TimeIndex:
    """Of one partition: at the second `times[i]` the first offset not older was `offsets[i]`."""

    steps: list[tuple[float, int]] = field(default_factory=list)
    tried: int = 0  # the pass

    def find(self, offset: int, reach: float, high: int, now: float) -> _Bounds:
        """What is known of the time of an offset."""
        # Times and offsets grow together.
        at = bisect_right(self.steps, offset, key=lambda step: step[1])
        oldest, first = self.steps[at - 1] if at else (now - reach, 0)
        newest, after = self.steps[at] if at < len(self.steps) else (now, max(high, offset + 1))
        return _Bounds(oldest, newest, first, after, known=at > 0)

    def add(self, at: float, offset: int) -> None:
        """One more step; those that contradict it are outdated by retention."""
        before = [step for step in self.steps if step[0] < at and step[1] <= offset]
        after = [step for step in self.steps if step[0] > at and step[1] >= offset]
        self.steps = [*before, (at, offset), *after]


@dataclass(frozen=True, slots=True)
class _Bounds:
    oldest: float
    newest: float
    first: int
    after: int
    known: bool

    def is_sharp(self, now: float, retention: float | None) -> bool:
        width = OF_AGE * (now - self.oldest)
        if retention is not None:
            width = min(width, OF_RETENTION * retention)
        return self.newest - self.oldest <= max(SECONDS, width)


@dataclass
class OffsetDates:
    """Dates offsets; forgets the partitions that nobody asked for in a pass.

    Args:
        clock: the time that messages carry, in seconds since 1970.
    """

    find: FindOffsets
    clock: Callable[[], float]
    _indexes: dict[tuple[str, str, int], _TimeIndex] = field(default_factory=dict)
    _passes: int = 0

    def look(self, layout: ClusterLayout, wanted: Iterable[UndatedOffset]) -> None:
        """Asks about offsets that cannot be dated yet, within the bounds."""
        self._passes += 1
        now, every = self.clock(), list(wanted)
        self._indexes = {one.place: self._indexes.get(one.place, _TimeIndex()) for one in every}
        left = [one for one in every if not self._is_settled(one, now)]
        left.sort(key=lambda one: self._indexes[one.place].tried)
        left = left[:PLACES_A_PASS]
        for one in left:
            self._indexes[one.place].tried = self._passes
        limit = Deadline(SECONDS_A_PASS)
        with suppress(BacklogError):  # without it they have no time
            for _ in range(ROUNDS):
                # One time of a partition in a request: several groups may stand at several.
                asked = {(one.topic, one.partition): one for one in left}
                if not asked or limit.expired:
                    break
                self._ask(layout, list(asked.values()), now)
                left = [one for one in left if not self._is_settled(one, now)]
        for one in every:
            index = self._indexes[one.place]
            if len(index.steps) > _MOST_STEPS:
                index.steps = index.steps[::2]

    def measure_age(self, one: UndatedOffset) -> float | None:
        """About how many seconds ago it was written; None where that is not known (yet)."""
        index = self._indexes.get(one.place)
        if index is None:
            return None
        now = self.clock()
        bounds = index.find(one.offset, one.reach, one.high, now)
        if not bounds.is_sharp(now, one.retention):
            return None
        if not bounds.known and (one.retention is None or one.retention > one.reach):
            return None  # older than what is asked about
        share = (one.offset - bounds.first) / max(1, bounds.after - bounds.first)
        at = bounds.oldest + (bounds.newest - bounds.oldest) * (share if bounds.known else 0.0)
        return max(0.0, now - at)

    def _is_settled(self, one: UndatedOffset, now: float) -> bool:
        bounds = self._indexes[one.place].find(one.offset, one.reach, one.high, now)
        return bounds.is_sharp(now, one.retention)

    def _ask(self, layout: ClusterLayout, some: Sequence[UndatedOffset], now: float) -> None:
        times: dict[tuple[str, int], int] = {}
        for one in some:
            bounds = self._indexes[one.place].find(one.offset, one.reach, one.high, now)
            # The geometric mean: finds an age of a year or of an hour in few steps.
            young = max(SECONDS / 2, now - bounds.newest)
            age = math.sqrt(young * max(young, now - bounds.oldest))
            times[one.topic, one.partition] = max(0, int((now - age) * 1000))
        topics = {topic: layout.topics[topic] for topic, _ in times if topic in layout.topics}
        found = self.find(ClusterLayout(layout.brokers, topics), times)
        for one in some:
            place = (one.topic, one.partition)
            if place in found:
                offset = one.high if found[place] == NONE else found[place]
                self._indexes[one.place].add(times[place] / 1000, offset)
