"""Gives back what a scheduler's run left stopped: consumers, and their layout."""

from __future__ import annotations

from collections.abc import Callable

from rich.console import Console

from backlog.errors import LeaseHeld, Refused
from backlog.values import Recovery, RecoveryState
from replay.recovery.brakes import OPERATOR
from replay.recovery.cancelling import cancel_work
from replay.recovery.origins import find_origin
from replay.recovery.states import UNFINISHED
from replay.recovery.workspace import Workspace
from replay.runbooks.carrying import is_at_end
from replay.runbooks.working import BEGINNINGS, is_airflow

# What must go forward is waited for: messages may be in a temporary topic, or an archive, only.
RESTORE_SECONDS = 3600.0
PAUSE_ASKED = "pause requested"
_PAUSES = (PAUSE_ASKED, "paused")


def restore_layout(
    workspace: Workspace,
    recovery_id: str,
    *,
    console: Console,
    say: Callable[[str], None] = lambda _: None,
) -> Recovery:
    """Cancels what this scheduler began and did not end; anything else is left alone.

    Its kind knows whether that goes back or forward; the consumers are started in any case.
    Safe to call again, and after the work is done.

    Raises:
        LeaseHeld: its runner has not stopped within the time.
        BacklogError: it could not be closed; nothing is lost, call again.
    """
    recovery = workspace.ledger.recoveries.get(recovery_id)
    workspace.kind_of(recovery)
    if not recovery.stops_consumers or recovery.state not in UNFINISHED:
        say(f"{recovery_id} is {recovery.state}: the layout is as it was")
        return recovery
    if is_run_by_hand(workspace, recovery):
        say(f"{recovery_id} is carried on from the shell: left alone")
        return recovery
    try:
        return cancel_work(workspace, recovery_id, wait=RESTORE_SECONDS, say=say, console=console)
    except LeaseHeld:
        raise
    except Refused:
        # Its runner may have come to the end before it saw the request.
        found = workspace.ledger.recoveries.get(recovery_id)
        if not is_at_end(found):
            raise
        return found


def is_run_by_hand(workspace: Workspace, recovery: Recovery) -> bool:
    """Whether a person took it over in the shell: it runs, or they paused it, on purpose.

    Or they approved it there, and nobody began it yet.
    """
    if recovery.state is RecoveryState.APPROVED:
        return not is_airflow(recovery.approved_identity)
    paused = recovery.state is RecoveryState.PAUSED and recovery.detail.get("why") == OPERATOR
    if paused or recovery.requested == "pause":
        return not is_airflow(_find_actor(workspace, recovery.id, _PAUSES))
    return is_worked_on(workspace, recovery) and not is_airflow(
        _find_actor(workspace, recovery.id, BEGINNINGS)
    )


def is_worked_on(workspace: Workspace, recovery: Recovery) -> bool:
    """Whether a live runner has it now."""
    return workspace.ledger.leases.find_runner(recovery.id) is not None


def _find_actor(workspace: Workspace, recovery_id: str, actions: tuple[str, ...]) -> str:
    """Who did the last of these; of a pause, who asked for it: a runner only obeys."""
    actor, asked = "", ""
    for event in workspace.ledger.events.list(recovery_id):
        if event.action == PAUSE_ASKED:
            asked = event.actor
        elif event.action in (*BEGINNINGS, "request taken back"):
            asked = ""
        if event.action in actions:
            actor = asked or event.actor
    return actor


def list_left_open(workspace: Workspace) -> tuple[Recovery, ...]:
    """What a scheduler's run began, that stops consumers, and that nobody works on now.

    Whether one of its tasks will is for the scheduler to say. What another version of this program
    planned is that version's to restore.
    """
    found: list[Recovery] = []
    for recovery in workspace.ledger.recoveries.list(states=UNFINISHED):
        known = recovery.kind in workspace.kinds.names()
        if not known or not recovery.stops_consumers or find_origin(recovery) is None:
            continue
        if not is_worked_on(workspace, recovery) and not is_run_by_hand(workspace, recovery):
            found.append(recovery)
    return tuple(found)
