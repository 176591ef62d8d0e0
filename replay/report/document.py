"""The document of a report: what `report --json` prints, and the page is drawn from."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from backlog.clock import format_time
from backlog.values import RecoveryState
from replay.expand_views import describe_progress
from replay.report.curves import describe_burndown, describe_injection, describe_lag
from replay.report.losses import describe_losses
from replay.report.material import Material, collect
from replay.report.outcome import describe_rest, describe_verification
from replay.report.planning import describe_people, describe_plan
from replay.report.standing import describe_figures, describe_standing
from replay.report.timeline import list_lines
from replay.workspace import Workspace

# Messages are never in it: not their values, keys or headers, nor the keys of rows.
FORMAT = 1


def make_report(workspace: Workspace, recovery_id: str) -> dict[str, Any]:
    """The report of a recovery in any state, from the ledger alone; secrets are masked.

    Raises:
        UsageError: there is no such recovery.
        Refused: another program, or another version of this one, planned it.
    """
    document = describe_report(collect(workspace, recovery_id))
    masked: dict[str, Any] = _mask(workspace, document)
    return masked


def describe_report(material: Material) -> dict[str, Any]:
    """The document, of what was read."""
    recovery, plan = material.recovery, describe_plan(material)
    isolation = find_isolation(recovery.plan)
    lines, left_out = list_lines(material, isolation)
    return {
        "format": FORMAT,
        "id": recovery.id,
        "kind": recovery.kind,
        "stream": recovery.stream,
        "cluster": recovery.cluster,
        "topic": recovery.topic,
        "group": recovery.group,
        "state": str(recovery.state),
        "verdict": plan["verdict"],
        "made_at": format_time(material.now),
        "made_by": f"backlogctl {_find_version()}",
        "from": format_time(lines[0].at if lines else recovery.created_at),
        "to": format_time(material.ended_at or material.now),
        "ended": material.ended_at is not None,
        "standing": describe_standing(material),
        "figures": describe_figures(material),
        "losses": describe_losses(material),
        "timeline": {"lines": [line.to_json() for line in lines], "left_out": left_out},
        "plan": plan,
        "people": describe_people(material),
        "steps": _describe_steps(material),
        "lag": describe_lag(material, isolation),
        "burndown": describe_burndown(material),
        "injection": describe_injection(material),
        "verification": describe_verification(material),
        "unexplained": describe_rest(material),
        "record": {
            "intact": material.problem is None,
            "problem": material.problem,
            "events": len(material.events),
            "head": material.events[-1].hash if material.events else None,
            "plan_holds": material.plan_holds,
        },
    }


def find_isolation(plan: Mapping[str, Any]) -> str:
    """How the group reads, as it was planned."""
    known = plan.get("isolation") or plan.get("configuration", {}).get("isolation")
    return str(known or "read_committed")


def _describe_steps(material: Material) -> list[dict[str, Any]]:
    live = material.recovery.state is RecoveryState.RUNNING
    steps = describe_progress(material.steps, (), material.now, live=live)["steps"]
    # What a step left may be long, and is told where it matters.
    return [{name: value for name, value in step.items() if name != "detail"} for step in steps]


def _find_version() -> str:
    try:
        return version("backlogctl")
    except PackageNotFoundError:
        return "(not installed)"


def _mask(workspace: Workspace, value: Any) -> Any:
    if isinstance(value, str):
        return workspace.config.mask_secrets(value)
    if isinstance(value, Mapping):
        return {name: _mask(workspace, item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_mask(workspace, item) for item in value]
    return value
