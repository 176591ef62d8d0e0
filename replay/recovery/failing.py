"""Every failure of a recovery ends with how things stand."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from backlog.config import mask_secrets
from backlog.errors import LeaseHeld
from backlog.values import RecoveryState
from replay.recovery.identity import find_identity
from replay.recovery.masking import mask_values
from replay.recovery.workspace import Workspace

LOG = logging.getLogger("backlog.replay")
# The line of the record with `Standing.to_json`, for those who cannot ask the brokers.
STANDING = "how it stands"
_AT_REST = (RecoveryState.PAUSED, RecoveryState.FAILED)


@contextmanager
def telling_standing(workspace: Workspace, recovery_id: str) -> Iterator[None]:
    """An error that leaves it has `standing`: how the recovery stands now (see BacklogError).

    Of one that keeps consumers stopped it is put on record too.
    """
    try:
        yield
    except Exception as error:
        try:
            _add_standing(workspace, recovery_id, error)
        except Exception as failure:  # noqa: BLE001 - what ended it matters more
            told = mask_secrets(str(failure))
            LOG.warning("recovery %s: how it stands is unknown: %s", recovery_id, told)
        raise


def _add_standing(workspace: Workspace, recovery_id: str, error: Exception) -> None:
    ledger = workspace.ledger
    if not ledger.steps.list(recovery_id):
        return  # nothing was changed yet
    recovery = ledger.recoveries.get(recovery_id)
    found = workspace.kind_of(recovery).describe_standing(workspace, recovery)
    if found.is_settled:
        return
    document = mask_values(mask_secrets, found.to_json())
    error.__dict__["standing"] = document
    at_rest = recovery.state in _AT_REST and not isinstance(error, LeaseHeld)
    # Once, where nothing has happened since: a scheduler may ask again and again.
    if (
        recovery.stops_consumers
        and at_rest
        and ledger.events.list(recovery_id)[-1].action != STANDING
    ):
        ledger.events.append(recovery_id, str(find_identity()), STANDING, document)
