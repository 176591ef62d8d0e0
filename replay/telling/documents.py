"""The JSON documents that the command line prints; the tables are drawn from the same."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from datetime import datetime
from typing import Any

from backlog.clock import format_time
from backlog.errors import Refused
from backlog.values import Event, Gap, Recovery, RecoveryState
from replay.recovery.approval import check_runnable, is_expired
from replay.recovery.workspace import Workspace
from replay.telling.value import Telling

UNKNOWN = "unknown"


def describe_gap(gap: Gap) -> dict[str, Any]:
    """A gap as `gaps --json` prints it."""
    return {
        "id": gap.id,
        "stream": gap.stream,
        "partition": gap.partition,
        "start": gap.start,
        "end": gap.end,
        "count": gap.count,
        "cause": str(gap.cause),
        "certainty": str(gap.certainty),
        "state": str(gap.state),
        "first_time": _at(gap.first_time),
        "last_time": _at(gap.last_time),
        "detected_at": _at(gap.detected_at),
        "topic": gap.topic,
        "group": gap.group,
        "reason": gap.reason,
        "archive": gap.archive,
        "sequences": None if gap.sequences is None else asdict(gap.sequences),
    }


def describe_recovery(workspace: Workspace, recovery: Recovery) -> dict[str, Any]:
    """A recovery as `plan` and `show` print it.

    Where this program cannot read the plan, `problem` says why, and `plan` is what is stored.
    """
    common = {
        "id": recovery.id,
        "kind": recovery.kind,
        "stream": recovery.stream,
        "state": str(recovery.state),
        "plan_hash": recovery.plan_hash,
        "topic": recovery.topic,
        "group": recovery.group,
        "created_at": _at(recovery.created_at),
        "approved_by": recovery.approved_by,
        "approved_identity": recovery.approved_identity,
        "approval_expires_at": _at(recovery.approval_expires_at),
        "requested": recovery.requested,
        "runner": recovery.runner,
        "injected": recovery.injected,
        "injects": _may_inject(workspace, recovery),
        "skipped": recovery.skipped,
        "detail": dict(recovery.detail),
    }
    try:
        plan, told = workspace.plan_of(recovery), tell_plan(workspace, recovery)
    except Refused as refused:
        unread: dict[str, Any] = {
            "verdict": UNKNOWN,
            "counts": {},
            "partitions": [],
            "warnings": [],
            "size": None,
        }
        return {**common, **unread, "problem": str(refused), "plan": dict(recovery.plan)}
    return {
        **common,
        **told.document,
        "warnings": list(told.warnings),
        "other_groups": list(told.other_groups),
        "other_groups_unknown": told.others_unknown or None,
        "size": told.size,
        "planned_by": asdict(plan.planned_by),
        "planned_at": format_time(plan.planned_at),
    }


def _may_inject(workspace: Workspace, recovery: Recovery) -> bool:
    """Whether its kind sends messages; what was sent counts where the kind is not known."""
    if recovery.kind not in workspace.kinds.names():
        return bool(recovery.injected)
    return workspace.kind_of(recovery).traits.injects


def tell_plan(workspace: Workspace, recovery: Recovery) -> Telling:
    """The plan for every renderer.

    Raises:
        Refused: this program does not know its kind, or cannot read its plan.
    """
    kind = workspace.kind_of(recovery)
    told: Telling = kind.tell(workspace.plan_now(recovery), recovery)
    return told


def preview_plan(workspace: Workspace, recovery: Recovery) -> Telling:
    """The plan for the operator's terminal, with a few messages where its kind shows some.

    Raises:
        Refused: this program does not know its kind, or cannot read its plan.
    """
    told = tell_plan(workspace, recovery)
    kind = workspace.kind_of(recovery)
    rows = kind.preview(workspace, workspace.plan_of(recovery), recovery)
    return replace(told, facts=(*told.facts, *rows))


def describe_run(
    workspace: Workspace, recovery: Recovery, run: Mapping[str, Any]
) -> dict[str, Any]:
    """A recovery as `run` prints it: what this run did, by its kind."""
    kind = workspace.kind_of(recovery)
    return {
        **run,
        "id": recovery.id,
        "kind": recovery.kind,
        "state": str(recovery.state),
        "counts": kind.count_run(kind.read_plan(recovery), recovery, run.get("counts") or {}),
        "stream": recovery.stream,
    }


def describe_event(event: Event) -> dict[str, Any]:
    """One line of a recovery's record."""
    return {
        "sequence": event.sequence,
        "at": _at(event.at),
        "actor": event.actor,
        "action": event.action,
        "detail": dict(event.detail),
        "hash": event.hash,
    }


def list_next_commands(workspace: Workspace, recovery: Recovery) -> list[str]:
    """What an operator would type next; nothing where this program cannot read the plan."""
    if _is_unread(workspace, recovery):
        return []
    if recovery.requested == "cancel":
        # Asked for, and not carried out yet: that is what any run would do.
        return [f"backlogctl cancel {recovery.id}"]
    match recovery.state:
        case RecoveryState.APPROVED if is_expired(recovery):
            return [f"backlogctl approve {recovery.id} --by NAME"]
        case RecoveryState.PLANNED:
            if _is_refused(workspace, recovery):
                return []  # its warnings say why it may not run
            return [f"backlogctl approve {recovery.id} --by NAME"]
        case RecoveryState.FAILED if recovery.detail.get("code") == "plan_stale":
            return [f"backlogctl cancel {recovery.id}"]
        case RecoveryState.APPROVED | RecoveryState.FAILED | RecoveryState.RUNNING:
            return [f"backlogctl run {recovery.id}"]
        case RecoveryState.PAUSED:
            held = recovery.detail.get("why") in ("operator", "canary")
            word = "resume" if held else "run"
            return [f"backlogctl {word} {recovery.id}"]
    return []


def _is_unread(workspace: Workspace, recovery: Recovery) -> bool:
    """Whether this program does not know the kind, or cannot read the plan."""
    try:
        workspace.plan_of(recovery)
    except Refused:
        return True
    return False


def _is_refused(workspace: Workspace, recovery: Recovery) -> bool:
    """Whether the plan cannot be approved as it is."""
    try:
        check_runnable(workspace, recovery)
    except Refused:
        return True
    return False


def _at(moment: datetime | None) -> str | None:
    return None if moment is None else format_time(moment)
