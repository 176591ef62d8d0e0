"""Step 3: the temporary topic, and its group at the beginning (protocol P4.4)."""

from __future__ import annotations

from backlog.clock import Deadline
from backlog.kafka.admin import describe_topic
from backlog.step import Step
from backlogctl_delivery.crashpoints import reach
from fanout.temporary import create_temporary_topic, start_recovery_group
from replay.kinds.expand.context import ExpandContext


class CreateTopic(Step[ExpandContext]):
    """Creates it; only what the ledger knows by name and id is ever deleted."""

    name = "create_topic"

    def start(self, context: ExpandContext) -> None:
        """Announces, creates, records its id."""
        source = describe_topic(context.admin, context.recovery.topic, Deadline(30.0))
        create_temporary_topic(
            context.workspace.ledger,
            context.admin,
            recovery_id=context.recovery.id,
            cluster=context.recovery.cluster,
            source=source,
            partitions=context.temporary_partitions,
        )
        reach("p4.4.created")

    def complete(self, context: ExpandContext) -> None:
        """Every partition of the recovery's group is at 0, before any consumer starts."""
        start_recovery_group(
            context.admin,
            group=context.recovery_group,
            topic=context.temporary_topic,
            partitions=context.temporary_partitions,
        )
        known = context.temporary
        context.details[self.name] = {"topic_id": known.topic_id if known else None}
