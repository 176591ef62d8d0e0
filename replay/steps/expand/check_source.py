"""Step 1: topic, configuration and temporary topic are those of the plan (protocol P4.1)."""

from __future__ import annotations

from backlog.clock import Deadline
from backlog.errors import PlanStale, Refused
from backlog.kafka.admin import read_topic_id
from backlog.kafka.errors import TopicMissing
from fanout.permissions import require_permissions
from replay.approval import check_runnable
from replay.expand_context import ExpandContext
from replay.expand_plans import fingerprint_expansion
from replay.expand_recheck import require_fitting
from replay.plans import check_denied


class CheckSource:
    """Looks at everything the plan was made on; changes nothing."""

    name = "check_source"

    def validate(self, context: ExpandContext) -> None:
        """Faults 15, 16, 60; the configuration; the temporary topic's name is free, or ours.

        Raises:
            PlanStale: something is no longer what the plan was made on.
            Refused: a guard says no.
        """
        check_runnable(context.recovery)
        check_denied(context.workspace, context.stream)
        _check_configuration(context)
        context.check_topic()
        require_permissions(
            context.admin,
            topic=context.recovery.topic,
            group=context.recovery.group,
            hold=bool(context.plan["hold"]["changes"]),
        )
        if context.temporary is None:
            _refuse_existing(context)
        if not context.was_started("stop_consumers"):
            require_fitting(context)
        context.check_copy()

    def start(self, context: ExpandContext) -> None:
        """Everything was looked at before the run began."""

    def complete(self, context: ExpandContext) -> None:
        """Nothing to close."""

    def rollback(self, context: ExpandContext) -> None:
        """It changes nothing."""


def _check_configuration(context: ExpandContext) -> None:
    before = context.plan["configuration"]
    now = fingerprint_expansion(context.workspace.config, context.stream)
    changed = sorted(name for name in {*before, *now} if before.get(name) != now.get(name))
    if changed:
        names = ", ".join(f"`{name}`" for name in changed)
        raise PlanStale(
            f"its configuration changed since the plan was made: {names}",
            subject=f"stream {context.stream.name}",
            hint=f"put it back, or `backlogctl cancel {context.recovery.id}` and plan again",
        )


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
