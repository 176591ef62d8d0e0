"""Step 2: the retention is raised, so that it does not win the race (protocol P4.2)."""

from __future__ import annotations

from backlog.crashpoints import reach
from fanout.retention import give_back, raise_retention
from replay.expand_context import ExpandContext
from replay.identity import find_identity


class HoldRetention:
    """Raises the topic's retention where the plan says so; the old values are in the ledger."""

    name = "hold_retention"

    def validate(self, context: ExpandContext) -> None:
        """The plan has the changes; nothing to look at."""

    def start(self, context: ExpandContext) -> None:
        """Raises it. Called again it changes nothing more."""
        changes = context.plan["hold"]["changes"]
        if not context.plan["hold"]["needed"] or not changes:
            return
        raise_retention(
            context.workspace.ledger,
            context.admin,
            stream=context.stream.name,
            cluster=context.recovery.cluster,
            topic=context.recovery.topic,
            topic_id=context.plan["topic_id"],
            holder=context.recovery.id,
            settings={name: change["to"] for name, change in changes.items()},
            until=None,
            actor=str(find_identity()),
        )
        reach("p4.2.raised")

    def complete(self, context: ExpandContext) -> None:
        """Nothing to close."""

    def rollback(self, context: ExpandContext) -> None:
        """Gives it back."""
        give_retention_back(context)


def give_retention_back(context: ExpandContext) -> None:
    """Gives back what this recovery holds, also after a crash; nothing where it holds nothing."""
    ledger = context.workspace.ledger
    for hold in ledger.holds.list(open_only=True, stream=context.stream.name):
        if hold.holder == context.recovery.id:
            for warning in give_back(ledger, context.admin, hold):
                context.say(warning)
