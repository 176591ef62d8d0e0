"""Upper bound on the offsets a group can have consumed between two samples, from its highest rate.

Why these numbers: docs/decisions/0014-a-live-group-that-retention-overtakes.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from backlogctl.values import Gap, PartitionSample, Sample, TimeBounds

ZERO = timedelta(0)
# Over shorter times a rate shows the rhythm of commits, not of reading.
COMMIT_RHYTHM = timedelta(seconds=5)
# A group that works off a backlog may be so much faster than it ever was.
SPEED_UP = 25
# What one poll hands out by default, and a fetch that waits behind it.
BURST = 1000
# A backlog that was worked off sooner may be only what lies between a message and its commit; and
# shorter evidence may be of a group that was just starting.
LEAST_EVIDENCE = timedelta(seconds=20)
# With fewer commits behind its first one, a backlog may be what one commit has not said yet.
LEAST_COMMITS = 2


@dataclass(frozen=True, slots=True)
class CommitMove:
    """One partition between two samples; `low` and `stable`, the last stable offset, are the later
    one's."""

    partition: int
    before: int
    after: int
    low: int
    stable: int

    @property
    def is_whole(self) -> bool:
        """Whether nothing above the earlier commit had expired: it read all of it."""
        return self.low <= self.before <= self.after

    @property
    def has_moved(self) -> bool:
        return self.before < self.after


@dataclass(frozen=True, slots=True)
class BacklogAtCommit:
    """What there was to read on one partition when a commit was seen, `end`, and for how long the
    commits have stayed below that.

    Whoever waits for messages commits behind the end too, by the rhythm of its commits, but it has
    passed what was there a commit earlier.
    """

    end: int
    lasted: timedelta = ZERO
    commits: int = 0

    @property
    def proves_work(self) -> bool:
        """Whether the reader had work all the time: only then its speed says what it can."""
        return self.lasted >= LEAST_EVIDENCE and self.commits >= LEAST_COMMITS


@dataclass(frozen=True, slots=True)
class ConsumptionBound:
    """The highest pace of all partitions together, offsets a second; `proven`: the partitions
    whose reader was seen, for long enough, with more to read than it managed. A slow reader of one
    says nothing of the readers of others."""

    best: float = 0.0
    proven: frozenset[int] = frozenset()
    moved: int = 0  # since `best` was last compared, over `span`
    span: timedelta = ZERO
    backlogs: Mapping[int, BacklogAtCommit] = field(default_factory=dict)

    @property
    def pace(self) -> float:
        return max(self.best, self.moved / max(self.span, COMMIT_RHYTHM).total_seconds())

    def add(self, moves: Iterable[CommitMove], took: timedelta) -> ConsumptionBound:
        whole = [move for move in moves if move.is_whole]
        if took <= ZERO:
            return self
        if not whole:
            return replace(self, backlogs={})
        backlogs = {
            move.partition: backlog
            for move in whole
            if (backlog := _follow_backlog(self.backlogs.get(move.partition), move, took))
        }
        # A reader that stands still, with whatever to read, shows no pace.
        proven = self.proven | {
            move.partition
            for move in whole
            if move.has_moved and backlogs[move.partition].proves_work
        }
        moved = self.moved + sum(move.after - move.before for move in whole)
        span = self.span + took
        added = ConsumptionBound(self.best, proven, moved, span, backlogs)
        return (
            added
            if span < COMMIT_RHYTHM
            else ConsumptionBound(added.pace, proven, backlogs=backlogs)
        )

    def limit(self, partition: int, since: datetime | None, until: datetime) -> int | None:
        """How many offsets of a partition can have been read at most; None where the samples do not
        show it.

        Args:
            since: a time at which it had read no further than its commit.
        """
        if since is None or partition not in self.proven:
            return None
        seconds = max(until - since, COMMIT_RHYTHM).total_seconds()
        return int(self.pace * SPEED_UP * seconds) + BURST


def _follow_backlog(
    known: BacklogAtCommit | None, move: CommitMove, took: timedelta
) -> BacklogAtCommit | None:
    """The backlog after a move; it begins with a commit, and anew with one that passes its end."""
    if not move.has_moved:
        return known and replace(known, lasted=known.lasted + took)
    if known is None or move.after >= known.end:
        return BacklogAtCommit(move.stable)
    return replace(known, lasted=known.lasted + took, commits=known.commits + 1)


# What must be kept of all earlier samples to judge the next one, in constant space.
#
# Judging a sample needs the highest commit ever seen, the last one, and what was suspected; not
# the samples themselves.

MEMBERLESS = ("empty", "dead")
# A commit set from outside stays where it is; a reader that never joins goes on committing.
SETTLE_JUMP = timedelta(seconds=2)


@dataclass(frozen=True, slots=True)
class CommitJump:
    """A commit that moved from `start` to `committed` while nobody was in the group."""

    start: int
    committed: int
    seen_at: datetime


@dataclass(frozen=True, slots=True)
class PartitionMarks:
    """One partition's past within one life of its topic.

    `highest` is the highest offset ever committed within the log, `committed` the last one seen;
    `stuck_since` is when it was first seen below the log start at that very offset, `moved_at` when
    it was first seen there after an earlier one, None where that is not known. `read_from` is a
    time at which the group had read no further than `committed`; `passed_by` is the first log start
    seen above it; `moved_alone`: it was moved there while nobody was in the group.
    """

    highest: int
    committed: int
    stuck_since: datetime | None = None
    jump: CommitJump | None = None
    moved: bool = False  # it moved between the last two samples
    moved_at: datetime | None = None
    read_from: datetime | None = None
    passed_by: int | None = None
    moved_alone: bool = False


@dataclass(frozen=True, slots=True)
class StreamHistory:
    """A stream's past. `commits_outside`: its reader commits without being a member.

    `empty_tails` are ranges [first, end) that were read and held no data, the last of a partition.
    """

    topic_id: str = ""
    earlier_topic_id: str = ""
    memberless: bool = False
    commits_outside: bool = False
    partitions: Mapping[int, PartitionMarks] = field(default_factory=dict)
    sampled: tuple[int, ...] = ()
    taken_at: datetime | None = None
    bound: ConsumptionBound = field(default_factory=ConsumptionBound)
    empty_tails: Mapping[int, tuple[int, int]] = field(default_factory=dict)

    def skip_empty(self, partition: int, committed: int) -> int:
        """The committed offset, moved past control records that follow it."""
        first, end = self.empty_tails.get(partition, (0, 0))
        return end if first <= committed < end else committed


def is_memberless(sample: Sample) -> bool:
    """Whether nobody was in the group. An unknown state counts as somebody."""
    return sample.group_state in MEMBERLESS


def is_missing(sample: Sample) -> bool:
    """Whether the cluster does not know the group, and so it has no commit anywhere."""
    return sample.group_state == "dead" and all(p.committed is None for p in sample.partitions)


def make_marks(samples: Iterable[Sample]) -> StreamHistory:
    """The marks of samples, oldest first."""
    marks = StreamHistory()
    for sample in samples:
        marks = advance_marks(marks, sample)
    return marks


def raise_marks(
    marks: StreamHistory, topic_id: str, commits: Mapping[int, tuple[int, int]]
) -> StreamHistory:
    """Adds what is known of commits older than the samples: partition -> (highest, last)."""
    if topic_id != marks.topic_id:
        return marks
    partitions = dict(marks.partitions)
    for partition, (highest, last) in commits.items():
        old = partitions.get(partition)
        partitions[partition] = (
            PartitionMarks(highest, last)
            if old is None
            else replace(old, highest=max(old.highest, highest))
        )
    return replace(marks, partitions=partitions)


def advance_marks(marks: StreamHistory, sample: Sample) -> StreamHistory:
    if marks.topic_id and marks.topic_id != sample.topic_id:
        marks = StreamHistory(earlier_topic_id=marks.topic_id)
    memberless = is_memberless(sample)
    alone = memberless and marks.memberless
    # Only a reader's own commit carries a leader epoch: this group reads without joining.
    outside = marks.commits_outside or any(
        alone
        and has_moved(marks.partitions.get(part.partition), part)
        and part.committed_epoch is not None
        for part in sample.partitions
    )
    partitions = dict(marks.partitions)
    for part in sample.partitions:
        if part.committed is not None:
            old = partitions.get(part.partition)
            partitions[part.partition] = _advance(
                old, part, part.committed, sample, alone, is_jump(marks, part, memberless)
            )
            partitions[part.partition] = replace(
                partitions[part.partition],
                read_from=_read_from(marks, old, sample, part, outside),
                passed_by=_passed_by(old, part, part.committed),
                moved_alone=old is not None
                and (
                    old.moved_alone
                    if part.committed == old.committed
                    else alone and part.committed > old.committed
                ),
            )
    return StreamHistory(
        topic_id=sample.topic_id,
        earlier_topic_id=marks.earlier_topic_id,
        memberless=memberless,
        commits_outside=outside,
        partitions=partitions,
        sampled=tuple(part.partition for part in sample.partitions),
        empty_tails=marks.empty_tails,
        taken_at=sample.taken_at,
        bound=_advance_bound(marks, sample),
    )


def _advance_bound(marks: StreamHistory, sample: Sample) -> ConsumptionBound:
    if marks.taken_at is None:
        return marks.bound
    moves = [
        CommitMove(part.partition, old.committed, part.committed, part.low, part.lso)
        for part in sample.partitions
        if part.committed is not None
        and (old := marks.partitions.get(part.partition)) is not None
        and not is_jump(marks, part, is_memberless(sample))
    ]
    return marks.bound.add(moves, sample.taken_at - marks.taken_at)


def _read_from(
    marks: StreamHistory,
    old: PartitionMarks | None,
    sample: Sample,
    part: PartitionSample,
    outside: bool,
) -> datetime | None:
    """A reader leaves with its commit; at the end of the log there is nothing more to read."""
    stopped = is_memberless(sample) and marks.memberless and not outside
    if stopped or part.committed == part.high:
        return sample.taken_at
    if old is not None and part.committed != old.committed:
        return marks.taken_at  # it was committed after the earlier sample
    return None if old is None else old.read_from


def _passed_by(old: PartitionMarks | None, part: PartitionSample, committed: int) -> int | None:
    if committed >= part.low:
        return None
    same = old is not None and old.committed == committed
    return (old.passed_by if old is not None and same else None) or part.low


def has_moved(old: PartitionMarks | None, part: PartitionSample) -> bool:
    """Whether the commit is above the highest ever seen before."""
    return old is not None and part.committed is not None and part.committed > old.highest


def is_jump(marks: StreamHistory, part: PartitionSample, memberless: bool) -> bool:
    """Whether a commit moved as only an operator's does (decision 0002)."""
    old = marks.partitions.get(part.partition)
    return (
        memberless
        and marks.memberless
        and has_moved(old, part)
        and part.committed_epoch is None
        and not marks.commits_outside
        and old is not None
        and not old.moved
    )


def _advance(
    old: PartitionMarks | None,
    part: PartitionSample,
    committed: int,
    sample: Sample,
    alone: bool,
    jumped: bool,
) -> PartitionMarks:
    below = committed < part.low
    if old is None:
        since = sample.taken_at if below else None
        return PartitionMarks(min(committed, part.high), committed, stuck_since=since)
    same = old.committed == committed
    since = (old.stuck_since if same and old.stuck_since else sample.taken_at) if below else None
    jump = old.jump if same and alone else None
    if jump is not None and sample.taken_at - jump.seen_at >= SETTLE_JUMP:
        jump = None  # decided by this sample: a log start that moves later must not repeat it
    elif jumped:
        jump = CommitJump(old.highest, committed, sample.taken_at)
    moved_at = old.moved_at if same else None
    return replace(
        old,
        # One beyond the end was never read up to, and would hide later losses.
        highest=max(old.highest, committed) if committed <= part.high else old.highest,
        committed=committed,
        stuck_since=since,
        jump=jump,
        moved=not same,
        moved_at=sample.taken_at if committed > old.committed else moved_at,
    )


# Stored samples as the timeline that turns offsets into times (protocol P1).

# The high watermark is read a moment after the sample's time.
READ_SLACK = timedelta(seconds=1)


def list_ends(
    samples: Iterable[Sample], partition: int, topic_id: str | None = None
) -> list[tuple[datetime, int, timedelta]]:
    """(time, high watermark, how long the reading took) of one partition, oldest first."""
    ends = [
        (sample.taken_at, part.high, max(READ_SLACK, timedelta(seconds=sample.took)))
        for sample in samples
        if topic_id is None or sample.topic_id == topic_id
        for part in sample.partitions
        if part.partition == partition
    ]
    return sorted(ends)


def bound_times(
    samples: Sequence[Sample],
    partition: int,
    start: int,
    end: int,
    topic_id: str | None = None,
) -> TimeBounds:
    """When the messages `[start, end)` were published.

    Args:
        topic_id: ignores samples of the topic's earlier lives; None takes the newest sample's.
    """
    if topic_id is None and samples:
        topic_id = max(samples, key=lambda sample: sample.taken_at).topic_id
    return _bound(list_ends(samples, partition, topic_id), start, end)


class Timeline:
    """`bound_times` for many ranges: the samples are gone through once for all partitions."""

    def __init__(self, samples: Iterable[Sample], topic_id: str) -> None:
        self._ends: dict[int, list[tuple[datetime, int, timedelta]]] = {}
        for sample in samples:
            if sample.topic_id != topic_id:
                continue
            slack = max(READ_SLACK, timedelta(seconds=sample.took))
            for part in sample.partitions:
                self._ends.setdefault(part.partition, []).append(
                    (sample.taken_at, part.high, slack)
                )

    def bound(self, partition: int, start: int, end: int) -> TimeBounds:
        """When the messages `[start, end)` of a partition were published."""
        return _bound(self._ends.get(partition, ()), start, end)


def date_loss(samples: Iterable[Sample], gap: Gap) -> datetime:
    """When the first of its messages was gone, as the samples saw it.

    The first sample in which the log start is past it; where none is kept, when it was found.
    """
    seen = (
        sample.taken_at
        for sample in samples
        if sample.topic_id == gap.topic_id and gap.start is not None
        for part in sample.partitions
        if part.partition == gap.partition and part.low > gap.start
    )
    return min((*seen, gap.detected_at))


def _bound(ends: Iterable[tuple[datetime, int, timedelta]], start: int, end: int) -> TimeBounds:
    """lower: the newest sample with `high <= start`, when the first of them was not there yet.
    upper: the oldest sample with `high > end - 1`, when the last of them was there."""
    ends, last = tuple(ends), max(start, end - 1)
    lower = max((at for at, high, _ in ends if high <= start), default=None)
    upper = min((at + slack for at, high, slack in ends if high > last), default=None)
    return TimeBounds(lower=lower, upper=upper)


def estimate_time(
    samples: Sequence[Sample], partition: int, offset: int, topic_id: str | None = None
) -> datetime | None:
    """About when one offset was published: between its two samples, by its place in between.

    None where the samples do not reach back to it, or it is not published yet.
    """
    before: tuple[datetime, int] | None = None
    for at, high, _ in list_ends(samples, partition, topic_id):
        if high <= offset:
            before = (at, high)
            continue
        if before is None:
            return None
        share = (offset - before[1] + 1) / (high - before[1])
        return before[0] + (at - before[0]) * share
    return None
