"""Commits of a group whose consumers a recovery has stopped: gone, or overtaken by retention."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from backlogctl.clock import Deadline
from backlogctl.fanout.quiet import await_empty
from backlogctl.formats import format_plural
from backlogctl.kafka.admin import committed_offsets, list_offsets, set_group_offsets
from backlogctl.kafka.clients import Admin
from backlogctl.monitoring.offsets.certainty import MAYBE_EMPTY, ask_doubts
from backlogctl.replay.consumers.fleet import StoppingContext
from backlogctl.values import Cause, LedgerEvent, OffsetRange

PUT_BACK = "commits that the group did not have were set to where it was left"
OVERTAKEN = "retention removed messages that the group had not read"
_SECONDS = 60.0
_DOUBT_SECONDS = 10.0


def put_back_commits(context: StoppingContext[Any]) -> None:
    """Sets commits that are missing to where the recovery left the group; nobody is in it.

    None were made, or they or the group were deleted, or they expired: without them its consumers
    begin where their `auto.offset.reset` says (fault 117).

    Raises:
        GroupActive: somebody is in the group.
    """
    group, topic = context.recovery.group, context.recovery.topic
    numbers, limit = range(context.partitions), Deadline(_SECONDS)
    commits = committed_offsets(context.admin, group, topic, numbers, limit)
    if None not in commits.values():
        return
    # What a relay left undecided is waited for only here.
    commits = committed_offsets(context.admin, group, topic, numbers, limit, require_stable=True)
    left = context.find_left_at()
    missing = {number: left[number] for number in left if commits.get(number, 0) is None}
    if not missing:
        return
    _set_offsets(context, missing)
    context.record(PUT_BACK, committed={str(number): at for number, at in missing.items()})
    places = ", ".join(f"{number} at {at:,}" for number, at in sorted(missing.items()))
    context.say(
        f"group {group} has no committed offset in {format_plural(len(missing), 'partition')}: "
        "none was made, or it was deleted, or has expired. It is set to where this recovery left "
        f"the group (partition {places}); what somebody else may have read from there on is "
        "handled once more"
    )


def note_overtaken(
    context: StoppingContext[Any],
) -> tuple[dict[int, int | None], dict[int, int]]:
    """The group's commits and the log starts; what retention removed between them is a gap.

    Not by a sample: with a guard in the group that takes it for what a client may still have in
    its buffer.
    """
    group, topic = context.recovery.group, context.recovery.topic
    numbers = range(context.partitions)
    commits = committed_offsets(context.admin, group, topic, numbers)
    lows = list_offsets(context.admin, topic, numbers, "earliest")
    if all(at is None or at >= lows[number] for number, at in commits.items()):
        return commits, lows
    left, events = context.find_left_at(), context.workspace.ledger.events.list(context.recovery.id)
    known = [event.detail for event in events if event.action == OVERTAKEN]
    for number, at in commits.items():
        # Where it was set back: what lies before where it was left was read, or is copied.
        item = OffsetRange(number, max(at or 0, left.get(number, 0)), lows[number])
        detail = {"partition": number, "start": item.start, "end": item.end}
        if at is None or item.start >= item.end or detail in known:
            continue
        record_expiry(context, item, f"retention removed them during {context.recovery.id}")
        context.record(OVERTAKEN, **detail)
        context.say(
            f"retention removed at most {format_plural(item.count, 'message')} of partition "
            f"{number} ({item.start:,} to {item.end:,}) before they were read: a gap on record, "
            f"see `backlogctl gaps {context.stream.name}`"
        )
    return commits, lows


def pass_overtaken(context: StoppingContext[Any]) -> None:
    """Sets commits that retention overtook to the log start, with the gap on record first.

    A consumer whose offset is gone may go on at the end, past what came since (fault 116).

    Raises:
        GroupActive: somebody is in the group.
    """
    commits, lows = note_overtaken(context)
    behind = {n: lows[n] for n, at in commits.items() if at is not None and at < lows[n]}
    if behind:
        _set_offsets(context, behind)


def _set_offsets(context: StoppingContext[Any], offsets: dict[int, int]) -> None:
    """Once a guard of ours that died is no member any more."""
    group, topic = context.recovery.group, context.recovery.topic
    await_empty(context.admin, group, context.look, within=0.0)
    set_group_offsets(context.admin, group, topic, offsets)


def record_expiry(
    context: StoppingContext[Any], item: OffsetRange, why: str, *, plain_until: int = 0
) -> None:
    """What retention removed of a group that stands still: an exact gap where its offsets are known
    to be messages, as all before `plain_until` are."""
    number, written = item.partition, context.date_range(item)[0]
    ends = {number: item.end} if item.end > plain_until else {}
    doubts = ask_doubts(
        *(context.admin, context.recovery.topic, ends, {number: written}), Deadline(_DOUBT_SECONDS)
    )
    if doubt := doubts.get(number):
        why = f"{why}; {MAYBE_EMPTY}: {doubt}"
    context.record_gap(item, Cause.EXPIRED, why, maybe_empty=bool(doubt))


def find_expired_relayed(
    admin: Admin,
    topic: str,
    begun: Mapping[int, int],
    events: Iterable[LedgerEvent],
    ends: Mapping[int, int] | None = None,
    limit: Deadline | None = None,
) -> dict[int, int]:
    """By partition, offsets that were relayed and that the topic has no more, at most.

    Args:
        begun: where the group was stopped.
        events: of the recovery: what had expired before it was relayed was never copied.
        ends: to where it was relayed; None where that is not known.
    """
    lows, starts = list_offsets(admin, topic, begun, "earliest", deadline=limit), dict(begun)
    for event in events:
        if event.action != OVERTAKEN:
            continue
        number, start, end = (int(event.detail[name]) for name in ("partition", "start", "end"))
        if start <= starts.get(number, -1):
            starts[number] = max(starts[number], end)
    bounds = lows if ends is None else {n: min(lows[n], ends.get(n, 0)) for n in lows}
    return {number: bounds[number] - at for number, at in starts.items() if bounds[number] > at}
