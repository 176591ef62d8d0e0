"""What must be kept of all earlier samples to judge the next one, in constant space.

Judging a sample needs the highest commit ever seen, the last one, and what was suspected; not the
samples themselves.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from backlog.values import PartitionSample, Sample
from monitoring.reach import ConsumptionBound, Move

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
class Marks:
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


def make_marks(samples: Iterable[Sample]) -> Marks:
    """The marks of samples, oldest first."""
    marks = Marks()
    for sample in samples:
        marks = advance_marks(marks, sample)
    return marks


def raise_marks(marks: Marks, topic_id: str, commits: Mapping[int, tuple[int, int]]) -> Marks:
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


def advance_marks(marks: Marks, sample: Sample) -> Marks:
    if marks.topic_id and marks.topic_id != sample.topic_id:
        marks = Marks(earlier_topic_id=marks.topic_id)
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
    return Marks(
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


def _advance_bound(marks: Marks, sample: Sample) -> ConsumptionBound:
    if marks.taken_at is None:
        return marks.bound
    moves = [
        Move(part.partition, old.committed, part.committed, part.low, part.lso)
        for part in sample.partitions
        if part.committed is not None
        and (old := marks.partitions.get(part.partition)) is not None
        and not is_jump(marks, part, is_memberless(sample))
    ]
    return marks.bound.add(moves, sample.taken_at - marks.taken_at)


def _read_from(
    marks: Marks,
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


def is_jump(marks: Marks, part: PartitionSample, memberless: bool) -> bool:
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
