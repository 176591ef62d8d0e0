"""Gaps of a group that reads while retention moves, judged against what it truly read."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backlogctl.monitoring.offsets.gaps import Suspicion, find_gaps
from backlogctl.monitoring.offsets.history import StreamHistory, advance_marks
from backlogctl.values import Cause, Certainty, Gap, PartitionSample, Sample

START = datetime(2026, 11, 21, tzinfo=UTC)
RATE = 20  # offsets a second
LEARN = 40  # seconds at that rate before anything happens


class Group:
    """One partition, its reader with a true position, and a watcher that samples both."""

    def __init__(self, every: int) -> None:
        self.every = every
        self.second = self.low = self.position = self.committed = 0
        self.high = 10_000_000
        self.members = True
        self.lost: set[int] = set()
        self.handled: set[int] = set()
        self.marks, self.gaps = StreamHistory(), list[Gap]()

    def read(self, count: int) -> None:
        if self.position < self.low:  # refused, and set to the log start
            self.lost.update(range(self.position, self.low))
            self.position = self.low
        self.handled.update(range(self.position, self.position + count))
        self.position += count

    def pass_second(self, rate: int, commits: bool = True) -> None:
        if self.members and rate:
            self.read(rate)
        self.second += 1
        if self.members and commits and self.second % 5 == 0:
            self.committed = self.position
        if self.second % self.every == 0:
            self.sample()

    def leave(self) -> None:
        self.committed, self.members = self.position, False

    def sample(self) -> None:
        part = PartitionSample(0, self.low, self.committed, self.high, self.high, 0)
        at = START + timedelta(seconds=self.second)
        state = "stable" if self.members else "empty"
        seen = Sample("s", "main", "t", "g", "id", at, (part,), state)
        self.gaps += find_gaps(self.marks, seen).gaps
        self.marks = advance_marks(self.marks, seen)


def offsets(gaps: Sequence[Gap]) -> set[int]:
    return {
        offset
        for gap in gaps
        if gap.start is not None and gap.end is not None
        for offset in range(gap.start, gap.end)
    }


SPANS = st.lists(
    st.tuples(
        st.sampled_from([0, RATE // 4, RATE, 5 * RATE, 20 * RATE]),  # a pause, ..., a catch-up
        st.integers(1, 20),  # for so many seconds
        st.floats(0, 1),  # how near the log start follows
    ),
    max_size=12,
)
EVERY = st.sampled_from([1, 2, 5, 10, 30])


@settings(max_examples=150, deadline=None)
@given(spans=SPANS, every=EVERY)
def test_a_group_that_reads_everything_never_has_a_gap(
    spans: list[tuple[int, int, float]], every: int
) -> None:
    group = Group(every)
    for _ in range(2 * max(LEARN, 3 * every)):
        group.pass_second(RATE)
    for rate, seconds, nearness in spans:
        for _ in range(seconds):
            group.low += int(nearness * (group.position - group.low))
            group.pass_second(rate)
    group.leave()
    for _ in range(2 * every):
        group.pass_second(0)
    assert not group.lost
    assert group.gaps == []


@pytest.mark.parametrize("behind", [0, 2, 5, 15])  # seconds from a message to its commit
@pytest.mark.parametrize("every", [0.5, 1, 2, 5, 7, 30])
@pytest.mark.parametrize("interval", [1, 5, 20])  # seconds from one commit to the next
def test_the_rhythm_of_commits_is_no_backlog(interval: int, every: float, behind: int) -> None:
    """A group at the end of the log, then an hour unwatched in which a batch is read and expires:
    what it read before is what was written, and does not say how fast it can read.
    """
    marks, pace, rush = StreamHistory(), 10, 1000

    def sample(second: float, low: int, high: int, committed: int) -> Sample:
        part = PartitionSample(0, low, committed, high, high, 0)
        at = START + timedelta(seconds=second)
        return Sample("s", "main", "t", "g", "id", at, (part,), "stable")

    for number in range(int(max(60, 10 * interval) / every)):
        second = number * every
        commit = max(0, second // interval * interval - behind)
        marks = advance_marks(marks, sample(second, 0, int(pace * second), int(pace * commit)))
    high = int(pace * second) + 3600 * rush
    later = sample(second + 3600, high - 1800 * rush, high, high - rush * (behind + 1))
    judged = find_gaps(marks, later)
    assert judged.gaps == ()
    assert [finding.kind for finding in judged.findings] == [Suspicion.POSSIBLE_EXPIRED]


@settings(max_examples=150, deadline=None)
@given(
    jumps=st.lists(
        st.tuples(st.integers(0, 60_000), st.integers(1, 40), st.booleans()), min_size=1, max_size=5
    ),
    every=EVERY,
)
def test_every_loss_that_the_pace_excludes_is_in_a_gap(
    jumps: list[tuple[int, int, bool]], every: int
) -> None:
    group = Group(every)
    for _ in range(2 * max(LEARN, 3 * every)):
        group.pass_second(RATE)
    for width, seconds, commits in jumps:
        before = len(group.lost)
        first = group.position
        group.low = max(group.low, group.position + width)
        for _ in range(seconds):
            group.pass_second(RATE, commits)
        for _ in range(2 * max(every, 5)):
            group.pass_second(RATE)
        # More than the pace, 25 times over, from the last commit known to the first one beyond.
        limit = 1000 + 26 * RATE * (2 * (every + 5) + seconds + 5)
        if len(group.lost) - before > limit:
            assert set(range(first, first + width)) <= offsets(group.gaps)
    for gap in group.gaps:
        assert gap.cause is Cause.EXPIRED
        said = re.search(r"at least (\d+) and at most (\d+)", gap.reason)
        if said is not None:
            truly = len(group.lost & offsets([gap]))
            assert int(said[1]) <= truly <= int(said[2])
    # The group stops, and retention goes on.
    group.leave()
    group.low = max(group.low, group.position + 100)
    for _ in range(2 * max(every, 10)):
        group.pass_second(0)
    exact = [gap for gap in group.gaps if gap.certainty is Certainty.EXACT]
    assert set(range(group.position, group.position + 100)) <= offsets(exact)
    assert not offsets(exact) & group.handled


def test_a_backlog_is_seen_between_samples_of_any_distance() -> None:
    for every in (1, 5, 30):
        group = Group(every)
        for _ in range(6 * max(every, 10)):
            group.pass_second(RATE)
        assert group.marks.bound.proven, every


def test_a_partition_that_is_held_back_says_nothing_of_the_others() -> None:
    """One reader is slow; on the other partition a batch is written, read and expires between two
    samples. How fast its reader can be was never seen: it always waited for messages.
    """
    marks, found = StreamHistory(), list[Gap]()
    for second in range(0, 121, 5):
        end = 20 * second + (50_000 if second == 120 else 0)
        low = end - 10 if second == 120 else 0
        slow = PartitionSample(0, 0, second, 10_000, 10_000, 0)
        waiting = PartitionSample(1, low, end, end, end, 0)
        at = START + timedelta(seconds=second)
        seen = Sample("s", "main", "t", "g", "id", at, (slow, waiting), "stable")
        found += find_gaps(marks, seen).gaps
        marks = advance_marks(marks, seen)
    assert found == []
