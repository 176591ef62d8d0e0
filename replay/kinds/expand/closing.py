"""Ends the relays and reads the temporary topic to its end (protocol P4.8 and 9)."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Any

from backlog.clock import Deadline
from backlog.errors import KafkaFailure, Refused
from backlog.kafka.clients import make_admin
from backlog.numbers import format_plural
from backlog.values import Certainty
from backlogctl_delivery.crashpoints import reach
from fanout.quiet import await_empty
from fanout.relay.fencing import fence_relays
from fanout.relay.guard import find_others, refuse_others
from replay.around.leftovers import CONSUMERS_STAY
from replay.kinds.expand.context import COPY_GONE, SOURCE_GONE, ExpandContext
from replay.kinds.expand.outsiders import record_gap
from replay.kinds.expand.stall import StallWatch, count_wanted

DRAINED = "the temporary topic is read to its end"
_POLL_SECONDS = 0.1
_STILL_SECONDS = 2.0
_OTHERS_EACH = 2.0


def close_relays(context: ExpandContext) -> dict[str, Any]:
    """What was relayed is handled, and nobody relays any more. Safe to call again.

    Returns:
        What was relayed: `{"relayed": {source partition: messages}, "placed": {temporary
        partition: messages} or None}`; empty where nothing can have been relayed.

    Raises:
        ConsumerCameBack: somebody else is in the original group while messages are unread.
    """
    if not context.has_temporary or not context.was_started("stop_consumers"):
        return {}
    relayed = _end_relays(context) if context.was_started("canary") else {}
    if CONSUMERS_STAY not in context.leftovers:  # said once; what is unread decides, not they
        with context.leftovers.noting(CONSUMERS_STAY):
            end_consumers(context)  # 5.
    reach("p4.8.consumers.stopped")
    with suppress(KafkaFailure):  # a topic may be gone; a missing sample is no failure
        context.sample()
    return relayed


def end_consumers(context: ExpandContext) -> None:
    """The recovery's consumers are gone, and its group says so too."""
    context.launcher.stop(context.fleet, context.look)
    await_empty(
        make_admin(context.properties),
        context.recovery_group,
        context.look,
        within=context.consumers.stop_within.total_seconds(),
    )


def _end_relays(context: ExpandContext) -> dict[str, Any]:
    """Nobody relays any more, and nothing is unread; what was relayed."""
    context.session.stop_relays()  # 1. between two transactions
    reach("p4.8.relays.stopped")
    fence_relays(  # 2. one that was forgotten can commit no more, and its offsets are decided
        context.properties,
        context.plan.transactional_prefix,
        context.recovery.topic,
        range(context.partitions),
    )
    reach("p4.9.fenced")
    # 3. Waits while an offset commit is undecided.
    relayed = {} if context.is_complete("cut_over") else _read_relayed(context)
    was_drained = context.is_complete("cut_over")
    if not (was_drained or context.cancelling) or context.has_copy():
        context.await_decided()
        _drain_rest(context)  # 4. by reading: lag is no test
        if context.has_source():
            context.record(DRAINED, positions=_list_positions(context))
    elif not was_drained:
        _note_lost_copy(context)  # somebody deleted it: cancel restores the rest
    reach("p4.9.drained")
    return relayed


def _list_positions(context: ExpandContext) -> dict[str, int]:
    return {str(number): at.offset for number, at in context.read_positions().items()}


def _note_lost_copy(context: ExpandContext) -> None:
    """What was relayed since the temporary topic was last read to its end is a gap."""
    if not context.has_source():
        context.say(COPY_GONE)
        return
    events = context.workspace.ledger.events.list(context.recovery.id)
    drained = [event.detail["positions"] for event in events if event.action == DRAINED]
    starts = dict(context.begun)
    if drained:
        starts |= {int(number): at for number, at in drained[-1].items()}
    lost = 0
    for number, position in context.read_positions().items():
        start, end = starts.get(number, position.offset), position.offset
        if start < end:
            lost += end - start
            record_gap(context, number, start, end, Certainty.BOUNDED, COPY_GONE)
    if lost:
        context.say(
            f"{COPY_GONE}: at most {format_plural(lost, 'message')}, a gap on record; `backlogctl "
            f"plan rebuild {context.stream.name}` puts back what was not handled"
        )


def _read_relayed(context: ExpandContext) -> dict[str, Any]:
    """The counters of the group's stable commits; empty where they went with the source topic."""
    if not context.has_source():
        context.record(SOURCE_GONE)
        return {}
    commits = context.read_positions()
    counters = {number: commit.counters(context.recovery.id) for number, commit in commits.items()}
    placed: dict[int, int] | None = {}
    for each in counters.values():
        if each.counts is None or placed is None:
            placed = None
            continue
        for place, count in each.counts.items():
            placed[place] = placed.get(place, 0) + count
    return {
        "committed": {str(number): commit.offset for number, commit in commits.items()},
        "relayed": {str(number): each.relayed for number, each in counters.items()},
        "placed": None if placed is None else {str(n): c for n, c in sorted(placed.items()) if c},
    }


def _drain_rest(context: ExpandContext) -> None:
    """Waits until nothing is unread; starts the recovery's consumers where they do not run."""
    if not context.find_unread():
        return
    if context.leaves_consumers:
        many = format_plural(context.read_temporary_lag(), "message")
        raise Refused(
            f"at most {many} in it are not handled, and nobody is started to handle them",
            subject=f"topic {context.temporary_topic}",
            hint=f"`backlogctl cancel {context.recovery.id} --rewind --leave-consumers` lets the "
            "group read them again; or start consumers on it yourself, and cancel again when they "
            "are through",
        )
    if (context.launcher.count_running(context.fleet) or 0) == 0:
        context.launch(count_wanted(context))
    others_at, moved_at, before = 0.0, time.monotonic(), -1
    stall = StallWatch(context)
    while True:
        context.tick()
        stall.look()
        # With a guard in the group it is the guard who notices.
        if not context.session.has_guard and time.monotonic() >= others_at:
            others_at = time.monotonic() + _OTHERS_EACH
            others = find_others(context.properties, context.recovery.group, Deadline(30.0))
            if others:
                raise refuse_others(context.recovery.group, others)
        # Only a read shows whether messages are unread; it is made when the lag is small, or no
        # longer moves: aborted records at the end stay in the lag for ever.
        left = context.read_temporary_lag()
        if left != before:
            before, moved_at = left, time.monotonic()
        still = time.monotonic() - moved_at >= _STILL_SECONDS
        if left <= context.temporary_partitions * 20 or still:
            if not context.find_unread():
                return
            moved_at = time.monotonic()
        time.sleep(_POLL_SECONDS)
