"""Which messages a group will never read: pure functions over samples (protocol P1).

A gap is certain to be one; everything less is a finding. When a jump of the committed
offset counts as a skip: docs/decisions/0002-when-a-jump-is-a-skip.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from itertools import pairwise

from backlogctl.clock import format_time
from backlogctl.formats import format_count, format_plural
from backlogctl.kafka.group_types import SHARE
from backlogctl.monitoring.offsets.history import (
    SETTLE_JUMP,
    PartitionMarks,
    StreamHistory,
    is_jump,
    is_memberless,
    is_missing,
    make_marks,
)
from backlogctl.values import Cause, Certainty, Gap, GapState, OffsetRange, PartitionSample, Sample

# A live reader may hold a position above its commit for as long as clients commit by default.
SETTLE_ACTIVE = timedelta(seconds=6)


class Suspicion(StrEnum):
    """Why a finding is reported that is not a gap."""

    SUSPECTED_EXPIRED = "suspected_expired"  # committed < low, but a reader may have read further
    POSSIBLE_EXPIRED = "possible_expired"  # passed over by the log start between two samples
    REREAD_EXPIRED = "reread_expired"  # rewound to offsets that are gone; it had read them before
    SUSPECTED_SKIP = "suspected_skip"  # looks like a reset; the next sample decides
    POSSIBLE_SKIP = "possible_skip"  # moved without members; may be a reader that never joins
    BEYOND_END = "beyond_end"  # committed > end of the log
    NO_SUCH_GROUP = "no_such_group"  # neither members nor a commit: perhaps a wrong name
    NO_COMMIT_YET = "no_commit_yet"  # members, data, and no commit
    LOW_MOVED = "low_moved"  # the log start moved while it was looked at


@dataclass(frozen=True, slots=True)
class OffsetFinding:
    """Something to report that is not a gap.

    `alarm`: needs a person now. `undecided`: another sample, a few seconds later, decides.
    """

    kind: Suspicion
    partition: int
    start: int | None
    end: int | None
    message: str
    alarm: bool = False
    undecided: bool = False


@dataclass(frozen=True, slots=True)
class Judgement:
    """What one sample shows against its past. Gaps have no id and no times yet.

    `read_to`: by partition, a commit that the group reached by reading on below the log start.
    """

    gaps: tuple[Gap, ...]
    findings: tuple[OffsetFinding, ...]
    read_to: Mapping[int, int] = field(default_factory=dict)

    @property
    def is_undecided(self) -> bool:
        """Whether another sample soon would decide more."""
        return any(finding.undecided for finding in self.findings)


def find_gaps(
    previous: Sequence[Sample] | StreamHistory,
    current: Sample,
    *,
    settle_active: timedelta = SETTLE_ACTIVE,
) -> Judgement:
    """Judges one sample against the past.

    Args:
        previous: earlier samples, oldest first, or their marks.
        settle_active: how long the commit of a group with members, or with a reader that never
            joins, must stand below the log start.
    """
    marks = previous if isinstance(previous, StreamHistory) else make_marks(previous)
    found: list[Gap | OffsetFinding] = []
    if marks.topic_id and marks.topic_id != current.topic_id:
        found.extend(_report_recreated(marks, current))
        marks = StreamHistory(earlier_topic_id=marks.topic_id)
    for part in current.partitions:
        old = marks.partitions.get(part.partition)
        if part.committed is None:
            found.extend(_judge_no_commit(marks, old, current, part))
        elif part.committed > part.high:
            found.append(_report_beyond_end(part, part.committed))
        elif part.committed < part.low:
            found.extend(_judge_below(marks, current, part, part.committed, settle_active))
        elif old is not None:
            found.extend(_judge_moved(marks, old, current, part, part.committed))
    return Judgement(
        gaps=tuple(item for item in found if isinstance(item, Gap)),
        findings=tuple(item for item in found if isinstance(item, OffsetFinding)),
        read_to=_find_read_on(marks, current),
    )


def _find_read_on(marks: StreamHistory, current: Sample) -> dict[int, int]:
    """A reset lands on a log start; a commit below the first one seen above the earlier commit
    was reached by reading on. Nobody can reset the offsets of a group with members."""
    if is_memberless(current) and not marks.commits_outside:
        return {}
    return {
        part.partition: part.committed
        for part in current.partitions
        if part.committed is not None
        and (old := marks.partitions.get(part.partition)) is not None
        and old.passed_by is not None
        and old.committed < part.committed < old.passed_by
    }


def _report_recreated(marks: StreamHistory, current: Sample) -> Iterator[Gap]:
    for partition in marks.sampled:
        yield _make_gap(
            current,
            partition,
            None,
            None,
            Cause.TOPIC_RECREATED,
            Certainty.REPORTED,
            f"the topic's id was {marks.topic_id}",
        )


def _judge_no_commit(
    marks: StreamHistory, old: PartitionMarks | None, current: Sample, part: PartitionSample
) -> Iterator[Gap | OffsetFinding]:
    if old is not None:
        yield _make_gap(
            current,
            part.partition,
            old.committed,
            None,
            Cause.COMMIT_VANISHED,
            Certainty.REPORTED,
            f"the group had committed {old.committed} and has no offset now",
        )
    elif part.high == 0 or marks.earlier_topic_id or current.group_state == SHARE:
        # Never written: nothing can be lost. Recreated: reported with that cause already. A share
        # group never commits.
        return
    elif is_missing(current):
        # A name that was mistyped must leave nothing on record; said once, not by partition.
        if part.partition != next(p.partition for p in current.partitions if p.high):
            return
        yield OffsetFinding(
            Suspicion.NO_SUCH_GROUP,
            part.partition,
            None,
            None,
            f"group {current.group} does not exist on this cluster (never_committed): what it "
            "read, or lost, is unknown; is its name right?",
        )
    elif is_memberless(current):
        yield _make_gap(
            current,
            part.partition,
            None,
            None,
            Cause.NEVER_COMMITTED,
            Certainty.REPORTED,
            "the group has no offset: what it read, or lost, is unknown",
        )
    else:
        yield OffsetFinding(
            Suspicion.NO_COMMIT_YET,
            part.partition,
            None,
            None,
            "the group has members but has not committed yet: unknown",
        )


def _report_beyond_end(part: PartitionSample, committed: int) -> OffsetFinding:
    return OffsetFinding(
        Suspicion.BEYOND_END,
        part.partition,
        part.high,
        committed,
        f"the group committed {committed}, beyond the end {part.high}: the log was cut back, or "
        "the offset was set wrong; messages written up to there will be skipped",
        alarm=True,
    )


def _judge_below(
    marks: StreamHistory,
    current: Sample,
    part: PartitionSample,
    committed: int,
    settle: timedelta,
) -> Iterator[Gap | OffsetFinding]:
    old = marks.partitions.get(part.partition)
    start = committed
    if old is not None and old.highest > committed:
        start = min(old.highest, part.low)
        yield OffsetFinding(
            Suspicion.REREAD_EXPIRED,
            part.partition,
            committed,
            start,
            f"the group was rewound to {committed}, and {start - committed} offsets that it had "
            "committed before are gone",
        )
    # Expired control records were no messages.
    start = max(start, min(marks.skip_empty(part.partition, committed), part.low))
    if start >= part.low:
        return
    since = old.stuck_since if old is not None and old.committed == committed else None
    stood = since is not None and current.taken_at - since >= settle
    alone = is_memberless(current)
    reading = marks.commits_outside or _moves(old, current, committed, settle)
    outside = marks.commits_outside or (old is not None and old.moved_alone)
    # A sample reads first who is in the group: what its last members read is committed.
    if alone and not reading and not outside:
        yield _make_gap(
            current, part.partition, start, part.low, Cause.EXPIRED, Certainty.EXACT, ""
        )
        return
    if stood:
        reader = "a reader that never joins" if alone else "the group has members and"
        yield _make_gap(
            current,
            part.partition,
            start,
            part.low,
            Cause.EXPIRED,
            Certainty.BOUNDED,
            f"the commit stands at {committed}; {reader} may have read on without committing",
        )
        return
    yield OffsetFinding(
        Suspicion.SUSPECTED_EXPIRED,
        part.partition,
        start,
        part.low,
        f"committed {committed} is below the log start {part.low}; the group "
        f"{'is read from without members' if alone else 'has members'}, and may have read further "
        "than it committed",
        undecided=True,
    )


def _moves(old: PartitionMarks | None, current: Sample, committed: int, settle: timedelta) -> bool:
    """Whether the commit went on lately: without members, by a reader that never joins."""
    if old is None:
        return False
    lately = old.moved_at is not None and current.taken_at - old.moved_at < settle
    return committed > old.committed or (committed == old.committed and lately)


def _judge_moved(
    marks: StreamHistory,
    old: PartitionMarks,
    current: Sample,
    part: PartitionSample,
    committed: int,
) -> Iterator[Gap | OffsetFinding]:
    alone = is_memberless(current) and marks.memberless
    jump = old.jump
    if jump is not None and alone and jump.committed == committed:
        if current.taken_at - jump.seen_at >= SETTLE_JUMP:
            yield from _split_skip(current, part, jump.start, committed)
        else:
            yield _suspect_skip(part, jump.start, committed)
    elif committed <= old.highest:
        return  # a rewind undone is no skip
    elif is_jump(marks, part, is_memberless(current)):
        yield _suspect_skip(part, old.highest, committed)
    else:
        if alone:
            yield OffsetFinding(
                Suspicion.POSSIBLE_SKIP,
                part.partition,
                old.highest,
                committed,
                "the commit moved while the group had no members: a reader that never joins, or "
                "offsets set from outside",
            )
        if old.highest < part.low:
            yield _judge_overtaken(marks, old, current, part, committed)


def _judge_overtaken(
    marks: StreamHistory,
    old: PartitionMarks,
    current: Sample,
    part: PartitionSample,
    committed: int,
) -> Gap | OffsetFinding:
    """The log start passed the earlier commit c0 and stands at l1; the group is at c1 >= l1.

    A fetch below the log start is refused, and `auto.offset.reset=earliest` sets the position to
    the log start as it is at that moment, at most l1. So [l1, c1) was read, and what was lost lies
    in [c0, l1). Of the c1 - c0 offsets the group can have read `limit` at most: at least
    c1 - c0 - limit of [c0, l1) were lost. Which ones is not known: it may have read on from c0, or
    from a log start in between. (With `latest` it lost more, above l1; no sample shows that.)
    """
    width = part.low - old.highest
    limit = marks.bound.limit(part.partition, old.read_from, current.taken_at)
    least = 0 if limit is None else min(width, committed - old.highest - limit)
    if least > 0:
        return _make_gap(
            current,
            part.partition,
            old.highest,
            part.low,
            Cause.EXPIRED,
            Certainty.BOUNDED,
            f"retention overtook the group: it moved from {old.highest} to {committed} and can "
            f"have read {limit} of that; at least {least} and at most {width} offsets were lost",
        )
    return OffsetFinding(
        Suspicion.POSSIBLE_EXPIRED,
        part.partition,
        old.highest,
        part.low,
        f"up to {width} offsets expired between two samples; the group is past them and may have "
        "read them",
    )


def _suspect_skip(part: PartitionSample, start: int, committed: int) -> OffsetFinding:
    return OffsetFinding(
        Suspicion.SUSPECTED_SKIP,
        part.partition,
        start,
        committed,
        f"the commit jumped from {start} to {committed} while the group had no members",
        undecided=True,
    )


def _split_skip(
    current: Sample, part: PartitionSample, start: int, committed: int
) -> Iterator[Gap]:
    reason = f"the commit was set from {start} to {committed} while the group had no members"
    middle = min(max(start, part.low), committed)
    if start < middle:
        yield _make_gap(
            current, part.partition, start, middle, Cause.EXPIRED, Certainty.BOUNDED, reason
        )
    if middle < committed:
        yield _make_gap(
            current, part.partition, middle, committed, Cause.SKIPPED, Certainty.BOUNDED, reason
        )


def _make_gap(
    sample: Sample,
    partition: int,
    start: int | None,
    end: int | None,
    cause: Cause,
    certainty: Certainty,
    reason: str,
) -> Gap:
    return Gap(
        id="",
        stream=sample.stream,
        cluster=sample.cluster,
        topic=sample.topic,
        group=sample.group,
        topic_id=sample.topic_id,
        partition=partition,
        start=start,
        end=end,
        cause=cause,
        certainty=certainty,
        state=GapState.OPEN,
        first_time=None,
        last_time=None,
        detected_at=sample.taken_at,
        reason=reason,
    )


# Offsets that expired between two stored samples; the group may have missed them.

# Samples that are farther apart say nothing of what happened in between.
FARTHEST = timedelta(minutes=10)


@dataclass(frozen=True, slots=True)
class PossiblyExpired:
    """Offsets of one partition that expired above one commit and below the next, over `times`
    pairs of samples: at most so many messages were lost."""

    partition: int
    offsets: int
    times: int
    since: datetime

    def __str__(self) -> str:
        return (
            f"partition {self.partition}: since {format_time(self.since)[:16]}Z up to "
            f"{format_plural(self.offsets, 'offset')} expired between samples in "
            f"{format_count(self.times)} places; the group is past them and may have lost some"
        )


def list_possibly_expired(
    history: Sequence[Sample], gaps: Iterable[Gap]
) -> tuple[PossiblyExpired, ...]:
    """By partition, without what a recorded gap has.

    Args:
        history: the stream's samples, oldest first.
    """
    if not history:
        return ()
    newest = history[-1]
    recorded: dict[int, list[OffsetRange]] = {}
    for gap in gaps:
        own = (gap.group, gap.topic_id) == (newest.group, newest.topic_id)
        if own and gap.start is not None and gap.end is not None:
            item = OffsetRange(gap.partition, gap.start, gap.end)
            recorded.setdefault(gap.partition, []).append(item)
    found: dict[int, PossiblyExpired] = {}
    own_life = [sample for sample in history if sample.topic_id == newest.topic_id]
    for number, start, end, at in _list_ranges(own_life):
        if any(gap.start <= start and end <= gap.end for gap in recorded.get(number, ())):
            continue
        old = found.get(number, PossiblyExpired(number, 0, 0, at))
        found[number] = PossiblyExpired(number, old.offsets + end - start, old.times + 1, old.since)
    return tuple(found[number] for number in sorted(found))


def _list_ranges(history: Sequence[Sample]) -> Iterator[tuple[int, int, int, datetime]]:
    for before, after in pairwise(history):
        # Those in between are thinned: what a healthy group read meanwhile has expired as well.
        if after.taken_at - before.taken_at > FARTHEST:
            continue
        earlier = {part.partition: part for part in before.partitions}
        for part in after.partitions:
            old = earlier.get(part.partition)
            if old is None or old.committed is None or part.committed is None:
                continue
            # Where all of the log expired since, a group at its end has read what is gone.
            if old.committed < part.low <= min(part.committed, old.high):
                yield part.partition, old.committed, part.low, before.taken_at
