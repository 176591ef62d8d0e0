"""Ends an expansion before its time: cuts over now and restores the layout (protocol P4.8 to 10),
or sets the group back, where no consumer works.

While the source still has the messages, nothing that is only in the temporary topic is needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from backlogctl.clock import Deadline
from backlogctl.errors import KafkaFailure, Refused, VerificationFailed
from backlogctl.fanout.quiet import await_empty
from backlogctl.fanout.relay.commits import fence_relays
from backlogctl.formats import format_plural
from backlogctl.kafka.admin import committed_offsets, list_offsets, set_group_offsets
from backlogctl.kafka.clients import make_admin
from backlogctl.replay.kinds.expand.context import ExpandContext, end_consumers
from backlogctl.replay.kinds.expand.plan import REWIND
from backlogctl.replay.kinds.expand.steps import (
    CLOSING,
    remove_temporary_topic,
    restoring_retention,
)
from backlogctl_delivery.crashpoints import reach

if TYPE_CHECKING:
    pass


REWOUND = "the group was set back to where its consumers were stopped"


def can_rewind(context: ExpandContext) -> bool:
    """Whether something was relayed, and the group can read all of it again."""
    if not context.was_started("canary") or context.is_complete("restore"):
        return False
    return context.has_source() and context.has_copy() and not _find_expired(context)


def rewind(context: ExpandContext, *, unless_handled: bool = False) -> bool:
    """P4. The order of these lines is what loses nothing, also when it is killed and called again.

    Args:
        unless_handled: nothing is changed where the recovery's consumers have handled something.

    Returns:
        Whether the group was set back.

    Raises:
        Refused: nothing was relayed, the layout is restored, or the source has not all of it.
        GroupActive: somebody is in the original group.
    """
    if not is_rewound(context):
        _require_possible(context)
        context.session.close()  # the guard leaves cleanly
        fence_relays(  # 1. no relay can commit any more
            context.properties,
            context.plan.transactional_prefix,
            context.recovery.topic,
            range(context.partitions),
        )
        reach("p4.rewind.fenced")
        end_consumers(context)  # 2. what they handle from now on would be handled twice
        again = context.read_handled() if context.has_copy() else None
        if again and unless_handled:
            return False
        told = _describe(context, again)
        _set_back(context)  # 3. read back: from here on the temporary topic is not needed
        reach("p4.rewind.set")
        context.record(REWOUND, handled_again=again)
        context.say(told)
    context.begin("restore")
    with restoring_retention(context):  # 5. while much is unread it stays raised
        context.start_originals()  # 4.
        reach("p4.rewind.started")
    context.end("restore")
    remove_temporary_topic(context, is_needed=False)  # 6. last
    return True


def is_rewound(context: ExpandContext) -> bool:
    """By an earlier run: from then on the group is its own consumers'."""
    events = context.workspace.ledger.events.list(context.recovery.id)
    return any(event.action == REWOUND for event in events)


def _require_possible(context: ExpandContext) -> None:
    subject = f"recovery {context.recovery.id}"
    if not context.was_started("canary"):
        raise Refused(
            "nothing was relayed yet, so there is nothing to set back",
            subject=subject,
            hint=f"`backlogctl cancel {context.recovery.id}` restores the layout",
        )
    if context.is_complete("restore"):
        raise Refused(
            "the layout is restored already, and the group's own consumers read on",
            subject=subject,
            hint=f"`backlogctl cancel {context.recovery.id}` closes it",
        )
    context.check_topic()
    if expired := _find_expired(context):
        places = ", ".join(f"{n}: {count:,}" for n, count in sorted(expired.items()))
        kept = "the temporary topic, which had them, is gone"
        if context.has_copy():
            left = format_plural(context.read_temporary_lag(), "message")
            kept = f"at most {left} are only in {context.temporary_topic}, which is kept"
        raise Refused(
            f"retention has removed messages that were relayed from the source (partition: "
            f"offsets {places}): {kept}",
            subject=f"topic {context.recovery.topic}",
            hint=f"mend the consumers and `backlogctl run {context.recovery.id}`, or "
            f"`backlogctl cancel {context.recovery.id}` reads the temporary topic to its end",
        )


def _find_expired(context: ExpandContext) -> dict[int, int]:
    """By partition, offsets behind the recorded commits that the source has no more."""
    begun = context.begun
    lows = list_offsets(context.admin, context.recovery.topic, begun, "earliest")
    return {number: lows[number] - at for number, at in begun.items() if lows[number] > at}


def _set_back(context: ExpandContext) -> None:
    group, topic, begun = context.recovery.group, context.recovery.topic, context.begun
    within = context.consumers.stop_within.total_seconds()
    await_empty(make_admin(context.properties), group, context.look, within=within)
    set_group_offsets(context.admin, group, topic, begun, Deadline(30.0))
    found = committed_offsets(
        context.admin, group, topic, begun, Deadline(30.0), require_stable=True
    )
    if found != begun:
        raise KafkaFailure(
            f"the group's offsets are {found} after they were set to {begun}",
            subject=f"group {group} on topic {topic}",
            hint=f"somebody else commits; `backlogctl cancel {context.recovery.id} --rewind` again",
            retryable=True,
        )


def _describe(context: ExpandContext, again: int | None) -> str:
    relayed = sum(
        position.counters(context.recovery.id).relayed
        for position in context.read_positions().values()
    )
    told = (
        f"group {context.recovery.group} is where its consumers were stopped, and reads "
        f"{format_plural(relayed, 'message')} that were relayed itself"
    )
    if again is None:
        return f"{told}; how many of them the recovery's consumers had handled is not known"
    if not again:
        return f"{told}; none of them was handled"
    return f"{told}; at most {again:,} of them were handled, and are handled once more"


# Cancels an expansion: cuts over now, and restores the layout (protocol P4.8 to 10); or sets the
# group back, where that is asked for, or nothing was handled yet.


def close_expansion(context: ExpandContext) -> None:
    """By the way that was asked for last; by itself the one that leaves nobody waiting.

    Requests are no longer looked at; Ctrl-C is: cancelling again goes on.
    """
    context.closing = context.cancelling = True
    context.__dict__.pop("launcher", None)  # it is another one where consumers are left alone
    if REWIND in context.cancel_ways or is_rewound(context):
        rewind(context)
    elif not (can_rewind(context) and not context.read_handled()) or not rewind(
        context, unless_handled=True
    ):
        close_layout(context)


def close_layout(context: ExpandContext) -> None:
    """The closing steps; what is done already is not done again.

    Never a deletion of unread messages.
    """
    context.closing = context.cancelling = True
    for step in CLOSING:
        if context.is_complete(step.name):
            continue
        context.begin(step.name)
        try:
            step.start(context)
        except VerificationFailed as failed:
            # The layout is restored: a cancel ends here, and keeps the topic that differs.
            context.say(f"{failed.message}; {failed.hint}")
            context.record("cancelled without verification", **failed.to_json())
            return
        context.lease.confirm()
        step.complete(context)
        context.end(step.name)
