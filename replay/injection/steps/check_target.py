"""Step 1: the topic, the Kafka ledger and the configuration are still those of the plan."""

from __future__ import annotations

from backlog.clock import Deadline
from backlog.errors import PlanStale, Refused
from backlog.kafka.admin import describe_topic, list_topic_readers
from backlog.kafka.errors import TopicMissing
from backlog.step import Step
from replay.around.rights import require_rights
from replay.injection.context import InjectionContext
from replay.injection.ledger import open_ledger_topic
from replay.injection.plan import To
from replay.injection.rehearsals import clear_rehearsals
from replay.injection.target import make_rehearsal
from replay.recovery.approval import check_runnable
from replay.recovery.guards import check_configuration, check_denied, check_denied_topic

_AGAIN = "`backlogctl cancel {id}`, then plan again"


class CheckTarget(Step[InjectionContext]):
    """Looks at everything the plan was made on; makes what is missing."""

    name = "check_target"

    def validate(self, context: InjectionContext) -> None:
        """Faults 15, 16, 64; the configuration; readers who came since.

        Raises:
            PlanStale: something is no longer what the plan was made on.
            Refused: a guard says no.
        """
        plan, stream, workspace = context.plan, context.stream, context.workspace
        hint = _AGAIN.format(id=context.recovery.id)
        check_runnable(workspace, context.recovery)
        check_denied(workspace, stream)
        now = stream.model_dump(mode="json", include=set(plan.configuration))
        check_configuration(plan, now, hint)
        kind = workspace.kind_of(context.recovery)
        rights = kind.list_rights(workspace.config, stream, context.recovery.id, plan)
        require_rights(workspace, stream, rights)
        _require_same(context, plan.topic, plan.topic_id, plan.partition_count, hint)
        target = plan.target
        if target is None:
            _refuse_new_readers(context, hint)
        elif target.topic_id is not None:
            check_denied_topic(workspace, target.topic)
            _require_same(context, target.topic, target.topic_id, target.partitions, hint)

    def start(self, context: InjectionContext) -> None:
        """Checks the Kafka ledger, or makes it, and the topic of a rehearsal."""
        clear_rehearsals(context.workspace, context.stream.name)
        context.ledger_topic = open_ledger_topic(
            context.workspace, context.stream, context.recovery
        )
        target = context.plan.target
        if target is not None and target.to is To.REHEARSAL:
            make_rehearsal(context.workspace, context.stream, context.recovery.id, target)


def _require_same(
    context: InjectionContext, name: str, topic_id: str, partitions: int, hint: str
) -> None:
    subject = f"topic {name}"
    try:
        topic = describe_topic(context.properties, name, Deadline(30))
    except TopicMissing as error:
        raise PlanStale("it is gone", subject=subject, hint=hint) from error
    if topic.topic_id != topic_id:
        raise PlanStale(
            "it was deleted and created again since the plan was made", subject=subject, hint=hint
        )
    if topic.partitions != partitions:
        raise PlanStale(
            f"it has {topic.partitions} partitions, and had {partitions} when the plan was made: "
            "keys belong elsewhere now",
            subject=subject,
            hint=hint,
        )


def _refuse_new_readers(context: InjectionContext, hint: str) -> None:
    """Other groups would get the messages too; those that the plan names were allowed."""
    plan, stream, subject = context.plan, context.stream, f"topic {context.plan.topic}"
    readers = list_topic_readers(context.properties, stream.topic, Deadline(30))
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
            hint=f"grant that again (`backlogctl acl {plan.kind} {stream.name}` prints what is "
            f"needed), then `backlogctl run {context.recovery.id}`",
        )
