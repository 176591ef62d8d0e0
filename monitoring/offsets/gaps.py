"""Which messages a group will never read: pure functions over samples (protocol P1).

A gap is certain to be one; everything less is a finding. When a jump of the committed
offset counts as a skip: docs/decisions/0002-when-a-jump-is-a-skip.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from enum import StrEnum

from backlogctl.kafka.group_types import SHARE
from backlogctl.monitoring.offsets.history import (
    READERS_MOVES,
    SIMPLE,
    PartitionMarks,
    SeenCommit,
    StreamHistory,
    is_memberless,
    is_missing,
)
from backlogctl.values import LOG_START, Cause, Certainty, Gap, GapState, PartitionSample, Sample

# A reader that never joins is gone when it has rested so much longer than ever before.
REST_UNTIL = 3
LEAST_REST = timedelta(minutes=10)

Commits = Mapping[int, Sequence[SeenCommit]]
"""By partition the commits since the last sample, oldest first, as the commit log has them."""


class Suspicion(StrEnum):
    """Why a finding is reported that is not a gap."""

    SUSPECTED_EXPIRED = "suspected_expired"  # committed < low, but a reader may have read further
    POSSIBLE_EXPIRED = "possible_expired"  # passed over by the log start between two commits
    REREAD_EXPIRED = "reread_expired"  # rewound to offsets that are gone; it had read them before
    BEYOND_END = "beyond_end"  # committed > end of the log
    NO_SUCH_GROUP = "no_such_group"  # neither members nor a commit: perhaps a wrong name
    NO_COMMIT_YET = "no_commit_yet"  # members, data, and no commit
    LOW_MOVED = "low_moved"  # the log start moved while it was looked at


@dataclass(frozen=True, slots=True)
class OffsetFinding:
    """Something to report that is not a gap.

    `alarm`: needs a person now. `count`: how many offsets may be lost at most, where the range does
    not say it.
    """

    kind: Suspicion
    partition: int
    start: int | None
    end: int | None
    message: str
    alarm: bool = False
    count: int = 0


@dataclass(frozen=True, slots=True)
class Judgement:
    """What one sample shows against its past. Gaps have no id and no times yet.

    Attributes:
        history: the past for the next one.
        read_to: by partition, a commit that the group reached by reading on below the log start.
        reads_outside: it turned out that the group is read from without joining: what seemed to
            be set forward was read.
    """

    gaps: tuple[Gap, ...]
    findings: tuple[OffsetFinding, ...]
    history: StreamHistory
    read_to: Mapping[int, int] = field(default_factory=dict)
    reads_outside: bool = False


def find_gaps(
    previous: Sequence[Sample] | StreamHistory, current: Sample, commits: Commits | None = None
) -> Judgement:
    """Judges one sample against the past.

    Args:
        previous: earlier samples, oldest first, or what is kept of them.
        commits: of the commit log; None goes by the samples alone.
    """
    past = previous if isinstance(previous, StreamHistory) else make_history(previous)
    found: list[Gap | OffsetFinding] = []
    if past.topic_id and past.topic_id != current.topic_id:
        found.extend(_report_recreated(past, current))
        past = StreamHistory(earlier_topic_id=past.topic_id)
    simple = current.group_state == SIMPLE
    outside = past.commits_outside or simple
    partitions, read_to = dict(past.partitions), dict[int, int]()
    later: dict[int, tuple[SeenCommit, ...]] = {}
    for part in current.partitions:
        old = partitions.get(part.partition)
        if part.committed is None:
            found.extend(_judge_no_commit(past, old, current, part))
            continue
        known = (*past.later.get(part.partition, ()), *(commits or {}).get(part.partition, ()))
        steps, later[part.partition] = _list_steps(past, old, current, part, known)
        marks, lost, outside = _follow(
            old or _begin(current, part, steps), current, part, steps, outside
        )
        found.extend(lost)
        if part.committed > part.high:
            found.append(_report_beyond_end(part, part.committed))
        elif marks.committed < part.low:
            found.extend(_judge_below(past, marks, current, part, outside))
        if old is not None and _has_read_on(past, old, current, part, outside):
            read_to[part.partition] = part.committed
        partitions[part.partition] = marks
    history = StreamHistory(
        topic_id=current.topic_id,
        earlier_topic_id=past.earlier_topic_id,
        memberless=is_memberless(current),
        commits_outside=past.commits_outside if simple else outside,
        partitions=partitions,
        sampled=tuple(part.partition for part in current.partitions),
        taken_at=current.taken_at,
        empty_tails=past.empty_tails,
        later=later if commits is not None else {},
    )
    return Judgement(
        gaps=tuple(item for item in found if isinstance(item, Gap)),
        findings=tuple(item for item in found if isinstance(item, OffsetFinding)),
        history=history,
        read_to=read_to,
        reads_outside=outside and not past.commits_outside,
    )


def make_history(samples: Iterable[Sample], before: StreamHistory | None = None) -> StreamHistory:
    """What is kept of samples, oldest first. `before`: of earlier ones."""
    history = before or StreamHistory()
    for sample in samples:
        history = find_gaps(history, sample).history
    return history


def _list_steps(
    past: StreamHistory,
    old: PartitionMarks | None,
    current: Sample,
    part: PartitionSample,
    known: Sequence[SeenCommit],
) -> tuple[list[SeenCommit], tuple[SeenCommit, ...]]:
    """The commits up to the one that the sample saw, and later ones: the sample's log start was
    read before these, and says nothing of them."""
    offsets = [commit.offset for commit in known]
    seen_at = LOG_START if part.at_start else part.committed
    if seen_at in offsets:
        last = len(offsets) - offsets[::-1].index(seen_at)
        return list(known[:last]), tuple(known[last:])
    if part.at_start:
        return [], tuple(known)
    if old is not None and part.committed == old.committed:
        return [], tuple(known)
    assert part.committed is not None
    # One that came since the group was last seen with members may be theirs.
    members = not (is_memberless(current) and past.memberless)
    seen = SeenCommit(current.taken_at, part.committed, members, part.committed_epoch is not None)
    return [*known, seen], ()


def _begin(current: Sample, part: PartitionSample, steps: Sequence[SeenCommit]) -> PartitionMarks:
    """Of a partition that was not seen before: where its first commit is."""
    for first in steps:
        if first.offset != LOG_START:
            return PartitionMarks(min(first.offset, part.high), first.offset, first.at)
    # It began here or before: what expires from now on is lost.
    return PartitionMarks(part.low, part.low, current.taken_at)


def _follow(
    marks: PartitionMarks,
    current: Sample,
    part: PartitionSample,
    steps: Sequence[SeenCommit],
    outside: bool,
) -> tuple[PartitionMarks, list[Gap | OffsetFinding], bool]:
    """One partition's commits, one after the other, and what they show to be lost."""
    lost: list[Gap | OffsetFinding] = []
    for commit in steps:
        if commit.offset == LOG_START:
            continue  # the next one tells how far it has read from there
        before, alone = marks, commit.members is False
        if commit.offset > max(marks.highest, marks.committed):
            outside = outside or (alone and (commit.has_epoch or marks.moves + 1 >= READERS_MOVES))
            if alone and not outside:
                lost.extend(_judge_jump(current, part, marks, commit))
                marks = replace(marks, span=None, passed=())
            else:
                marks = marks.read_on(commit, part.low)
        elif commit.offset != marks.committed:
            # Rewound, or a rewind undone: it reads what it had read.
            marks = replace(marks, span=None, passed=())
        marks = _stand(marks, before, commit, part)
    if marks.is_decided(current.taken_at):
        lost.extend(_report_passed(current, part.partition, marks))
        burst = marks.pace.burst
        marks = replace(marks, passed=(), owing=0, usual=burst, budget=burst)
    elif marks.passed and (marks.owing or not marks.pace.is_known):
        lost.append(_report_undecided(part.partition, marks))
    # Nobody reads on while nobody is there, or at the end.
    idle = (is_memberless(current) and not outside) or part.committed == part.high
    marks = replace(
        marks,
        at=current.taken_at if idle else marks.at,
        span=None if idle else marks.span,
        ends=marks.see_end(current.taken_at, part.high),
        passed_by=_passed_by(marks, part),
    )
    return marks, lost, outside


def _stand(
    marks: PartitionMarks, before: PartitionMarks, commit: SeenCommit, part: PartitionSample
) -> PartitionMarks:
    """Where the group stands after a commit."""
    offset = commit.offset
    if offset == before.committed:
        return replace(marks, at=commit.at) if commit.is_record else marks
    rests = marks.rests
    if before.moved_at is not None:
        rests = max(rests, commit.at - before.moved_at)
    forward = commit.members is False and before.highest < offset
    return replace(
        marks,
        # One beyond the end was never read up to, and would hide later losses.
        highest=max(before.highest, offset) if offset <= part.high else before.highest,
        committed=offset,
        at=commit.at,
        moved_at=commit.at,
        moves=marks.moves + 1 if forward else 0,
        rests=rests,
        passed_by=None,
    )


def _passed_by(marks: PartitionMarks, part: PartitionSample) -> int | None:
    # From where it reads on after a reset is not known.
    if marks.committed >= part.low or part.at_start:
        return None
    return marks.passed_by or part.low


def _has_read_on(
    past: StreamHistory, old: PartitionMarks, current: Sample, part: PartitionSample, outside: bool
) -> bool:
    """A reset lands on a log start; a commit below the first one seen above the earlier commit
    was reached by reading on. Nobody can reset the offsets of a group with members."""
    reads = outside or not is_memberless(current)
    return (
        reads
        and not part.at_start
        and old.passed_by is not None
        and old.committed < (part.committed or 0) < old.passed_by
    )


def _judge_jump(
    current: Sample, part: PartitionSample, old: PartitionMarks, commit: SeenCommit
) -> Iterator[Gap]:
    """A forward move while nobody was in the group: an operator's, or of a reader that never
    joins. Which of the two, later moves tell."""
    reason = (
        f"the commit moved from {old.highest} to {commit.offset} while nobody was in the group: it "
        "was set forward, or a reader that never joins has read that"
    )
    middle = min(max(old.highest, part.low), commit.offset)
    for start, end, cause in (
        (old.highest, middle, Cause.EXPIRED),
        (middle, commit.offset, Cause.SKIPPED),
    ):
        if start < end:
            yield _make_gap(current, part.partition, start, end, cause, Certainty.POSSIBLE, reason)


# A reader goes on past what had expired. A fetch below the log start is refused, and
# `auto.offset.reset=earliest` goes on at the log start of that moment, `latest` at the end. Of each
# range passed, what was not read before is lost: which offsets were read is not known, and how many
# only by the reader's usual pace.


def _report_passed(current: Sample, partition: int, marks: PartitionMarks) -> Iterator[Gap]:
    pace = marks.pace
    reads = "how fast it reads a backlog was not seen"
    if pace.typical is not None:
        reads = f"it reads about {pace.typical:,.0f} offsets a second"
    if pace.is_known:
        reads += f", {pace.fastest:,.0f} at most"
    certainty = Certainty.BOUNDED if marks.is_too_fast else Certainty.POSSIBLE
    for each in marks.passed:
        reason = f"retention overtook the group, which went on; {reads}"
        gap = _make_gap(
            *(current, partition, each.start, each.end),
            *(Cause.EXPIRED, certainty, reason),
        )
        yield replace(gap, likely=each.count_likely(pace.typical))
        if marks.is_too_fast and each.to - each.end > pace.burst + pace.allow(each.took):
            reason = f"{reason}; auto.offset.reset=latest may have led it to {each.to:,}"
            place = (current, partition, each.end, each.to, Cause.SKIPPED)
            likely = round(each.to - each.end - pace.expect(each.took))
            yield replace(_make_gap(*place, Certainty.POSSIBLE, reason), likely=likely)


def _report_undecided(partition: int, marks: PartitionMarks) -> OffsetFinding:
    count = sum(each.offsets for each in marks.passed)
    why = (
        "its next commits decide"
        if marks.pace.is_known
        else "how fast it reads a backlog was not seen"
    )
    return OffsetFinding(
        Suspicion.POSSIBLE_EXPIRED,
        partition,
        marks.passed[0].start,
        marks.passed[-1].end,
        f"up to {count:,} offsets had expired when the group went on past them; it may have read "
        f"them: {why}",
        count=count,
    )


def _report_recreated(marks: StreamHistory, current: Sample) -> Iterator[Gap]:
    for partition in marks.sampled:
        reason = f"the topic's id was {marks.topic_id}"
        yield _report_gap(current, partition, None, Cause.TOPIC_RECREATED, reason)


def _judge_no_commit(
    marks: StreamHistory, old: PartitionMarks | None, current: Sample, part: PartitionSample
) -> Iterator[Gap | OffsetFinding]:
    if old is not None:
        reason = f"the group had committed {old.committed} and has no offset now"
        yield _report_gap(current, part.partition, old.committed, Cause.COMMIT_VANISHED, reason)
    elif part.high == 0 or marks.earlier_topic_id or current.group_state == SHARE:
        # Never written: nothing can be lost. Recreated: reported with that cause already. A share
        # group never commits.
        return
    elif is_missing(current):
        # A name that was mistyped must leave nothing on record; said once, not by partition.
        if part.partition != next(p.partition for p in current.partitions if p.high):
            return
        yield OffsetFinding(
            *(Suspicion.NO_SUCH_GROUP, part.partition, None, None),
            f"group {current.group} does not exist on this cluster (never_committed): what it "
            "read, or lost, is unknown; is its name right?",
        )
    elif is_memberless(current):
        reason = "the group has no offset: what it read, or lost, is unknown"
        yield _report_gap(current, part.partition, None, Cause.NEVER_COMMITTED, reason)
    else:
        yield OffsetFinding(
            *(Suspicion.NO_COMMIT_YET, part.partition, None, None),
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
    past: StreamHistory,
    marks: PartitionMarks,
    current: Sample,
    part: PartitionSample,
    outside: bool,
) -> Iterator[Gap | OffsetFinding]:
    committed, start = marks.committed, marks.committed
    if marks.highest > committed:
        start = min(marks.highest, part.low)
        yield OffsetFinding(
            Suspicion.REREAD_EXPIRED,
            part.partition,
            committed,
            start,
            f"the group was rewound to {committed}, and {start - committed} offsets that it had "
            "committed before are gone",
        )
    # Expired control records were no messages.
    start = max(start, min(past.skip_empty(part.partition, committed), part.low))
    if start >= part.low:
        return
    place = (current, part.partition, start, part.low, Cause.EXPIRED)
    alone = is_memberless(current)
    # A sample reads first who is in the group: what its last members read is committed.
    if alone and not outside and not marks.moves:
        # By a commit of the log start it gave up what it had read since the one before.
        reason = "its last commit names no offset but the log start" if part.at_start else ""
        yield _make_gap(*place, Certainty.BOUNDED if reason else Certainty.EXACT, reason)
        return
    rested = current.taken_at - marks.at
    if alone and rested > max(REST_UNTIL * marks.rests, LEAST_REST):
        reason = f"the commit stands at {committed}; its reader, which never joins, may live"
        yield _make_gap(*place, Certainty.BOUNDED, reason)
        return
    yield OffsetFinding(
        Suspicion.SUSPECTED_EXPIRED,
        part.partition,
        start,
        part.low,
        f"up to {part.low - start:,} offsets were deleted in front of the commit {committed}; the "
        f"group {'is read from without members' if alone else 'has members'}, and its client may "
        "have fetched them: its next commits decide",
        count=part.low - start,
    )


def _report_gap(
    sample: Sample, partition: int, start: int | None, cause: Cause, reason: str
) -> Gap:
    """One whose end nobody knows."""
    return _make_gap(sample, partition, start, None, cause, Certainty.REPORTED, reason)


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
