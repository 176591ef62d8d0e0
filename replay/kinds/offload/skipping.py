"""What somebody set the group past, between its move to the fence and its consumers' start."""

from __future__ import annotations

from backlog.clock import Deadline
from backlog.errors import BacklogError, LeaseHeld, VerificationFailed
from backlog.kafka.admin import list_offsets, read_group_state
from backlog.numbers import format_plural
from backlog.values import Cause, OffsetRange
from replay.kinds.offload.context import ASK_SECONDS, OffloadContext
from replay.kinds.offload.discarding import date_range, record_gap

SKIPPED = "the group was set past the fence"
_LOOKED = "the group was looked at before its consumers were started"


def note_skipped(context: OffloadContext) -> None:
    """Puts on record what nobody reads: the group was set forward after it was moved.

    Only before the first start of the consumers, while the group is empty: what is committed later
    may be their own. A reader's own commit carries a leader epoch, and is only told. What cannot be
    looked at is told as unknown: the consumers are started in any case.
    """
    try:
        _look(context)
    except LeaseHeld:
        raise
    except BacklogError as error:
        context.say(f"whether somebody set the group forward is unknown: {error.message}")


def _look(context: OffloadContext) -> None:
    if not context.goes_forward or _has_looked(context):
        return
    group, topic = context.recovery.group, context.recovery.topic
    if read_group_state(context.admin, group, Deadline(ASK_SECONDS)).is_active:
        return
    targets, numbers = context.targets, range(context.partitions)
    ends = list_offsets(context.admin, topic, numbers, "latest", deadline=Deadline(ASK_SECONDS))
    known = list_skipped(context)
    for number, commit in sorted(context.read_commits().items()):
        item = OffsetRange(number, targets[number], min(commit.offset, ends[number]))
        if item.start >= item.end or item in known:
            continue
        where = f"of partition {number} ({item.start:,} to {item.end:,})"
        many = f"at most {format_plural(item.count, 'message')} {where}"
        if commit.epoch is not None:
            context.say(f"a consumer that nobody stopped has read on while it offloaded: {many}")
            continue
        _record(context, item)
        context.record(SKIPPED, partition=number, start=item.start, end=item.end)
        context.say(f"somebody set the group's offsets forward, past {many}: they are a gap")
    context.record(_LOOKED)


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
        hint=f"all else is done, and the archive is kept: `backlogctl cancel "
        f"{context.recovery.id}` closes this recovery, then `backlogctl plan rebuild "
        f"{context.stream.name}`",
    )


def _has_looked(context: OffloadContext) -> bool:
    events = context.workspace.ledger.events.list(context.recovery.id)
    return any(event.action == _LOOKED for event in events)


def _record(context: OffloadContext, item: OffsetRange) -> None:
    reason = f"somebody set the group past them while offload {context.recovery.id} was at work"
    record_gap(context, item, Cause.SKIPPED, reason, date_range(context, item))
