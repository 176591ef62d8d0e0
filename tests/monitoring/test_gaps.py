"""Gaps of one stream: the table of causes, what is no gap, and retention that moves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backlogctl.ledger.samples import CommitMark
from backlogctl.monitoring.offsets.gaps import Suspicion, find_gaps, make_history
from backlogctl.monitoring.offsets.history import SeenCommit, StreamHistory, raise_marks
from backlogctl.monitoring.watch.look import StreamContext, assess_stream
from backlogctl.values import LOG_START, Cause, Certainty, Gap, PartitionSample, Sample

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


def test_a_deserted_group_below_the_log_start_has_lost_exactly_that() -> None:
    assert spans(find_gaps([], sample(0, 20, 10, 50)).gaps) == EXPIRED_10_20


@pytest.mark.parametrize("state", ["stable", "simple"])
def test_only_its_commits_say_what_a_client_had_fetched(state: str) -> None:
    """It reads on from its buffer for as long as that lasts; nothing of it is lost by then."""
    past = [replace(sample(n, 0, 10, 50), group_state=state) for n in range(3)]
    for second in (3, 9, 300):
        judged = find_gaps(past, replace(sample(second, 20, 10, 50), group_state=state))
        assert not judged.gaps
        (finding,) = judged.findings
        assert (finding.kind, finding.count) == (Suspicion.SUSPECTED_EXPIRED, 10)
        assert "its next commits decide" in finding.message
    # Whoever was in the group has left, and left its commit there.
    if state == "stable":
        assert spans(find_gaps(past, sample(400, 20, 10, 50)).gaps) == EXPIRED_10_20


def test_a_reader_that_never_joins_and_rests_for_long_may_be_gone() -> None:
    def look(second: float, low: int, committed: int) -> Sample:
        return replace(sample(second, low, committed, 900), group_state="simple")

    hourly = [look(3600 * n, 0, 100 * n) for n in range(4)]
    assert not find_gaps(hourly, look(4 * 3600, 400, 300)).gaps
    judged = find_gaps(hourly, look(7 * 3600, 400, 300))
    assert spans(judged.gaps) == [(Cause.EXPIRED, Certainty.BOUNDED, 300, 400)]


def test_offsets_set_from_outside_may_be_a_skip() -> None:
    past = [sample(0, 0, 10, 50)]
    jumped = sample(30, 25, 40, 50)
    judged = find_gaps(past, jumped)
    assert spans(judged.gaps) == [
        (Cause.EXPIRED, Certainty.POSSIBLE, 10, 25),
        (Cause.SKIPPED, Certainty.POSSIBLE, 25, 40),
    ]
    # Said once: a log start that moves later must not turn it into another range.
    assert not find_gaps([*past, jumped], sample(60, 30, 40, 50)).gaps


def test_a_commit_that_goes_on_without_members_is_a_readers() -> None:
    """A job that joins and leaves between two samples, or one that assigns its partitions."""
    past = [sample(3600 * n, 0, 1000 * n, 9000) for n in range(4)]
    told = [find_gaps(past[:n], past[n]) for n in range(1, 4)]
    assert [len(one.gaps) for one in told] == [1, 1, 0]
    assert [one.reads_outside for one in told] == [False, False, True]
    # The commit log knows that it joined; an epoch is of a reader, too.
    log = {0: [SeenCommit(START, 1000, True), SeenCommit(START + timedelta(hours=1), 2000, True)]}
    assert not find_gaps(past[:1], sample(3600, 0, 2000, 9000), log).gaps
    assert not find_gaps(past[:1], sample(3600, 0, 2000, 9000, epoch=0)).gaps


def test_a_group_that_nobody_ever_joined_is_read_by_one_who_assigns() -> None:
    """The case of a checkpoint each 150 s, 10 messages a second."""
    history = StreamHistory()
    for second in range(0, 3600, 30):
        seen = sample(second, 0, second // 150 * 1500, second * 10)
        judged = find_gaps(history, replace(seen, group_state="simple"))
        history = judged.history
        assert not judged.gaps
        assert not judged.findings


def test_a_rewind_undone_is_no_skip() -> None:
    past = [sample(0, 0, 40, 50), sample(30, 0, 5, 50), sample(60, 0, 40, 50)]
    for count in (1, 2, 3):
        assert not find_gaps(past[:count], past[min(count, 2)]).gaps
    # A reset beyond the highest ever committed skips from there only.
    past = [sample(0, 0, 30, 50), sample(30, 0, 5, 50), sample(60, 0, 5, 50), sample(90, 0, 45, 50)]
    told = find_gaps(past[:3], past[3])
    assert spans(told.gaps) == [(Cause.SKIPPED, Certainty.POSSIBLE, 30, 45)]


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


def test_fault_15_a_recreated_topic_is_reported_and_nothing_is_guessed() -> None:
    past = [sample(0, 0, 10, 50)]
    judged = find_gaps(past, sample(30, 0, None, 5, topic_id="id-2"))
    assert spans(judged.gaps) == [(Cause.TOPIC_RECREATED, Certainty.REPORTED, None, None)]
    assert judged.gaps[0].topic_id == "id-2"
    # The new topic starts afresh: its lower offsets are no loss.
    again = sample(60, 0, 3, 5, topic_id="id-2")
    assert not find_gaps([*past, sample(30, 0, None, 5, topic_id="id-2")], again).gaps


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
    mark = CommitMark("orders", "order-service", "id-1", 0, 30, 10, START)
    past = raise_marks(make_history([sample(0, 0, None, 50)]), [mark])
    assert spans(find_gaps(past, sample(9, 0, None, 50)).gaps) == [
        (Cause.COMMIT_VANISHED, Certainty.REPORTED, 10, None)
    ]


def test_fault_22_a_commit_beyond_the_end_does_not_hide_what_is_lost_later() -> None:
    past = [sample(0, 0, 10, 50), sample(30, 0, 60, 50), sample(60, 0, 10, 50)]
    assert make_history(past).partitions[0].highest == 10
    assert spans(find_gaps(past, sample(90, 20, 10, 50)).gaps) == EXPIRED_10_20
    assert make_history([sample(0, 0, 60, 50)]).partitions[0].highest == 50
    # Left there until the log has grown past it: what was written up to it is skipped.
    for beyond in (1, 2, 3):
        highs = [50] * (beyond + 1) + [70, 80, 90]
        past = [sample(n * 30, 0, 60 if n else 10, high) for n, high in enumerate(highs)]
        told = [gap for n in range(1, len(past)) for gap in find_gaps(past[:n], past[n]).gaps]
        assert spans(told) == [(Cause.SKIPPED, Certainty.POSSIBLE, 10, 60)]


def test_fault_27_a_partition_never_written_is_silent() -> None:
    judged = find_gaps([], sample(0, 0, None, 0))
    assert (judged.gaps, judged.findings) == ((), ())


def test_members_without_a_commit_yet_are_not_a_gap() -> None:
    judged = find_gaps([], sample(0, 0, None, 50, members=2))
    assert not judged.gaps
    assert [finding.kind for finding in judged.findings] == [Suspicion.NO_COMMIT_YET]


def test_fault_20_a_control_record_that_expires_is_no_loss() -> None:
    past = replace(make_history([sample(0, 0, 499, 500)]), empty_tails={0: (499, 500)})
    judged = find_gaps(past, sample(60, 500, 499, 500))
    assert (judged.gaps, judged.findings) == ((), ())
    assert spans(find_gaps(past, sample(60, 510, 499, 520)).gaps) == [
        (Cause.EXPIRED, Certainty.EXACT, 500, 510)
    ]
    status = assess_stream(
        sample(60, 500, 499, 500),
        "read_committed",
        around=StreamContext(empty_tails={0: (499, 500)}),
    )
    assert (status.lost, status.verdict) == (0, "ok")


@dataclass
class Model:
    """A topic with retention by time, one partition, and its reader, which has a buffer as clients
    do; with the true count of what it lost. One step is a second."""

    produced: int = 200
    read: int = 60
    kept: int = 180
    segment: int = 1000
    commits: int = 5
    buffer: int = 500
    resets_to_end: bool = False
    commits_start: bool = False  # as KafkaJS: where it goes on at the log start it commits that
    state: str = "stable"

    def __post_init__(self) -> None:
        self.second = self.low = self.high = 0
        self.position = self.fetched = self.committed = self.lost = 0
        self.at_start = False
        self.rest = 0.0
        self.ends = [0]
        self.log: list[SeenCommit] = []
        self.random = Random(7)

    def pass_second(self, read: int | None = None) -> None:
        self.second += 1
        self.high += self.produced
        self.ends.append(self.high)
        expired = self.ends[max(0, self.second - self.kept)]
        self.low = max(self.low, expired // self.segment * self.segment)
        self.rest += (self.read if read is None else read) * self.random.uniform(0.7, 1.3)
        while self.rest >= 1 and self._fetch():
            count = min(int(self.rest), self.fetched - self.position)
            self.position += count
            self.rest -= count
        self.rest = min(self.rest, 1.0)
        if self.second % self.commits == 0:
            self.committed, self.at_start = self.position, False
            self._note(self.position)

    def _note(self, offset: int) -> None:
        members = self.state == "stable"
        self.log.append(SeenCommit(self.now, offset, members, False, is_record=True))

    def _fetch(self) -> bool:
        if self.position == self.fetched:
            if self.position < self.low:
                after = self.high if self.resets_to_end else self.low
                self.lost += after - self.position
                self.position = after
                if self.commits_start:
                    self.at_start = True
                    self._note(LOG_START)
            self.fetched = min(self.high, self.position + self.buffer)
        return self.fetched > self.position

    @property
    def now(self) -> datetime:
        return START + timedelta(seconds=self.second)

    def sample(self) -> Sample:
        committed = self.low if self.at_start else self.committed
        epoch = LOG_START if self.at_start and self.low < self.high else None
        part = PartitionSample(0, self.low, committed, self.high, self.high, epoch)
        return Sample("s", "main", "t", "g", "id", self.now, (part,), self.state)


@dataclass
class Watched:
    """What was said of it."""

    model: Model
    every: int
    follows_log: bool

    def __post_init__(self) -> None:
        self.history = StreamHistory()
        self.gaps: list[Gap] = []
        self.undecided = 0

    def run(self, seconds: int, read: int | None = None) -> None:
        for _ in range(seconds):
            self.model.pass_second(read)
            if self.model.second % self.every == 0:
                self.look()

    def look(self) -> None:
        judged = find_gaps(
            self.history, self.model.sample(), {0: self.model.log} if self.follows_log else None
        )
        self.model.log = []
        self.history = judged.history
        self.gaps += judged.gaps
        self.undecided = sum(finding.count for finding in judged.findings)

    @property
    def at_most(self) -> int:
        return sum(gap.count or 0 for gap in self.gaps) + self.undecided

    @property
    def likely(self) -> int:
        return sum((gap.count or 0) if gap.likely is None else gap.likely for gap in self.gaps)


LOSING = [
    Model(),
    Model(commits=8),
    Model(segment=200),
    Model(segment=12_000),
    Model(segment=5_000, buffer=5_000),
    Model(buffer=60_000),
    Model(state="simple"),
    Model(resets_to_end=True),
    Model(commits_start=True, commits=7),
    Model(commits_start=True, commits=13, buffer=1_000),
    Model(commits_start=True, commits=7, segment=200),
]


@pytest.mark.parametrize("model", LOSING, ids=str)
@pytest.mark.parametrize("every", [5, 30])
@pytest.mark.parametrize("follows_log", [True, False])
def test_fault_89_all_of_a_loss_that_goes_on_is_counted(
    model: Model, every: int, follows_log: bool
) -> None:
    watched = Watched(replace(model), every, follows_log)
    watched.run(1800)
    truly = watched.model.lost
    assert truly > 100_000
    assert watched.at_most >= 0.97 * truly  # what was lost since the last commit is not seen yet
    assert 0.97 * truly - watched.undecided <= watched.likely <= 1.03 * truly
    certain = [gap for gap in watched.gaps if gap.certainty is Certainty.BOUNDED]
    assert certain
    assert not [gap for gap in watched.gaps if gap.certainty is Certainty.EXACT]


def test_a_loss_that_the_pace_hardly_shows_is_possible() -> None:
    watched = Watched(Model(read=190, kept=60), 30, follows_log=True)
    watched.run(1800)
    assert watched.model.lost > 1000
    assert watched.at_most >= watched.model.lost
    assert {gap.certainty for gap in watched.gaps} == {Certainty.POSSIBLE}


@pytest.mark.parametrize("follows_log", [True, False])
@pytest.mark.parametrize("state", ["stable", "simple"])
def test_fault_111_what_lies_in_a_clients_buffer_is_not_lost(state: str, follows_log: bool) -> None:
    """It fetched all of it before it was deleted, and handles it for minutes after."""
    model = Model(buffer=10**9, produced=0, kept=10**6, state=state)
    watched = Watched(model, 5, follows_log)
    model.high = 60_000
    watched.run(120)
    model.low = 60_000
    watched.run(600)
    assert model.lost == 0
    assert watched.gaps == []
    assert watched.undecided == 60_000 - model.committed
    watched.run(400)
    assert (watched.gaps, watched.undecided) == ([], 0)


@settings(max_examples=60, deadline=None)
@given(
    spans=st.lists(st.tuples(st.integers(0, 900), st.integers(1, 200)), max_size=8),
    every=st.sampled_from([1, 5, 30]),
    follows_log=st.booleans(),
    kept=st.integers(20, 300),
    commits=st.integers(1, 15),
)
def test_a_reader_that_retention_never_reaches_has_lost_nothing_for_sure(
    spans: list[tuple[int, int]], every: int, follows_log: bool, kept: int, commits: int
) -> None:
    """However it reads, pauses and catches up, with retention close behind what is committed: what
    expired between two looks may be doubted, and is never said to be lost."""
    watched = Watched(Model(kept=10**6, commits=commits), every, follows_log)
    for read, seconds in spans:
        watched.run(seconds, read)
        watched.model.low = max(watched.model.low, watched.model.committed - kept)
    assert {gap.certainty for gap in watched.gaps} <= {Certainty.POSSIBLE}


@pytest.mark.parametrize("kept", [10, 30, 120])
@pytest.mark.parametrize("every", [1, 5, 30])
@pytest.mark.parametrize("commits", [1, 5, 15])
def test_a_fast_reader_under_short_retention_has_no_gap(
    kept: int, every: int, commits: int
) -> None:
    """Twenty minutes of samples each second; all expires soon after it was read."""
    for follows_log in (True, False):
        watched = Watched(Model(read=1000, kept=kept, commits=commits), every, follows_log)
        watched.run(1200)
        assert watched.model.lost == 0
        assert watched.gaps == []


STARTED = sample(0, 5_000, 5_000, 9_000, members=1, epoch=LOG_START)


def test_what_expires_behind_a_commit_of_the_log_start_is_lost() -> None:
    """Seen for the first time like that, its group read nothing below the log start of then."""
    past = [sample(0, 0, 0, 9_000, epoch=LOG_START)]
    judged = find_gaps(past, sample(30, 5_000, 5_000, 9_000, epoch=LOG_START))
    assert spans(judged.gaps) == [(Cause.EXPIRED, Certainty.BOUNDED, 0, 5_000)]


def test_a_commit_of_the_log_start_is_no_position() -> None:
    """Where it reads on from there its next commit tells; it is no rewind, and trims no gap."""
    past = make_history([sample(0, 0, 100, 9_000, members=1)])
    started = find_gaps(past, replace(STARTED, taken_at=START + timedelta(seconds=5)))
    (finding,) = started.findings
    assert (finding.kind, finding.start, finding.end) == (Suspicion.SUSPECTED_EXPIRED, 100, 5_000)
    judged = find_gaps(started.history, sample(10, 6_000, 4_500, 9_000, members=1))
    assert judged.read_to == {}
    assert judged.history.partitions[0].highest == 4_500
