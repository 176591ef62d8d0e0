"""Makes the plan that a run of a runbook asks for, once."""

from __future__ import annotations

from backlog.errors import Refused, UsageError
from backlog.values import Recovery, RecoveryState
from replay.recovery.kind import Registry, Say, say_nothing
from replay.recovery.options import read_options
from replay.recovery.origins import list_recoveries_of_run
from replay.recovery.plan import Origin
from replay.recovery.workspace import Workspace
from replay.runbooks.requests import AUTO, RecoveryRequest, choose_options

# An earlier try's plan that nobody will run.
_CLOSED = (RecoveryState.REJECTED, RecoveryState.CANCELLED)


def find_or_plan(
    workspace: Workspace,
    request: RecoveryRequest,
    kind: str,
    origin: Origin,
    say: Say = say_nothing,
) -> Recovery:
    """The plan of this run: a task that is cleared, or tried again, gets the same one.

    Raises:
        UsageError: the recovery that the form names does not fit.
        Refused: there is nothing to do, a guard says no, or another recovery is in the way.
    """
    if request.recovery:
        return _find_named(workspace, request, kind)
    for recovery in list_recoveries_of_run(workspace.ledger, origin.dag_id, origin.run_id):
        same = (recovery.kind, recovery.stream) == (kind, request.stream)
        if same and recovery.state not in _CLOSED:
            return recovery
    stream, chosen = workspace.config.stream(request.stream), workspace.kinds.get(kind)
    said = choose_options(chosen, request.said)
    if request.action == AUTO:
        said = {**chosen.suggest_options(workspace.ledger, stream), **said}
    options = read_options(chosen.options_model, said, workspace.config, stream)
    return chosen.make_plan(workspace, stream, options, origin=origin, say=say)


def find_named_kind(workspace: Workspace, request: RecoveryRequest, kinds: Registry) -> str:
    """The kind of the recovery that a form names.

    Args:
        kinds: those that the form is for.

    Raises:
        UsageError: it is of another kind.
    """
    recovery = workspace.ledger.recoveries.get(request.recovery)
    name = workspace.kind_of(recovery).name
    if name not in kinds.names():
        raise UsageError(
            f"it is a plan to {name}, and this DAG is for {', '.join(kinds.names())}",
            subject=f"recovery {recovery.id}",
            hint=f"name it in the DAG for that, or `backlogctl run {recovery.id}`",
        )
    return name


def _find_named(workspace: Workspace, request: RecoveryRequest, kind: str) -> Recovery:
    recovery = workspace.ledger.recoveries.get(request.recovery)
    workspace.kind_of(recovery)
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
