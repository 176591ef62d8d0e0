"""Makes the plan that a run of a runbook asks for, once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from backlog.errors import Refused, UsageError
from backlog.values import Recovery, RecoveryState
from replay.expand_plans import plan_expand
from replay.kinds import EXPAND
from replay.origins import list_recoveries_of_run
from replay.plans import plan_rebuild
from replay.runbooks.requests import RecoveryRequest
from replay.workspace import Workspace

# An earlier try's plan that nobody will run.
_CLOSED = (RecoveryState.REJECTED, RecoveryState.CANCELLED)


def find_or_plan(
    workspace: Workspace,
    request: RecoveryRequest,
    kind: str,
    origin: Mapping[str, Any],
    tell: Callable[[str], None] = lambda _: None,
) -> Recovery:
    """The plan of this run: a task that is cleared, or tried again, gets the same one.

    Raises:
        UsageError: the recovery that the form names does not fit.
        Refused: there is nothing to do, a guard says no, or another recovery is in the way.
    """
    if request.recovery:
        return _find_named(workspace, request, kind)
    for recovery in list_recoveries_of_run(workspace.ledger, origin["dag_id"], origin["run_id"]):
        same = (recovery.kind, recovery.stream) == (kind, request.stream)
        if same and recovery.state not in _CLOSED:
            return recovery
    stream = workspace.config.stream(request.stream)
    if kind == EXPAND:
        return plan_expand(workspace, stream, request.expand_options(origin), tell)
    return plan_rebuild(workspace, stream, request.rebuild_options(origin), tell)


def _find_named(workspace: Workspace, request: RecoveryRequest, kind: str) -> Recovery:
    recovery = workspace.ledger.recoveries.get(request.recovery)
    if (recovery.kind, recovery.stream) != (kind, request.stream):
        raise UsageError(
            f"it is a plan to {recovery.kind} {recovery.stream}, not to {kind} {request.stream}",
            subject=f"recovery {recovery.id}",
        )
    if recovery.state in _CLOSED:
        raise Refused(
            f"it was {recovery.state}",
            subject=f"recovery {recovery.id}",
            hint="leave `recovery` empty to make a new plan",
        )
    return recovery
