"""Rehearsals that are over: their topics are deleted once they were kept long enough."""

from __future__ import annotations

import logging
from datetime import timedelta

from backlog.config import mask_secrets
from backlog.errors import BacklogError
from backlog.values import FINAL, Recovery, RecoveryState
from replay.injection.ledger import fence_recovery
from replay.injection.plan import InjectionPlan, To
from replay.injection.target import remove_rehearsal
from replay.recovery.housekeeping import find_end
from replay.recovery.workspace import Workspace

LOG = logging.getLogger("backlog.replay")


def clear_rehearsals(workspace: Workspace, stream: str) -> tuple[str, ...]:
    """Deletes the topics of the stream's rehearsals that ended longer ago than they are kept.

    What cannot be deleted is logged and tried again the next time: this never fails the work that
    it goes with.

    Returns:
        The recoveries whose topics were deleted.
    """
    cleared: list[str] = []
    try:
        found = workspace.ledger.recoveries.list(stream=stream, states=list(FINAL))
    except BacklogError as error:
        _warn(error)
        return ()
    for recovery in found:
        try:
            if _is_over(workspace, recovery) and close_rehearsal(workspace, recovery):
                cleared.append(recovery.id)
        except BacklogError as error:
            _warn(error)
    return tuple(cleared)


def name_superseded(workspace: Workspace, stream: str) -> list[str]:
    """A warning about each plan that waits for its approval and would be superseded by a
    rehearsal; one rehearsal may take another's place without a word."""
    waiting = workspace.ledger.recoveries.list(stream=stream, states=[RecoveryState.PLANNED])
    return [
        f"{one.kind} {one.id} waits for its approval, and this plan takes its place: "
        f"`backlogctl show {one.id}` says what it would do, to plan that again"
        for one in waiting
        if one.plan.get("target") is None
    ]


def close_rehearsal(workspace: Workspace, recovery: Recovery) -> bool:
    """Deletes a rehearsal's topic, if it has one; False where there is none.

    Raises:
        Refused, KafkaFailure, ClusterUnreachable.
    """
    plan = workspace.plan_of(recovery)
    return isinstance(plan, InjectionPlan) and remove_rehearsal(workspace, recovery, plan)


def close_injection(workspace: Workspace, recovery: Recovery) -> None:
    """Fences every slot, and throws away what was only a rehearsal; what `cancel` drives.

    What is committed elsewhere stays, and later plans subtract it.
    """
    fence_recovery(workspace, recovery)
    close_rehearsal(workspace, recovery)


def _is_over(workspace: Workspace, recovery: Recovery) -> bool:
    known = workspace.ledger.temporary_topics.get(recovery.id)
    if (
        known is None
        or known.deleted_at is not None
        or recovery.kind not in workspace.kinds.names()
    ):
        return False
    plan = workspace.plan_of(recovery)
    target = plan.target if isinstance(plan, InjectionPlan) else None
    if target is None or target.to is not To.REHEARSAL:
        return False
    ended = find_end(recovery, workspace.ledger.events.list(recovery.id))
    kept = timedelta(milliseconds=target.keep_ms or 0)
    return ended is not None and workspace.ledger.now() - ended > kept


def _warn(error: BacklogError) -> None:
    LOG.warning("the topic of an old rehearsal is not deleted: %s", mask_secrets(str(error)))
