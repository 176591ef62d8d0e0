"""Removes staged messages and archives that nobody needs any more (`staging.keep`)."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from backlog.config import mask_secrets
from backlog.errors import BacklogError
from backlog.manifest import MESSAGES_FOLDER
from backlog.values import Event, Recovery, RecoveryState
from replay.recovery.archives import list_archives, purge_expired
from replay.recovery.identity import find_identity
from replay.recovery.workspace import Workspace

LOG = logging.getLogger("backlog.replay")
REMOVED = "staged messages removed"
_ENDED = (RecoveryState.VERIFIED, RecoveryState.REJECTED, RecoveryState.CANCELLED)


def clear_staging(workspace: Workspace) -> tuple[str, ...]:
    """Removes the messages of recoveries that came to their end longer ago than `staging.keep`,
    and archives all of whose gaps were closed as long ago.

    Manifests, id lists and quarantine lists stay. What cannot be removed is logged and tried again
    the next time: this never fails the work that it follows.

    Returns:
        The recoveries whose messages or archives were removed.
    """
    return (*_clear_messages(workspace), *_clear_archives(workspace))


def _clear_archives(workspace: Workspace) -> tuple[str, ...]:
    cleared: list[str] = []
    try:
        now, known = workspace.ledger.now(), list_archives(workspace)
    except BacklogError as error:
        _warn(error)
        return ()
    for state in known:
        try:
            if purge_expired(workspace, state, now):
                cleared.append(state.record.recovery_id)
        except (BacklogError, OSError) as error:
            _warn(error)
    return tuple(cleared)


def _clear_messages(workspace: Workspace) -> tuple[str, ...]:
    cleared: list[str] = []
    try:
        now, ended = workspace.ledger.now(), workspace.ledger.recoveries.list(states=_ENDED)
    except BacklogError as error:
        _warn(error)
        return ()
    for recovery in ended:
        try:
            if _clear_one(workspace, recovery, now):
                cleared.append(recovery.id)
        except (BacklogError, OSError) as error:
            _warn(error)
    return tuple(cleared)


def _warn(error: Exception) -> None:
    LOG.warning("old staged messages or archives are not removed: %s", mask_secrets(str(error)))


def _clear_one(workspace: Workspace, recovery: Recovery, now: datetime) -> bool:
    # Beside it `ids` and the manifest: the evidence of later plans.
    directory = workspace.staging_of(recovery.id) / MESSAGES_FOLDER
    if not directory.is_dir():
        return False
    ended = find_end(recovery, workspace.ledger.events.list(recovery.id))
    if ended is None or now - ended <= workspace.config.staging.keep:
        return False
    _remove(workspace, recovery, directory)
    return True


def find_end(recovery: Recovery, events: Sequence[Event]) -> datetime | None:
    """When it came to its end; None where its record does not say so."""
    for event in reversed(events):
        superseded = event.action.startswith("superseded by ")
        if event.action == recovery.state.value or superseded:
            return event.at
    return None


def _remove(workspace: Workspace, recovery: Recovery, directory: Path) -> None:
    sizes = [path.stat().st_size for path in directory.rglob("*") if path.is_file()]
    shutil.rmtree(directory)
    days = workspace.config.staging.keep.total_seconds() / 86400
    detail = {"files": len(sizes), "bytes": sum(sizes), "keep_days": round(days, 3)}
    workspace.ledger.events.append(recovery.id, str(find_identity()), REMOVED, detail)
