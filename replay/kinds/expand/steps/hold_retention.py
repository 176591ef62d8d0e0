"""Step 2: the retention is raised, so that it does not win the race (protocol P4.2)."""

from __future__ import annotations

from datetime import timedelta

from backlog.clock import format_time, utc_now
from backlog.ledger import OPERATOR, Hold
from backlog.numbers import format_plural
from backlog.step import Step
from backlogctl_delivery.crashpoints import reach
from fanout.retention import give_back, raise_retention
from replay.kinds.expand.context import ExpandContext
from replay.recovery.identity import find_identity

# Beyond twice the time that the original consumers need for what is left.
_SLACK = timedelta(hours=1)
_UNKNOWN = timedelta(hours=24)


class HoldRetention(Step[ExpandContext]):
    """Raises the topic's retention where the plan says so; the old values are in the ledger."""

    name = "hold_retention"

    def start(self, context: ExpandContext) -> None:
        """Raises it. Called again it changes nothing more."""
        changes = context.plan.hold.changes
        if not context.plan.hold.needed or not changes:
            return
        raise_retention(
            context.workspace.ledger,
            context.admin,
            stream=context.stream.name,
            cluster=context.recovery.cluster,
            topic=context.recovery.topic,
            topic_id=context.plan.topic_id,
            holder=context.recovery.id,
            settings={name: change.to for name, change in changes.items()},
            until=None,
            actor=str(find_identity()),
        )
        reach("p4.2.raised")


def give_retention_back(context: ExpandContext) -> None:
    """Gives back what this recovery holds, also after a crash; nothing where it holds nothing.

    Where much is unread in the source still (a cancel cuts over at once), giving it back would
    delete just that: then it stays raised for as long as the original consumers need.
    """
    ledger = context.workspace.ledger
    for hold in ledger.holds.list(open_only=True, stream=context.stream.name):
        if hold.holder == context.recovery.id:
            _keep_while_behind(context, hold)
            for warning in give_back(ledger, context.admin, hold):
                context.say(warning)


def _keep_while_behind(context: ExpandContext, hold: Hold) -> None:
    left = context.read_source_lag() if context.has_source() else 0
    if left <= context.plan.max_lag_at_cutover:
        return
    until = utc_now() + _estimate(context, left)
    raise_retention(
        context.workspace.ledger,
        context.admin,
        stream=hold.stream,
        cluster=hold.cluster,
        topic=hold.topic,
        topic_id=hold.topic_id,
        holder=OPERATOR,
        settings=hold.raised,
        until=until,
        actor=str(find_identity()),
    )
    context.say(
        f"{format_plural(left, 'message')} of {hold.topic} are unread still, so its retention "
        f"stays raised until {format_time(until)}; `backlogctl hold {hold.stream} --release` gives "
        "it back before"
    )


def _estimate(context: ExpandContext, left: int) -> timedelta:
    plan = context.plan
    readers = min(plan.replicas, context.partitions)
    net = readers * plan.rate_per_consumer - (plan.produced_per_second or 0.0)
    return timedelta(seconds=2 * left / net) + _SLACK if net > 0 else _UNKNOWN
