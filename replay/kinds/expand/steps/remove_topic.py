"""Step 10: the temporary topic is deleted, when nothing in it is unread (protocol P4.9)."""

from __future__ import annotations

from backlog.clock import Deadline
from backlog.errors import Refused
from backlog.kafka.admin import TopicInfo, describe_topic
from backlog.kafka.errors import TopicMissing
from backlog.step import Step
from backlogctl_delivery.crashpoints import reach
from fanout.temporary import delete_temporary_topic
from replay.kinds.expand.context import ExpandContext
from replay.kinds.expand.groups import delete_recovery_group


class RemoveTopic(Step[ExpandContext]):
    """Deletes it by name and id."""

    name = "remove_topic"

    def start(self, context: ExpandContext) -> None:
        """Deletes the topic; one that is gone is fine."""
        reach("p4.10.verified")
        remove_temporary_topic(context)
        reach("p4.9.deleted")

    def complete(self, context: ExpandContext) -> None:
        """The ledger says that it is gone.

        Raises:
            Refused: it is not.
        """
        known = context.temporary
        if known is not None and known.deleted_at is None:
            raise Refused("it is still there", subject=f"topic {known.name}")


def remove_temporary_topic(context: ExpandContext, *, is_needed: bool = True) -> None:
    """Deletes this recovery's temporary topic, if there is one and nothing in it is unread.

    Args:
        is_needed: False where the original group reads all of it again: then it may be unread.
    """
    if context.temporary is None:
        return
    delete_temporary_topic(
        context.workspace.ledger,
        context.admin,
        recovery_id=context.recovery.id,
        cluster=context.recovery.cluster,
        source=_describe_source(context),
        deny_topics=context.workspace.config.guards.deny_topics,
        is_drained=context.is_drained if is_needed else lambda: True,
    )
    delete_recovery_group(context)


def _describe_source(context: ExpandContext) -> TopicInfo:
    """The source may be gone; then the plan has its id."""
    topic = context.recovery.topic
    try:
        return describe_topic(context.admin, topic, Deadline(30.0))
    except TopicMissing:
        return TopicInfo(topic, context.plan.topic_id, context.partitions, {})
