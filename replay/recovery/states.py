"""Groups of a recovery's states."""

from __future__ import annotations

from backlog.values import RecoveryState

BEGUN = (RecoveryState.APPROVED, RecoveryState.RUNNING, RecoveryState.PAUSED)
UNFINISHED = (*BEGUN, RecoveryState.FAILED)
# Not at an end: somebody has to do something, or it is being done.
ACTIVE = (RecoveryState.PLANNED, *UNFINISHED)
