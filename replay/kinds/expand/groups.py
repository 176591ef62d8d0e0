"""Recovery groups that are of no more use: deleted at the end, or by the stream's next run."""

from __future__ import annotations

from backlog.clock import Deadline
from backlog.errors import BacklogError
from backlog.kafka.admin import delete_group
from replay.kinds.expand.context import ExpandContext
from replay.kinds.expand.plan import NAME
from replay.recovery.identity import find_identity

LEFT, GONE = "the recovery's group is still there", "the recovery's group is deleted"
_SECONDS = 15.0


def delete_recovery_group(context: ExpandContext) -> None:
    """Deletes this recovery's group; one that stays is told, and does no harm."""
    try:
        delete_group(context.admin, context.recovery_group, Deadline(_SECONDS))
    except BacklogError as error:
        context.say(
            f"group {context.recovery_group} is still there: {error.message}. It is of no more "
            f"use; the next expansion of {context.stream.name} deletes it"
        )
        context.record(LEFT, group=context.recovery_group)


def delete_left_groups(context: ExpandContext) -> None:
    """Deletes those of the stream's earlier expansions; one that still stays is told again."""
    ledger = context.workspace.ledger
    for earlier in ledger.recoveries.list(context.stream.name):
        if earlier.kind != NAME or earlier.cluster != context.recovery.cluster:
            continue
        left = [e for e in ledger.events.list(earlier.id) if e.action in (LEFT, GONE)]
        if not left or left[-1].action == GONE:
            continue
        group = left[-1].detail["group"]
        try:
            delete_group(context.admin, group, Deadline(_SECONDS))
        except BacklogError as error:
            context.say(f"group {group} of {earlier.id} is still there: {error.message}")
            continue
        ledger.events.append(earlier.id, str(find_identity()), GONE, {"group": group})
