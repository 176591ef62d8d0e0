"""Gaps of one stream: the table of causes, what is no gap, and retention that moves."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backlogctl.monitoring.offsets.gaps import (
    Judgement,
    Suspicion,
    find_gaps,
    list_possibly_expired,
)
from backlogctl.monitoring.offsets.history import (
    StreamHistory,
    advance_marks,
    make_marks,
    raise_marks,
)
from backlogctl.monitoring.watch.look import StreamContext, assess_stream
from backlogctl.values import Cause, Certainty, Gap, PartitionSample, Sample
from tests.kit.ledger import NOON, make_gap, make_sample

# What expired between two samples is told for as long as the samples last.


def take(second: int, low: int, committed: int, topic_id: str = "topic-id") -> Sample:
    part = PartitionSample(0, low, committed, 10_000, 10_000)
    sample = make_sample(NOON + timedelta(seconds=second))
    return replace(sample, topic_id=topic_id, partitions=(part,))


def test_jumps_over_what_expired_add_up() -> None:
    history = [take(0, 0, 100), take(1, 138, 160), take(2, 138, 190), take(3, 250, 251)]
    (found,) = list_possibly_expired(history, [])
    assert (found.offsets, found.times, found.since) == (38 + 60, 2, NOON)
    assert "up to 98 offsets expired between samples in 2 places" in str(found)


def test_what_was_read_first_and_what_is_recorded_is_not_told() -> None:
    reading = [take(0, 0, 100), take(1, 90, 120), take(2, 120, 150)]
    assert list_possibly_expired(reading, []) == ()
    stopped = [take(0, 0, 100), take(1, 200, 100)]  # a gap is recorded for that
    assert list_possibly_expired(stopped, []) == ()
    jumped = [take(0, 0, 100), take(1, 138, 160)]
    assert list_possibly_expired(jumped, [make_gap(90, 140)]) == ()
    assert list_possibly_expired(jumped, [make_gap(90, 130)]) != ()
    again = [take(0, 0, 100), take(1, 138, 160, "made-anew")]
    assert list_possibly_expired(again, []) == ()


def test_samples_that_were_thinned_say_nothing_of_a_healthy_group() -> None:
    """Two seconds behind, and retention is half an hour: an hour later all of it has expired."""

    def look(second: int, retention: int = 1_800, rate: int = 10) -> Sample:
        part = PartitionSample(
            0, rate * (second - retention), rate * (second - 2), rate * second, rate * second
        )
        return replace(make_sample(NOON + timedelta(seconds=second)), partitions=(part,))

    assert list_possibly_expired([look(second) for second in range(9_000, 40_000, 3_600)], []) == ()
    for retention in (1_800, 240, 120):
        thinned = [look(second, retention) for second in range(9_000, 12_000, 300)]
        assert list_possibly_expired(thinned, []) == (), retention


def test_gaps_of_another_life_hide_nothing() -> None:
    jumped = [take(0, 0, 100), take(1, 138, 160)]
    assert list_possibly_expired(jumped, [make_gap(90, 140, topic_id="before")]) != ()
    assert list_possibly_expired([], []) == ()


START = datetime(2026, 11, 21, tzinfo=UTC)


def sample(
    second: float,
    low: int,
    committed: int | None,
    high: int,
    *,
    members: int = 0,
    epoch: int | None = None,
    topic_id: str = "id-1",
) -> Sample:
    return Sample(
        stream="orders",
        cluster="main",
        topic="orders",
        group="order-service",
        topic_id=topic_id,
        taken_at=START + timedelta(seconds=second),
        partitions=(PartitionSample(0, low, committed, high, high, epoch),),
        group_state="stable" if members else "empty",
    )


def spans(gaps: Sequence[Gap]) -> list[tuple[Cause, Certainty, int | None, int | None]]:
    return [(gap.cause, gap.certainty, gap.start, gap.end) for gap in gaps]


EXPIRED_10_20 = [(Cause.EXPIRED, Certainty.EXACT, 10, 20)]
PERHAPS_10_20 = [(Cause.EXPIRED, Certainty.BOUNDED, 10, 20)]


def test_a_deserted_group_below_the_log_start_has_lost_exactly_that() -> None:
    assert spans(find_gaps([], sample(0, 20, 10, 50)).gaps) == EXPIRED_10_20


def test_a_group_with_members_is_given_time_to_commit() -> None:
    first = sample(0, 20, 10, 50, members=1)
    judged = find_gaps([], first)
    assert not judged.gaps
    assert judged.is_undecided
    assert not find_gaps([first], sample(3, 20, 10, 50, members=1)).gaps
    assert spans(find_gaps([first], sample(6, 20, 10, 50, members=1)).gaps) == PERHAPS_10_20
    moved_past = find_gaps([first], sample(6, 20, 30, 50, members=1, epoch=0))
    assert not moved_past.gaps
    assert [finding.kind for finding in moved_past.findings] == [Suspicion.POSSIBLE_EXPIRED]


def test_a_group_that_commits_below_a_moving_log_start_is_not_stuck() -> None:
    past = [sample(0, 20, 10, 50, members=1), sample(5, 30, 25, 50, members=1, epoch=0)]
    assert not find_gaps(past, sample(10, 40, 35, 50, members=1, epoch=0)).gaps


@pytest.mark.parametrize("epoch", [None, 0])
def test_a_reader_that_never_joins_is_given_time_to_commit(epoch: int | None) -> None:
    """A healthy one reads on above its commit, whether or not its commits carry an epoch."""
    past = [sample(n, 0, n, 50, epoch=epoch) for n in (1, 2, 3)]
    passed = sample(4, 20, 10, 50, epoch=epoch)
    judged = find_gaps(past, passed)
    assert not judged.gaps
    assert [finding.kind for finding in judged.findings] == [Suspicion.SUSPECTED_EXPIRED]
    assert judged.is_undecided
    again = sample(5, 20, 10, 50, epoch=epoch)
    assert not find_gaps([*past, passed], again).gaps
    assert not find_gaps([*past, passed, again], sample(8, 20, 30, 50, epoch=epoch)).gaps
    stands = sample(10, 20, 10, 50, epoch=epoch)
    assert spans(find_gaps([*past, passed, again], stands).gaps) == PERHAPS_10_20


def test_an_unread_range_that_passed_between_two_samples_is_reported_only() -> None:
    judged = find_gaps([sample(0, 0, 10, 50, members=1)], sample(30, 40, 45, 90, members=1))
    assert not judged.gaps
    (finding,) = judged.findings
    assert (finding.kind, finding.start, finding.end) == (Suspicion.POSSIBLE_EXPIRED, 10, 40)


def read_on(to: int = 200) -> list[Sample]:
    """A member that reads 10 a second with more to read, one sample a second."""
    return [sample(n, 0, 10 * n, 100_000, members=1, epoch=0) for n in range(to // 10)]


def test_fault_76_a_live_group_that_retention_overtakes_has_a_bounded_gap() -> None:
    past = read_on(300)
    (gap,) = find_gaps(past, sample(30, 20_000, 20_010, 100_000, members=1, epoch=0)).gaps
    assert spans([gap]) == [(Cause.EXPIRED, Certainty.BOUNDED, 290, 20_000)]
    # 50 in 5 s is the pace: 25 times that over 5 s, and a burst, is what it can have read at most.
    assert "can have read 2250" in gap.reason
    assert f"at least {20_010 - 290 - 2250} and at most {20_000 - 290}" in gap.reason


def test_what_the_pace_cannot_exclude_stays_a_finding() -> None:
    past = read_on(300)
    judged = find_gaps(past, sample(30, 2_400, 2_500, 100_000, members=1, epoch=0))
    assert not judged.gaps
    assert [finding.kind for finding in judged.findings] == [Suspicion.POSSIBLE_EXPIRED]
    # Seconds of reading are no evidence of a pace; nor is a group that waits for messages.
    far = sample(30, 20_000, 20_010, 100_000, members=1, epoch=0)
    assert not find_gaps(past[-5:], far).gaps
    waiting = [sample(n, 0, 10 * n, 10 * n, members=1, epoch=0) for n in range(30)]
    assert not find_gaps(waiting, far).gaps


def test_a_commit_below_the_log_start_that_moves_was_reached_by_reading() -> None:
    past = [*read_on(), sample(20, 300, 190, 900, members=1)]
    assert find_gaps(past, sample(21, 300, 260, 900, members=1, epoch=0)).read_to == {0: 260}
    # From the log start on it may be where a reset led.
    assert not find_gaps(past, sample(21, 400, 300, 900, members=1, epoch=0)).read_to
    assert not find_gaps(past, sample(21, 300, 260, 900)).read_to


def test_offsets_set_from_outside_are_a_skip_once_they_stand_still() -> None:
    past = [sample(0, 0, 10, 50)]
    jumped = sample(30, 0, 40, 50)
    first = find_gaps(past, jumped)
    assert not first.gaps
    assert [finding.kind for finding in first.findings] == [Suspicion.SUSPECTED_SKIP]
    assert first.is_undecided
    settled = sample(33, 0, 40, 50)
    assert spans(find_gaps([*past, jumped], settled).gaps) == [
        (Cause.SKIPPED, Certainty.BOUNDED, 10, 40)
    ]
    # Said once: a log start that moves later must not turn it into another range.
    assert not find_gaps([*past, jumped, settled], sample(60, 20, 40, 50)).gaps


def test_a_skip_is_split_at_the_log_start() -> None:
    past = [sample(0, 0, 10, 50), sample(30, 25, 40, 50)]
    assert spans(find_gaps(past, sample(33, 25, 40, 50)).gaps) == [
        (Cause.EXPIRED, Certainty.BOUNDED, 10, 25),
        (Cause.SKIPPED, Certainty.BOUNDED, 25, 40),
    ]


def test_a_rewind_undone_is_no_skip() -> None:
    past = [sample(0, 0, 40, 50), sample(30, 0, 5, 50), sample(60, 0, 40, 50)]
    for count in (1, 2, 3):
        assert not find_gaps(past[:count], past[min(count, 2)]).gaps
    # A reset beyond the highest ever committed skips from there only.
    past = [sample(0, 0, 30, 50), sample(30, 0, 5, 50), sample(60, 0, 5, 50), sample(90, 0, 45, 50)]
    assert spans(find_gaps(past, sample(95, 0, 45, 50)).gaps) == [
        (Cause.SKIPPED, Certainty.BOUNDED, 30, 45)
    ]


def test_a_rewind_to_offsets_that_are_gone_loses_only_what_was_never_read() -> None:
    judged = find_gaps([sample(0, 0, 30, 90)], sample(30, 50, 10, 90))
    assert spans(judged.gaps) == [(Cause.EXPIRED, Certainty.EXACT, 30, 50)]
    assert [finding.kind for finding in judged.findings] == [Suspicion.REREAD_EXPIRED]


@pytest.mark.parametrize("epoch", [None, 0])
def test_a_group_with_members_never_skips(epoch: int | None) -> None:
    past = [sample(n * 30, 0, 100 * n, 10_000, members=1, epoch=epoch) for n in range(5)]
    last = sample(150, 0, 10_000, 10_000, members=1, epoch=epoch)
    assert not find_gaps(past, last).gaps
    assert not find_gaps(past, last).findings


def test_a_reader_that_never_joins_is_not_taken_for_an_operator() -> None:
    """Its own commits carry an epoch; where they do not, they keep moving."""
    with_epoch = [sample(n * 30, 0, 100 * n, 10_000, epoch=0) for n in range(3)]
    without = [sample(n * 0.02, 0, 100 * n, 10_000) for n in range(300)]
    for past in (with_epoch, without):
        for count in range(1, len(past)):
            assert not find_gaps(past[:count], past[count]).gaps


def test_an_undone_suspicion_is_dropped_when_somebody_joins() -> None:
    past = [sample(0, 0, 10, 50), sample(30, 0, 40, 50)]
    assert not find_gaps(past, sample(33, 0, 40, 50, members=1)).gaps


def test_fault_15_a_recreated_topic_is_reported_and_nothing_is_guessed() -> None:
    past = [sample(0, 0, 10, 50)]
    judged = find_gaps(past, sample(30, 0, None, 5, topic_id="id-2"))
    assert spans(judged.gaps) == [(Cause.TOPIC_RECREATED, Certainty.REPORTED, None, None)]
    assert judged.gaps[0].topic_id == "id-2"
    # The new topic starts afresh: its lower offsets are no loss.
    again = sample(60, 0, 3, 5, topic_id="id-2")
    assert not find_gaps([*past, sample(30, 0, None, 5, topic_id="id-2")], again).gaps


def test_fault_21_no_commit_is_unknown_and_never_nothing() -> None:
    assert spans(find_gaps([], sample(0, 20, None, 50)).gaps) == [
        (Cause.NEVER_COMMITTED, Certainty.REPORTED, None, None)
    ]
    assert spans(find_gaps([sample(0, 0, 10, 50)], sample(9, 20, None, 50)).gaps) == [
        (Cause.COMMIT_VANISHED, Certainty.REPORTED, 10, None)
    ]
    assert find_gaps([], sample(0, 20, None, 50)).gaps[0].count is None


def test_fault_21_a_group_that_does_not_exist_is_a_finding_and_no_gap() -> None:
    """A mistyped name leaves nothing on record; what such a group lost is unknown all the same."""
    missing = replace(sample(0, 20, None, 50), group_state="dead")
    second = PartitionSample(1, 20, None, 50, 50)
    missing = replace(missing, partitions=(*missing.partitions, second))
    judged = find_gaps([], missing)
    assert not judged.gaps
    (finding,) = judged.findings
    assert finding.kind is Suspicion.NO_SUCH_GROUP
    assert "does not exist on this cluster (never_committed)" in finding.message
    assert "unknown" in finding.message
    was_there = [sample(0, 0, 10, 50)]
    assert [gap.cause for gap in find_gaps(was_there, replace(missing, taken_at=START)).gaps] == [
        Cause.COMMIT_VANISHED
    ]


def test_fault_21_a_commit_older_than_the_samples_is_remembered() -> None:
    marks = raise_marks(make_marks([sample(0, 0, None, 50)]), "id-1", {0: (30, 10)})
    assert spans(find_gaps(marks, sample(9, 0, None, 50)).gaps) == [
        (Cause.COMMIT_VANISHED, Certainty.REPORTED, 10, None)
    ]


def test_fault_22_a_commit_beyond_the_end_is_its_own_alarm() -> None:
    judged = find_gaps([], sample(0, 0, 60, 50))
    assert not judged.gaps
    (finding,) = judged.findings
    assert (finding.kind, finding.start, finding.end) == (Suspicion.BEYOND_END, 50, 60)
    assert finding.alarm


def test_fault_22_a_commit_beyond_the_end_does_not_hide_what_is_lost_later() -> None:
    past = [sample(0, 0, 10, 50), sample(30, 0, 60, 50), sample(60, 0, 10, 50)]
    assert make_marks(past).partitions[0].highest == 10
    assert spans(find_gaps(past, sample(90, 20, 10, 50)).gaps) == EXPIRED_10_20
    assert make_marks([sample(0, 0, 60, 50)]).partitions[0].highest == 50
    # Left there until the log has grown past it: what was written up to it is skipped.
    for beyond in (1, 2, 3):
        highs = [50] * (beyond + 1) + [70, 80, 90]
        past = [sample(n * 30, 0, 60 if n else 10, high) for n, high in enumerate(highs)]
        told = [gap for n in range(1, len(past)) for gap in find_gaps(past[:n], past[n]).gaps]
        assert spans(told) == [(Cause.SKIPPED, Certainty.BOUNDED, 10, 60)]


def test_fault_27_a_partition_never_written_is_silent() -> None:
    judged = find_gaps([], sample(0, 0, None, 0))
    assert (judged.gaps, judged.findings) == ((), ())


def test_members_without_a_commit_yet_are_not_a_gap() -> None:
    judged = find_gaps([], sample(0, 0, None, 50, members=2))
    assert not judged.gaps
    assert [finding.kind for finding in judged.findings] == [Suspicion.NO_COMMIT_YET]


def test_fault_20_a_control_record_that_expires_is_no_loss() -> None:
    past = replace(make_marks([sample(0, 0, 499, 500)]), empty_tails={0: (499, 500)})
    assert find_gaps(past, sample(60, 500, 499, 500)) == Judgement((), ())
    assert spans(find_gaps(past, sample(60, 510, 499, 520)).gaps) == [
        (Cause.EXPIRED, Certainty.EXACT, 500, 510)
    ]
    status = assess_stream(
        sample(60, 500, 499, 500),
        "read_committed",
        around=StreamContext(empty_tails={0: (499, 500)}),
    )
    assert (status.lost, status.verdict) == (0, "ok")


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
