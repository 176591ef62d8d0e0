"""Step 1: the topic, the Kafka ledger and the configuration are still those of the plan."""

from __future__ import annotations

from backlog.clock import Deadline
from backlog.errors import PlanStale, Refused
from backlog.kafka.admin import describe_topic, list_topic_readers
from backlog.kafka.errors import TopicMissing
from backlog.step import Step
from replay.around.rights import require_rights
from replay.kinds.rebuild.context import RebuildContext
from replay.kinds.rebuild.injection import open_ledger_topic
from replay.kinds.rebuild.planning import fingerprint_stream
from replay.kinds.rebuild.rights import list_rebuilding
from replay.recovery.approval import check_runnable
from replay.recovery.guards import check_configuration, check_denied

_AGAIN = "`backlogctl cancel {id}`, then plan again"


class CheckTarget(Step[RebuildContext]):
    """Looks at everything the plan was made on; makes the Kafka ledger where it is missing."""

    name = "check_target"

    def validate(self, context: RebuildContext) -> None:
        """Faults 15, 16, 64; the configuration; readers who came since.

        Raises:
            PlanStale: something is no longer what the plan was made on.
            Refused: a guard says no.
        """
        plan, stream = context.plan, context.stream
        check_runnable(context.workspace, context.recovery)
        check_denied(context.workspace, stream)
        hint = _AGAIN.format(id=context.recovery.id)
        check_configuration(plan, fingerprint_stream(stream), hint)
        require_rights(
            context.workspace, stream, list_rebuilding(context.workspace.config, stream, plan)
        )
        subject = f"topic {stream.topic}"
        properties = context.workspace.properties(stream)
        try:
            topic = describe_topic(properties, stream.topic, Deadline(30))
        except TopicMissing as error:
            raise PlanStale("it is gone", subject=subject, hint=hint) from error
        if topic.topic_id != plan.topic_id:
            raise PlanStale(
                "it was deleted and created again since the plan was made",
                subject=subject,
                hint=hint,
            )
        if topic.partitions != plan.partition_count:
            raise PlanStale(
                f"it has {topic.partitions} partitions, and had {plan.partition_count} when "
                "the plan was made: keys belong elsewhere now",
                subject=subject,
                hint=hint,
            )
        readers = list_topic_readers(properties, stream.topic, Deadline(30))
        new = [name for name in readers.list_others(stream.group) if name not in plan.other_groups]
        if new and plan.deliver != "topic":
            raise PlanStale(
                f"groups began to read it since the plan was made: {', '.join(new)}",
                subject=subject,
                hint=hint,
            )
        unknown = readers.say_unknown(stream.group)
        if unknown and not plan.others_unknown and plan.deliver != "topic":
            raise Refused(
                f"whether groups began to read it since the plan was made is unknown: {unknown}",
                subject=subject,
                hint=f"grant that again (`backlogctl acl rebuild {stream.name}` prints what is "
                f"needed), then `backlogctl run {context.recovery.id}`",
            )

    def start(self, context: RebuildContext) -> None:
        """Checks the Kafka ledger, or makes it."""
        context.ledger_topic = open_ledger_topic(
            context.workspace, context.stream, context.recovery
        )
