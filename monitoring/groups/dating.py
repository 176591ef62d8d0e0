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

from backlogctl.clock import Deadline
from backlogctl.errors import BacklogError
from backlogctl.kafka.bulk import NONE, ClusterLayout
from backlogctl.kafka.clients import Properties
from backlogctl.monitoring.offsets.lag import TAIL_AT_MOST, EmptyReading, TopicOffset, read_empty

# Lags of one or two offsets that hold no data: control records, or what was aborted.
#
# A reader that commits after each message of a transactional producer stays that far behind for
# ever. Reading a few offsets shows it, for as long as nothing is written or committed.

# Finds out from which offsets on partitions hold no committed data.
TailReader = Callable[[Sequence[TopicOffset]], EmptyReading]

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
    `clock`: the time that messages carry, in seconds since 1970.
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
