"""The document of a report: what `report --json` prints, and the page is drawn from."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import Any

from backlog.clock import format_time
from backlog.values import RecoveryState
from replay.recovery.masking import mask_values
from replay.recovery.workspace import Workspace
from replay.report.collecting import collect_record
from replay.report.losses import describe_losses
from replay.report.planning import describe_people, describe_plan
from replay.report.standing import describe_figures, describe_standing
from replay.report.timeline import list_lines
from replay.telling.account import Account, RecoveryRecord
from replay.telling.figures import (
    describe_burndown,
    describe_disks,
    describe_injection,
    describe_lag,
)
from replay.telling.progress import describe_progress

# Messages are never in it: not their values, keys or headers, nor the keys of rows.
FORMAT = 1


def make_report(workspace: Workspace, recovery_id: str) -> dict[str, Any]:
    """The report of a recovery in any state, from the ledger alone; secrets are masked.

    Raises:
        UsageError: there is no such recovery.
        Refused: another program, or another version of this one, planned it.
    """
    record = collect_record(workspace, recovery_id)
    document = describe_report(workspace, record)
    masked: dict[str, Any] = mask_values(workspace.config.mask_secrets, document)
    return masked


def describe_report(workspace: Workspace, record: RecoveryRecord) -> dict[str, Any]:
    """The document, of what was read."""
    recovery = record.recovery
    kind = workspace.kind_of(recovery)
    plan = kind.read_plan(recovery)
    account, told = kind.account(plan, record), kind.tell(plan, recovery)
    isolation = str(plan.configuration.get("isolation", "read_committed"))
    lines, left_out = list_lines(record, isolation)
    return {
        "format": FORMAT,
        "id": recovery.id,
        "kind": recovery.kind,
        "stream": recovery.stream,
        "cluster": recovery.cluster,
        "topic": recovery.topic,
        "group": recovery.group,
        "state": str(recovery.state),
        "verdict": told.verdict,
        "made_at": format_time(record.now),
        "made_by": f"backlogctl {_find_version()}",
        "from": format_time(lines[0].at if lines else recovery.created_at),
        "to": format_time(record.ended_at or record.now),
        "ended": record.ended_at is not None,
        "standing": describe_standing(workspace, record, account),
        "figures": describe_figures(record, account),
        "losses": describe_losses(record, account),
        "timeline": {"lines": [line.to_json() for line in lines], "left_out": left_out},
        "plan": describe_plan(plan, told),
        "people": describe_people(plan, record),
        "steps": _describe_steps(record),
        "lag": describe_lag(record.samples, isolation),
        "burndown": describe_burndown(record.burndown),
        "injection": describe_injection(record.chunks, record.steps),
        "disks": describe_disks(record.disks, recovery.topic),
        "verification": _describe_verification(account),
        "unexplained": _describe_rest(account),
        "record": {
            "intact": record.problem is None,
            "problem": record.problem,
            "events": len(record.events),
            "head": record.events[-1].hash if record.events else None,
            "plan_holds": record.plan_holds,
        },
    }


def _describe_verification(account: Account) -> dict[str, Any]:
    found = account.verification
    return {
        "result": found.result,
        "told": found.told,
        "checks": [{"told": check.words, "value": check.value} for check in found.checks],
        "columns": list(found.columns),
        "partitions": [list(row) for row in found.partitions],
    }


def _describe_rest(account: Account) -> dict[str, Any]:
    rest = account.unexplained
    items = [{"name": name, "value": value, "told": words} for name, value, words in rest.items]
    return {"told": rest.told, "items": items, "reasons": list(rest.reasons)}


def _describe_steps(record: RecoveryRecord) -> list[dict[str, Any]]:
    live = record.recovery.state is RecoveryState.RUNNING
    steps = describe_progress(record.steps, (), record.now, live=live)["steps"]
    # A step's detail may be long; the report shows it where it belongs.
    return [{name: value for name, value in step.items() if name != "detail"} for step in steps]


def _find_version() -> str:
    try:
        return version("backlogctl")
    except PackageNotFoundError:
        return "(not installed)"
