"""Carries a recovery on as far as it goes now, and says when to come again."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from rich.console import Console

from backlog.clock import utc_now
from backlog.errors import LeaseHeld
from backlog.values import FINAL, Recovery
from replay.recovery.brakes import OPERATOR, WINDOW, PausedBecause
from replay.recovery.runner import Run
from replay.recovery.workspace import Workspace
from replay.telling.documents import describe_run

# How soon to look again at what somebody else does, or holds.
OTHER_SECONDS = 20.0
HELD_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Carried:
    """How far it came; `come_again` is None where it is verified."""

    recovery: Recovery
    come_again: datetime | None
    why: str
    document: dict[str, Any] = field(default_factory=dict)

    @property
    def waits_for_window(self) -> bool:
        """Whether the off-peak window is closed now."""
        return self.why == WINDOW


def carry_on(
    workspace: Workspace, recovery_id: str, console: Console, *, resumed: bool = False
) -> Carried:
    """Runs it until it is verified, or must wait without anything to do.

    Waits for: its off-peak window, an operator's `resume`, another runner.

    Args:
        resumed: a person lets it go on that had paused it.

    Raises:
        PausedBecause: it was interrupted, or its canary was too slow and a person must look.
        ApprovalNeeded, Refused, CancelRequested: it may not run, or was cancelled.
        BacklogError: it failed, and can be run again.
    """
    run = Run(workspace, recovery_id, console, resumed=resumed)
    try:
        done = run.carry_out()
    except LeaseHeld as held:
        return _wait(
            workspace, recovery_id, OTHER_SECONDS, f"another runner has it: {held.message}"
        )
    except PausedBecause as pause:
        recovery = workspace.ledger.recoveries.get(recovery_id)
        window = workspace.plan_now(recovery).off_peak
        if pause.why == WINDOW and window is not None:
            return Carried(recovery, window.open().next_opening(utc_now()), WINDOW)
        if pause.why == OPERATOR:
            return _wait(workspace, recovery_id, HELD_SECONDS, pause.message)
        raise
    return Carried(done, None, "", describe_run(workspace, done, run.describe()))


def is_at_end(recovery: Recovery) -> bool:
    """Whether nothing more will be done."""
    return recovery.state in FINAL


def _wait(workspace: Workspace, recovery_id: str, seconds: float, why: str) -> Carried:
    recovery = workspace.ledger.recoveries.get(recovery_id)
    return Carried(recovery, utc_now() + timedelta(seconds=seconds), why)
