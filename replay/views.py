"""The JSON documents that the command line prints; the tables are drawn from the same."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from backlog.clock import format_time
from backlog.errors import Refused
from backlog.numbers import format_plural
from backlog.values import Event, Gap, Recovery, RecoveryState
from replay.approval import check_runnable, is_expired
from replay.expand_views import describe_expand_run, describe_expansion
from replay.kinds import EXPAND


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
    }


def describe_recovery(recovery: Recovery) -> dict[str, Any]:
    """A recovery as `plan` and `show` print it."""
    plan = recovery.plan
    own = describe_expansion if recovery.kind == EXPAND else _describe_rebuild
    return {
        "id": recovery.id,
        "kind": recovery.kind,
        "stream": recovery.stream,
        "state": str(recovery.state),
        "plan_hash": recovery.plan_hash,
        **own(recovery),
        "warnings": list(plan["warnings"]),
        "other_groups": list(plan["other_groups"]),
        "topic": recovery.topic,
        "group": recovery.group,
        "created_at": _at(recovery.created_at),
        "planned_by": plan["planned_by"],
        "approved_by": recovery.approved_by,
        "approved_identity": recovery.approved_identity,
        "approval_expires_at": _at(recovery.approval_expires_at),
        "requested": recovery.requested,
        "runner": recovery.runner,
        "injected": recovery.injected,
        "skipped": recovery.skipped,
        "detail": dict(recovery.detail),
    }


def _describe_rebuild(recovery: Recovery) -> dict[str, Any]:
    plan = recovery.plan
    outcome = plan["outcome"]
    return {
        "verdict": outcome["verdict"],
        "reasons": list(outcome["reasons"]),
        "counts": dict(outcome["counts"]),
        "partitions": list(outcome["partitions"]),
        "proof": outcome["proof"],
        "quarantine": outcome["quarantine"],
        "fidelity": outcome["fidelity"],
        "staging": f"{format_plural(outcome['chunks'], 'chunk')}, "
        f"{format_plural(outcome['bytes'], 'byte')}",
        "gaps": list(plan["gaps"]),
        "off_peak": plan["off_peak"],
        "limits": plan["limits"],
    }


def describe_run(recovery: Recovery, run: Mapping[str, Any]) -> dict[str, Any]:
    """A recovery as `run` prints it.

    `injected` were put back by this run, `skipped` were in the topic already; together they are
    all. For a recovery that was verified before, all count as injected.
    """
    if recovery.kind == EXPAND:
        return describe_expand_run(recovery, run)
    counts = run.get("counts") or {"injected": recovery.injected, "skipped": recovery.skipped}
    quarantined = recovery.plan["outcome"]["counts"]["quarantined"]
    return {
        **run,
        "id": recovery.id,
        "state": str(recovery.state),
        "counts": {**counts, "quarantined": quarantined},
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


def list_next_commands(recovery: Recovery) -> list[str]:
    """What an operator would type next."""
    match recovery.state:
        case RecoveryState.APPROVED if is_expired(recovery):
            return [f"backlogctl approve {recovery.id} --by NAME"]
        case RecoveryState.PLANNED:
            if _is_refused(recovery):
                return []  # what stands against it is on the plan
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


def _is_refused(recovery: Recovery) -> bool:
    """Whether the plan cannot be approved as it is."""
    try:
        check_runnable(recovery)
    except Refused:
        return True
    return False


def _at(moment: datetime | None) -> str | None:
    return None if moment is None else format_time(moment)
