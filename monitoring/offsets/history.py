"""What must be kept of a group's past to judge its next commits, in constant space.

Why these numbers: docs/decisions/0014-a-live-group-that-retention-overtakes.md.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import cache
from hashlib import sha256
from statistics import fmean
from typing import NamedTuple

from pydantic import TypeAdapter, ValidationError

from backlogctl.ledger.samples import CommitMark
from backlogctl.values import Sample

MEMBERLESS = ("empty", "dead", "simple")
# Broker's word for a group that nobody ever joined: its reader assigns its partitions itself.
SIMPLE = "simple"
# Shorter spans show the rhythm of commits, not of reading.
SPAN = timedelta(seconds=5)
# So many spans show how fast a reader is, and so much faster than ever before it may become.
LEAST_SPANS = 3
LEAST_RECENT, MOST_RECENT = 8, 32
SPEED_UP = 2.0
# A reader that turns out to be so much faster than it was known to be has read what it went past.
FASTER = 1.5
# Who has read what was there so long ago only waits for its next commit, and for messages.
KEEPS_UP = timedelta(seconds=20)
# A commit without members that moved so often is a reader's.
READERS_MOVES = 3
# Commits of a reader after one that its pace does not explain: they show whether it is so fast.
DECIDING_MOVES = 2
DECIDING = timedelta(seconds=20)
# Of what is kept; another number where a field gets another meaning.
_MEANING = 1
# What is remembered apart; more is remembered as one.
MOST_PASSED = 64


class SeenCommit(NamedTuple):
    """One commit on a partition: a record of the commit log, or what a sample saw.

    Attributes:
        at: when it was written; of a sample, when it was seen.
        offset: LOG_START where it names none.
        members: whether somebody was in the group; None where that is not known.
        has_epoch: it carries a leader epoch, as a tool's never does.
        is_record: it is of the commit log; the group stood there at that very time.
    """

    at: datetime
    offset: int
    members: bool | None
    has_epoch: bool = False
    is_record: bool = False


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast the reader of one partition is while it has work.

    Only spans count in which it had a backlog from beginning to end, and nothing of what it went
    past had expired when they ended: so it was read, and nobody waited for a producer. `recent`
    are the speeds of the last spans whatever they went past: most of them are of reading where
    retention is at its heels, too.
    """

    fastest: float = 0.0  # offsets a second
    largest: int = 0  # offsets of one span
    read: int = 0
    seconds: float = 0.0
    spans: int = 0
    recent: tuple[float, ...] = ()

    @property
    def is_known(self) -> bool:
        return self.spans >= LEAST_SPANS

    @property
    def typical(self) -> float | None:
        """Offsets a second, over all spans in which it was read for sure; else about the slower of
        the last ones; None where there are too few."""
        if self.is_known:
            return self.read / self.seconds
        if len(self.recent) < LEAST_RECENT:
            return None
        slow = sorted(self.recent)[len(self.recent) // 5]
        usual = [speed for speed in self.recent if speed <= 1.5 * slow]
        # Where all are alike, each may have gone past what was lost.
        return fmean(usual) if len(usual) < len(self.recent) else None

    @property
    def burst(self) -> float:
        """Offsets that it can have read at once as far as the commits can tell."""
        return max(self.largest, SPEED_UP * self.fastest * SPAN.total_seconds())

    def allow(self, took: timedelta) -> float:
        """Offsets that it can read in a time at most."""
        return SPEED_UP * self.fastest * took.total_seconds()

    def expect(self, took: timedelta) -> float:
        """Offsets that it reads in a time as it usually does."""
        return (self.typical or 0.0) * took.total_seconds()

    def add(self, count: int, took: timedelta, *, is_read: bool, works: bool) -> Pace:
        """With a span.

        Args:
            is_read: all of it was read for sure, so it can be so fast.
            works: it had a backlog; else it may have waited.
        """
        seconds = took.total_seconds()
        pace = self
        if is_read:
            fastest, largest = max(self.fastest, count / seconds), max(self.largest, count)
            pace = replace(pace, fastest=fastest, largest=largest)
        if works:
            pace = replace(pace, recent=(*self.recent, count / seconds)[-MOST_RECENT:])
        if is_read and works:
            read, total = self.read + count, self.seconds + seconds
            pace = replace(pace, read=read, seconds=total, spans=self.spans + 1)
        return pace


class Passed(NamedTuple):
    """Offsets [start, end) that had expired when a commit, `to`, had gone on past them: so many
    `offsets`. It `took` since the commit before."""

    start: int
    end: int
    to: int
    offsets: int
    at: datetime
    took: timedelta = timedelta(0)

    def count_likely(self, pace: float | None) -> int | None:
        """About how many were lost: all that the reader cannot have read in the time."""
        if pace is None:
            return None
        read = pace * self.took.total_seconds() - (self.to - self.end)
        return round(min(max(self.offsets - read, 0), self.offsets))


class ReadingSpan(NamedTuple):
    """Commits that are measured together, from one of them on; `is_read`: nothing they went past
    had expired; `works`: there was more to read at each of them."""

    start: int
    since: datetime
    is_read: bool = True
    works: bool = True


@dataclass(frozen=True, slots=True)
class PartitionMarks:
    """One partition's past within one life of its topic.

    Attributes:
        highest: the highest offset ever committed within the log.
        committed: the last one.
        at: when that was the group's position; it may have read on since.
        moved_at: when it was first seen there after an earlier one.
        ends: times and high watermarks of the last samples, oldest first.
        span: the reading that is measured now.
        passed: what the commit has passed since the budget was full.
        usual: offsets that its usual pace still explains; below 0 it went on faster.
        budget: the same by twice its highest pace: below 0 it went on faster than it can read.
        owing: commits since `usual` was below 0.
        moves: forward moves in a row while nobody was in the group.
        passed_by: the first log start seen above the last commit.
        rests: the longest time between two moves.
    """

    highest: int
    committed: int
    at: datetime
    moved_at: datetime | None = None
    ends: tuple[tuple[datetime, int], ...] = ()
    pace: Pace = field(default_factory=Pace)
    span: ReadingSpan | None = None
    passed: tuple[Passed, ...] = ()
    usual: float = 0.0
    budget: float = 0.0
    owing: int = 0
    moves: int = 0
    passed_by: int | None = None
    rests: timedelta = timedelta(0)

    def read_on(self, commit: SeenCommit, low: int) -> PartitionMarks:
        """After a commit by which a reader went forward.
        `low`: the log start, looked at after the commit.
        """
        took = max(commit.at - self.at, timedelta(0))
        pace, span = self._measure(commit, low)
        step = commit.offset - self.committed
        # With the first range that it goes past they are full.
        usual, budget = (self.usual, self.budget) if self.passed else (pace.burst, pace.burst)
        usual = min(pace.burst, usual) + pace.expect(took) - step
        budget = min(pace.burst, budget) + pace.allow(took) - step
        if pace.fastest > FASTER * self.pace.fastest:
            usual = budget = pace.burst  # what it did before is explained as well
        passed = () if pace.is_known and usual >= pace.burst else self.passed
        hole = self._find_hole(commit, low)
        if hole is not None and (pace.is_known or self._is_behind(commit)):
            passed = _remember(passed, hole._replace(took=took))
        return replace(
            self,
            pace=pace,
            span=span,
            passed=passed,
            usual=min(pace.burst, usual),
            budget=min(pace.burst, budget),
            owing=self.owing + 1 if passed and (usual < 0 or not pace.is_known) else 0,
        )

    @property
    def is_too_fast(self) -> bool:
        """Whether it cannot have read all that it went past."""
        return self.pace.is_known and self.budget < 0

    def is_decided(self, now: datetime) -> bool:
        """Whether what was passed faster than the reader reads was lost: it did not turn out to be
        that fast."""
        if not self.passed or (self.pace.is_known and not self.owing):
            return False
        return self.owing > DECIDING_MOVES or now - self.passed[-1].at > DECIDING

    def _find_hole(self, commit: SeenCommit, low: int) -> Passed | None:
        start, end = max(self.highest, self.committed), min(low, commit.offset)
        return Passed(start, end, commit.offset, end - start, commit.at) if start < end else None

    def see_end(self, at: datetime, high: int) -> tuple[tuple[datetime, int], ...]:
        """The ends after a sample: the newest that is old enough, and younger ones."""
        first, since = 0, at - KEEPS_UP
        while first + 1 < len(self.ends) and self.ends[first + 1][0] <= since:
            first += 1
        return (*self.ends[first:], (at, high))

    def _is_behind(self, commit: SeenCommit) -> bool:
        """Whether there was more to read for long: else what expires is what it has just read."""
        ends = [end for at, end in self.ends if commit.at - at >= KEEPS_UP]
        return bool(ends) and commit.offset < ends[-1]

    def _measure(self, commit: SeenCommit, low: int) -> tuple[Pace, ReadingSpan | None]:
        span = self.span or ReadingSpan(self.committed, self.at)
        is_read = span.is_read and low <= self.committed
        works = span.works and self._is_behind(commit)
        took = commit.at - span.since
        if took < SPAN:
            return self.pace, span._replace(is_read=is_read, works=works)
        count = commit.offset - span.start
        pace = self.pace.add(count, took, is_read=is_read, works=works)
        return pace, ReadingSpan(commit.offset, commit.at)


def _remember(passed: tuple[Passed, ...], hole: Passed) -> tuple[Passed, ...]:
    if len(passed) < MOST_PASSED:
        return (*passed, hole)
    first, second, *rest = passed
    both = second._replace(
        start=first.start, offsets=first.offsets + second.offsets, took=first.took + second.took
    )
    return (both, *rest, hole)


@dataclass(frozen=True, slots=True)
class StreamHistory:
    """A stream's past.

    Attributes:
        commits_outside: its reader commits without being a member.
        empty_tails: ranges [first, end) that were read and held no data, the last of a partition.
        later: by partition, commits of the commit log that came after the last sample's.
    """

    topic_id: str = ""
    earlier_topic_id: str = ""
    memberless: bool = False
    commits_outside: bool = False
    partitions: Mapping[int, PartitionMarks] = field(default_factory=dict)
    sampled: tuple[int, ...] = ()
    taken_at: datetime | None = None
    empty_tails: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    later: Mapping[int, tuple[SeenCommit, ...]] = field(default_factory=dict)

    def skip_empty(self, partition: int, committed: int) -> int:
        """The committed offset, moved past control records that follow it."""
        first, end = self.empty_tails.get(partition, (0, 0))
        return end if first <= committed < end else committed


@cache
def _adapt() -> TypeAdapter[StreamHistory]:
    return TypeAdapter(StreamHistory)


@cache
def find_form() -> str:
    """Of what is kept: another one where a field is added, renamed or of another type."""
    schema = json.dumps(_adapt().json_schema(), sort_keys=True)
    return f"{_MEANING}-{sha256(schema.encode()).hexdigest()[:16]}"


def dump_past(history: StreamHistory) -> str:
    """As JSON, for `parse_past`."""
    return _adapt().dump_json(history).decode()


def parse_past(text: str) -> StreamHistory | None:
    """None of one that does not parse."""
    try:
        return _adapt().validate_json(text)
    except ValidationError:
        return None


def is_memberless(sample: Sample) -> bool:
    """Whether nobody was in the group. An unknown state counts as somebody."""
    return sample.group_state in MEMBERLESS


def is_missing(sample: Sample) -> bool:
    """Whether the cluster does not know the group, and so it has no commit anywhere."""
    return sample.group_state == "dead" and all(p.committed is None for p in sample.partitions)


def raise_marks(history: StreamHistory, known: Iterable[CommitMark]) -> StreamHistory:
    """Adds what the ledger knows of commits before the samples, of the same life of the topic."""
    partitions, outside = dict(history.partitions), history.commits_outside
    for mark in known:
        old = partitions.get(mark.partition)
        partitions[mark.partition] = (
            PartitionMarks(mark.max_committed, mark.last_committed, mark.seen_at)
            if old is None
            else replace(old, highest=max(old.highest, mark.max_committed))
        )
        outside = outside or mark.outside
    return replace(history, partitions=partitions, commits_outside=outside)
