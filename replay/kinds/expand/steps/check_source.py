"""Step 1: topic, configuration and temporary topic are those of the plan (protocol P4.1)."""

from __future__ import annotations

from backlog.clock import Deadline
from backlog.errors import Refused
from backlog.kafka.admin import read_topic_id
from backlog.kafka.errors import TopicMissing
from backlog.step import Step
from replay.around.rights import require_rights
from replay.kinds.expand.context import ExpandContext
from replay.kinds.expand.groups import delete_left_groups
from replay.kinds.expand.planning import fingerprint_for
from replay.kinds.expand.recheck import require_fitting
from replay.recovery.approval import check_runnable
from replay.recovery.guards import check_configuration, check_denied


class CheckSource(Step[ExpandContext]):
    """Looks at everything the plan was made on."""

    name = "check_source"

    def validate(self, context: ExpandContext) -> None:
        """Faults 15, 16, 60; the configuration; the temporary topic's name is free, or ours.

        Raises:
            PlanStale: something is no longer what the plan was made on.
            Refused: a guard says no.
        """
        check_runnable(context.workspace, context.recovery)
        check_denied(context.workspace, context.stream)
        check_configuration(
            context.plan,
            fingerprint_for(context.plan.configuration, context.workspace.config, context.stream),
            f"put it back, or `backlogctl cancel {context.recovery.id}` and plan again",
        )
        context.check_topic()
        workspace, recovery = context.workspace, context.recovery
        rights = workspace.kind_of(recovery).list_rights(
            *(workspace.config, context.stream, recovery.id, context.plan)
        )
        require_rights(workspace, context.stream, rights)
        if context.temporary is None:
            _refuse_existing(context)
        if not context.was_started("stop_consumers"):
            require_fitting(context)
        context.check_copy()

    def start(self, context: ExpandContext) -> None:
        """What earlier expansions could not delete is deleted."""
        delete_left_groups(context)


def _refuse_existing(context: ExpandContext) -> None:
    name = context.temporary_topic
    try:
        read_topic_id(context.admin, name, Deadline(30.0))
    except TopicMissing:
        return
    raise Refused(
        "a topic of this name is there already, and this recovery did not make it",
        subject=f"topic {name}",
        hint="look who did; nothing was changed",
    )
