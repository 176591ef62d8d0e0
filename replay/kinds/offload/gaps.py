"""The gaps of an offload: what it took off the brokers, on record before the group moves on."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime

from backlogctl.archive_manifest import ArchivedRange
from backlogctl.clock import Deadline
from backlogctl.errors import BacklogError, LeaseHeld, VerificationFailed
from backlogctl.formats import format_plural
from backlogctl.kafka.admin import list_offsets, read_group_state
from backlogctl.kafka.errors import GroupActive
from backlogctl.ledger.gaps import ITSELF
from backlogctl.monitoring.offsets.certainty import ask_doubts
from backlogctl.monitoring.offsets.lag import read_firsts
from backlogctl.monitoring.verdict.commands import redrive_offsets
from backlogctl.replay.consumers.stopped_group import (
    pass_overtaken,
    put_back_commits,
    record_expiry,
)
from backlogctl.replay.engine.plan import find_identity
from backlogctl.replay.kinds.offload.context import ASK_SECONDS, PLAIN, OffloadContext
from backlogctl.replay.kinds.offload.plan import COVERED, EXPIRED
from backlogctl.values import Cause, Gap, GapState, OffsetRange

_EMPTY = "it holds no messages: control records, aborted or compacted ones"


def record_discarded(context: OffloadContext) -> None:
    """Each range is an exact gap, with its archive; safe to call again.

    Without it the watcher would call the move of the group a skip.
    """
    archive = context.archive
    if archive is None:
        for item in context.ranges:
            first, last = context.date_range(item)
            _record(context, item, first, last, None)
        return
    for part in archive.ranges:
        item = OffsetRange(part.partition, part.start, part.end)
        _record(context, item, part.first_time, part.last_time, context.recovery.id)
        if not part.count:
            _waive(context, _list_within(context, item), _EMPTY)
    _tell_covered(context, archive.ranges)


def stage_discarded(context: OffloadContext) -> None:
    """Gaps with an archive wait in it; those without stay open for a rebuild."""
    ledger, recovery_id, actor = context.workspace.ledger, context.recovery.id, str(find_identity())
    for before, after in (
        (GapState.OPEN, GapState.PLANNED),
        (GapState.PLANNED, GapState.STAGED),
    ):
        own = [gap for gap in list_own(context) if gap.archive == recovery_id]
        ids = [gap.id for gap in own if gap.state is before]
        if ids:
            ledger.gaps.advance(ids, after, recovery_id=recovery_id, actor=actor)


def drop_reread(context: OffloadContext, why: str) -> None:
    """What the group reads again from where it is committed now is no gap: put back from the
    archive as well, it would be handled twice. All before that nobody reads: it stays a gap."""
    stage_discarded(context)  # one that is planned cannot be waived
    if not context.has_source():
        return  # commits are those of another topic
    lows, commits = context.read_lows(), context.read_commits()
    whole = []
    for gap in list_own(context):
        if gap.state not in (GapState.OPEN, GapState.STAGED):
            continue
        assert gap.start is not None
        assert gap.end is not None
        # A deletion may have done some partitions: what is below the log start is gone.
        at = max(commits[gap.partition].offset, lows[gap.partition])
        if at <= gap.start:
            whole.append(gap.id)
        elif at < gap.end:
            context.workspace.ledger.gaps.waive_from(gap, at, why, ITSELF)
    if whole:
        context.workspace.ledger.gaps.advance(whole, GapState.WAIVED, reason=why, actor=ITSELF)
    stage_discarded(context)  # what is left of those that were cut


def _waive(context: OffloadContext, ids: list[str], why: str) -> None:
    if ids:
        context.workspace.ledger.gaps.advance(
            ids, GapState.WAIVED, reason=why, actor=str(find_identity())
        )


def _make_mark(context: OffloadContext) -> str:
    """How the reason of its gaps begins."""
    return f"offload {context.recovery.id} "


def list_own(context: OffloadContext) -> list[Gap]:
    """The gaps of what this offload archived, or discarded without an archive."""
    mark, archived = _make_mark(context), context.plan.place is not None
    return [
        gap
        for gap in context.workspace.ledger.gaps.list(context.stream.name)
        if gap.archive == context.recovery.id
        or (not archived and gap.cause is Cause.DISCARDED and gap.reason.startswith(mark))
    ]


def _list_within(context: OffloadContext, item: OffsetRange) -> list[str]:
    """Its open gaps of a range: an older gap may cut it."""
    return [
        gap.id
        for gap in list_own(context)
        if gap.state is GapState.OPEN
        and gap.partition == item.partition
        and item.start <= (gap.start or 0) < item.end
    ]


def note_plain(context: OffloadContext) -> None:
    """Puts on record, once, which partitions were not written in transactions: after the offload's
    own marker nobody could tell that of what expires while it is at work."""
    if context.plain is not None:
        return
    topic, numbers, limit = context.recovery.topic, range(context.partitions), Deadline(ASK_SECONDS)
    ends = list_offsets(context.admin, topic, numbers, "latest", deadline=limit)
    begun = context.begun
    written = {n: context.date_range(OffsetRange(n, begun[n], ends[n]))[0] for n in numbers}
    doubts = ask_doubts(context.admin, topic, begun, written, limit)
    context.record(PLAIN, ends={str(n): at for n, at in ends.items() if n not in doubts})


def record_expired(context: OffloadContext, item: OffsetRange) -> None:
    """What retention removed before it was archived, since the group stands still."""
    record_expiry(
        *(context, item),
        f"retention removed them while offload {context.recovery.id} was at work",
        plain_until=(context.plain or {}).get(item.partition, 0),
    )
    context.record(EXPIRED, partition=item.partition, start=item.start, end=item.end)
    context.say(
        f"retention was faster than the archive: at most {format_plural(item.count, 'message')} of "
        f"partition {item.partition} ({item.start:,} to {item.end:,}) are lost, a gap on record: "
        f"`backlogctl gaps {context.stream.name}`"
    )


def _record(
    context: OffloadContext,
    item: OffsetRange,
    first: datetime | None,
    last: datetime | None,
    archive: str | None,
) -> Gap:
    where = "archived them" if archive else "discarded them, without an archive"
    reason = f"{_make_mark(context)}{where}"
    times = (first, last)
    return context.record_gap(item, Cause.DISCARDED, reason, times=times, archive=archive)


def find_uncovered(ranges: Iterable[ArchivedRange], own: Iterable[Gap]) -> list[OffsetRange]:
    """What of the archive is in no gap of its own, since an older gap has it."""
    gaps = [gap for gap in own if gap.start is not None and gap.end is not None]
    found = []
    for part in ranges:
        at = part.start
        if not part.count:
            continue
        for gap in sorted(gaps, key=lambda gap: gap.start or 0):
            assert gap.start is not None
            assert gap.end is not None
            if gap.partition != part.partition or gap.end <= at or gap.start >= part.end:
                continue
            if at < gap.start:
                found.append(OffsetRange(part.partition, at, gap.start))
            at = max(at, gap.end)
        if at < part.end:
            found.append(OffsetRange(part.partition, at, part.end))
    return found


def _tell_covered(context: OffloadContext, ranges: Iterable[ArchivedRange]) -> None:
    """The archive has messages that an older gap stands for: whoever rebuilds that gap from the
    tables does not know of the archive."""
    told = {
        (event.detail["partition"], event.detail["start"], event.detail["end"])
        for event in context.workspace.ledger.events.list(context.recovery.id)
        if event.action == COVERED
    }
    for item in find_uncovered(ranges, list_own(context)):
        if (item.partition, item.start, item.end) in told:
            continue
        context.record(COVERED, partition=item.partition, start=item.start, end=item.end)
        back = redrive_offsets(context.stream.name, [item], f"archive:{context.recovery.id}")
        context.say(
            f"partition {item.partition}, {item.start:,} to {item.end:,}: an older gap has these "
            f"messages (`backlogctl gaps {context.stream.name}`), and the archive has them too; "
            f"`{back}` puts them back from there"
        )


# Before its consumers start: where the group stands, and what somebody set it past since its move.


def prepare_group(context: OffloadContext) -> None:
    """Its consumers begin where the offload left it, and not where they like: also where its
    commits are gone, or retention overtook them, with a gap on record (faults 116, 117).

    What cannot be looked at is told as unknown: the consumers are started in any case.
    """
    _settle(context, put_back_commits)
    record_skipped(context)  # before anything else is set forward
    _settle(context, pass_overtaken)


def _settle(context: OffloadContext, settle: Callable[[OffloadContext], None]) -> None:
    group = context.recovery.group
    try:
        if not context.has_source():
            return
        if not read_group_state(context.admin, group, Deadline(ASK_SECONDS)).is_active:
            settle(context)
    except GroupActive:
        return  # who is there has begun
    except LeaseHeld:
        raise
    except BacklogError as error:
        context.say(f"whether the group begins where it was left is unknown: {error.message}")


SKIPPED = "the group was set past the fence"
_LOOKED = "the group was looked at before its consumers were started"


def record_skipped(context: OffloadContext) -> None:
    """Puts on record what nobody reads: the group was set forward after it was moved.

    Or, where the offload is taken back, after its consumers were stopped. Only before their first
    start, while the group is empty: what is committed later may be their own. A reader's own commit
    carries a leader epoch, and is only told. What cannot be looked at is told as unknown: the
    consumers are started in any case.
    """
    try:
        _look(context)
    except LeaseHeld:
        raise
    except BacklogError as error:
        context.say(f"whether somebody set the group forward is unknown: {error.message}")


def _look(context: OffloadContext) -> None:
    if not context.has_source() or _has_looked(context):
        return
    group, topic = context.recovery.group, context.recovery.topic
    if read_group_state(context.admin, group, Deadline(ASK_SECONDS)).is_active:
        return
    numbers = range(context.partitions)
    # Taken back, the group goes on where its consumers were stopped.
    targets = context.targets if context.goes_forward else context.begun
    ends = list_offsets(context.admin, topic, numbers, "latest", deadline=Deadline(ASK_SECONDS))
    known = list_skipped(context)
    for number, commit in sorted(context.read_commits().items()):
        item = OffsetRange(number, targets[number], min(commit.offset, ends[number]))
        if item.start >= item.end or item in known or _is_empty(context, item):
            continue
        where = f"of partition {number} ({item.start:,} to {item.end:,})"
        many = f"at most {format_plural(item.count, 'message')} {where}"
        if commit.epoch is not None:
            context.say(f"a consumer that nobody stopped has read on while it offloaded: {many}")
            continue
        _skipping_record(context, item)
        context.record(SKIPPED, partition=number, start=item.start, end=item.end)
        context.say(f"somebody set the group's offsets forward, past {many}: they are a gap")
    context.record(_LOOKED)


def _is_empty(context: OffloadContext, item: OffsetRange) -> bool:
    """Whether no message lies there: markers, such as the one by which the offload ended a segment,
    or aborted ones. What is open still may be messages."""
    place, limit = (context.recovery.topic, item.partition, item.start), Deadline(ASK_SECONDS)
    stable = list_offsets(
        context.admin, place[0], [item.partition], "latest", "read_committed", limit
    )
    if stable[item.partition] < item.end:
        return False
    found = read_firsts(context.properties, [place], limit, f"topic {place[0]}").found
    if place[:2] not in found:
        return False
    first = found[place[:2]]
    return first is None or first.offset >= item.end


def list_skipped(context: OffloadContext) -> list[OffsetRange]:
    """What is on record of it."""
    return [
        OffsetRange(event.detail["partition"], event.detail["start"], event.detail["end"])
        for event in context.workspace.ledger.events.list(context.recovery.id)
        if event.action == SKIPPED
    ]


def refuse_skipped(context: OffloadContext) -> None:
    """What is neither archived nor read is no success, though all else is done.

    Raises:
        VerificationFailed: says how much it is.
    """
    skipped = list_skipped(context)
    if not skipped or context.cancelling:
        return
    many = format_plural(sum(item.count for item in skipped), "message")
    raise VerificationFailed(
        f"at most {many} are in no archive and are read by nobody: somebody set the group's "
        "offsets past them while the recovery was at work; they are a gap on record",
        subject=f"group {context.recovery.group} on topic {context.recovery.topic}",
        hint="all else is done, and the archive is kept: a cancel closes this recovery; a plan of "
        "its own puts back what lies in the gap",
    )


def _has_looked(context: OffloadContext) -> bool:
    events = context.workspace.ledger.events.list(context.recovery.id)
    return any(event.action == _LOOKED for event in events)


def _skipping_record(context: OffloadContext, item: OffsetRange) -> None:
    reason = f"somebody set the group past them while offload {context.recovery.id} was at work"
    context.record_gap(item, Cause.SKIPPED, reason)
