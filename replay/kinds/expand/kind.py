"""Expand: a backlog is drained through a temporary topic with more partitions and consumers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from rich.console import Console

from backlogctl.clock import Deadline
from backlogctl.config import Config, Stream
from backlogctl.errors import KafkaFailure, Refused, VerificationFailed
from backlogctl.fanout.quiet import await_empty
from backlogctl.fanout.relay.commits import fence_relays
from backlogctl.formats import format_plural, format_rate
from backlogctl.kafka.admin import committed_offsets, list_offsets, set_group_offsets
from backlogctl.kafka.clients import make_admin
from backlogctl.monitoring.verdict.status import Verdict
from backlogctl.replay.consumers.fleet import LEAVE_CONSUMERS
from backlogctl.replay.engine.cancelling import open_closing
from backlogctl.replay.engine.kind import Kind, RunContext, Say, Traits, Workspace, say_nothing
from backlogctl.replay.engine.plan import Origin
from backlogctl.replay.engine.values import Account, RecoveryRecord, Standing, Telling
from backlogctl.replay.kinds.expand.context import ExpandContext, end_consumers
from backlogctl.replay.kinds.expand.plan import ALLOW_DISK, NAME, REWIND, ExpandOptions, ExpandPlan
from backlogctl.replay.kinds.expand.steps import (
    CLOSING,
    remove_temporary_topic,
    restoring_retention,
)
from backlogctl.values import Gap, GapState, Recovery, Step
from backlogctl_delivery.crashpoints import reach

if TYPE_CHECKING:
    from backlogctl.kafka.rights import Right
    from backlogctl.ledger import Lease, Ledger


# The way back without a working consumer: the group reads again what was relayed (protocol P4).
#
# While the source still has the messages, nothing that is only in the temporary topic is needed.

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


# More consumers are what helps: the group reads, and too slowly.
_TOO_SLOW = (Verdict.LOSING, Verdict.WARN, Verdict.LAGGING)
# A loss that was seen longer before the plan has nothing to do with this backlog.
_LOOK_BACK = timedelta(hours=24)
# What is lost at the very end is seen by the next look.
_SEEN_LATE = timedelta(minutes=5)


class Expand(Kind[ExpandPlan, ExpandOptions]):
    """Emergency expansion, by P4."""

    name = NAME
    summary = "Drain a backlog through a temporary topic with many partitions and consumers."
    traits = Traits(stops_consumers=True, holds_when_failed=True)
    plan_model = ExpandPlan
    options_model = ExpandOptions
    cancel_ways = (REWIND, LEAVE_CONSUMERS)

    def make_plan(
        self,
        workspace: Workspace,
        stream: Stream,
        options: ExpandOptions,
        *,
        origin: Origin | None = None,
        say: Say = say_nothing,
    ) -> Recovery:
        """How long, how many, and what is done to whom; Kafka is only read."""
        from backlogctl.replay.kinds.expand.planning import plan_expand

        return plan_expand(workspace, stream, options, origin=origin, say=say)

    def check(self, plan: ExpandPlan, recovery: Recovery) -> None:
        """A copy that does not fit, and was not allowed by name."""
        if plan.disk.enough is False and ALLOW_DISK not in plan.allowed:
            raise Refused(
                "the brokers' disks have no room for the temporary topic",
                subject=f"recovery {recovery.id}",
                hint=f"make room, then `backlogctl plan expand {plan.stream}`; `--allow disk` "
                "goes on in spite of it",
            )

    def suggest(
        self, ledger: Ledger, stream: Stream, course: Verdict, lag: int, topic_id: str
    ) -> bool:
        """Where the group reads, and too slowly."""
        return stream.consumers is not None and bool(lag) and course in _TOO_SLOW

    def is_configured(self, stream: Stream) -> bool:
        """Somebody must be able to start consumers."""
        return stream.consumers is not None

    def list_rights(
        self, config: Config, stream: Stream, recovery_id: str, plan: ExpandPlan | None = None
    ) -> tuple[Right, ...]:
        """A temporary topic is made and deleted, and offsets of two groups are committed."""
        from backlogctl.replay.observe.rights import select_rights

        holds = plan is None or bool(plan.hold.changes)
        parts = "see raise expand" if holds else "see expand"
        prefix = (plan or config.kafka_ledger).transactional_prefix
        return select_rights(parts, stream, recovery_id, prefix=prefix)

    @property
    def context(self) -> type[RunContext[ExpandPlan]]:
        """Both topics, the relays, the consumers, the view."""
        from backlogctl.replay.kinds.expand.context import ExpandContext

        return ExpandContext

    @property
    def steps(self) -> Sequence[Step[Any]]:
        """From the check of the source to the removal of the temporary topic."""
        from backlogctl.replay.kinds.expand.steps import STEPS

        return STEPS

    def close(
        self,
        workspace: Workspace,
        recovery: Recovery,
        lease: Lease,
        *,
        context: RunContext[ExpandPlan] | None,
        console: Console,
    ) -> None:
        """Cuts over now, and restores the layout: nothing is left only in the temporary topic."""
        from backlogctl.replay.kinds.expand.context import ExpandContext

        with open_closing(
            ExpandContext, workspace, recovery, lease, context=context, console=console
        ) as opened:
            close_expansion(opened)

    def tell(self, plan: ExpandPlan, recovery: Recovery) -> Telling:
        """What is behind, how long it takes, and what is done to whom."""
        from backlogctl.replay.kinds.expand.describe import tell_expansion

        return tell_expansion(plan, recovery)

    def account(self, plan: ExpandPlan, record: RecoveryRecord) -> Account:
        """What was relayed, written and handled."""
        from backlogctl.replay.kinds.expand.describe import account_for_expansion

        return account_for_expansion(plan, record)

    def count_run(
        self, plan: ExpandPlan, recovery: Recovery, counts: Mapping[str, Any]
    ) -> dict[str, Any]:
        """What was relayed and handled in all, and how fast the drain was."""
        return {"relayed": 0, "handled": 0, "drained_per_second": None, **counts}

    def say_run(self, plan: ExpandPlan, counts: Mapping[str, Any]) -> str:
        """`300,000 messages drained in all at 29,991/s, the layout is as it was`."""
        told = f"{format_plural(counts['relayed'], 'message')} drained in all"
        if rate := counts["drained_per_second"]:
            told += f" at {format_rate(rate)}"
        return f"{told}, the layout is as it was"

    def say_cancelled(self, recovery: Recovery, ways: Sequence[str] = ()) -> str:
        """What was relayed is handled, and the consumers are back, or a person's to start."""
        if LEAVE_CONSUMERS in ways:
            return f"its topics are as they were; start the consumers of {recovery.group} yourself"
        return "the layout is as it was"

    def describe_standing(
        self, workspace: Workspace, recovery: Recovery, *, ask: bool = True
    ) -> Standing:
        """Who reads, who is stopped, and what exists only in the temporary topic."""
        from backlogctl.replay.kinds.expand.topics import describe_expansion

        return describe_expansion(workspace, recovery, self.read_plan(recovery), ask=ask)

    def find_gaps(
        self, plan: ExpandPlan, ledger: Ledger, recovery: Recovery, ended_at: datetime | None
    ) -> tuple[Gap, ...]:
        """What its topic and group lost of this backlog."""
        return tuple(
            gap
            for gap in ledger.gaps.list(recovery.stream)
            if _is_of_backlog(gap, plan, recovery, ended_at)
        )


def _is_of_backlog(
    gap: Gap, plan: ExpandPlan, recovery: Recovery, ended_at: datetime | None
) -> bool:
    """Whether it was lost while the recovery was there, or is a part of what was unread then."""
    if (gap.topic, gap.group) != (recovery.topic, recovery.group):
        return False
    if ended_at is not None and gap.detected_at > ended_at + _SEEN_LATE:
        return False
    if gap.detected_at >= recovery.created_at:
        return True
    if gap.state is GapState.WAIVED:
        return False
    if gap.detected_at >= recovery.created_at - _LOOK_BACK:
        return True
    # Seen long ago, and it grew until the plan was made.
    return any(
        row.partition == gap.partition and row.lost and gap.end is not None and gap.end >= row.start
        for row in plan.partitions
    )


KIND = Expand()
