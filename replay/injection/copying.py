"""The copy of a plan beside its staged messages: what is left where the SQL ledger is lost."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from backlogctl.errors import StagingError
from backlogctl.manifests import write_synced
from backlogctl.values import Gap, Recovery, RecoveryState, hash_value, to_document

COPY_NAME = "recovery.json"
_VERSION = 1
_IN_PLAN = ("kind", "stream", "cluster", "topic", "group")
_KEPT = ("id", *_IN_PLAN, "plan_hash", "plan", "created_at")
_GAPS = TypeAdapter(tuple[Gap, ...])
_RECOVERY = TypeAdapter(Recovery)


@dataclass(frozen=True, slots=True)
class RecoveryCopy:
    """A recovery as it was planned, and the gaps that it took, as they were then."""

    recovery: Recovery
    gaps: tuple[Gap, ...]


def write_copy(directory: Path, recovery: Recovery, gaps: Sequence[Gap]) -> None:
    """Writes it, whole or not at all.

    Raises:
        StagingError: it could not be written.
    """
    document = {
        "version": _VERSION,
        "recovery": to_document(recovery, *_KEPT),
        "gaps": [to_document(gap) for gap in gaps],
    }
    path = directory / COPY_NAME
    try:
        write_synced(path, json.dumps(document, indent=1, ensure_ascii=False))
    except OSError as error:
        raise StagingError(
            f"the copy of the plan could not be written: {error.strerror}; nothing was planned",
            subject=str(path),
            hint="look at the space and the rights of `staging.dir`, then plan again",
        ) from error


def read_copy(directory: Path) -> RecoveryCopy | None:
    """The copy; None where there is none.

    Raises:
        StagingError: it cannot be read, or its plan was changed since.
    """
    path = directory / COPY_NAME
    try:
        found: dict[str, Any] = json.loads(path.read_text())
        known = {**found["recovery"], "state": RecoveryState.PLANNED}
        copy = RecoveryCopy(
            _RECOVERY.validate_json(json.dumps(known)),
            _GAPS.validate_json(json.dumps(found["gaps"])),
        )
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, ValidationError) as error:
        raise StagingError(
            f"the copy of the plan could not be read: {type(error).__name__}", subject=str(path)
        ) from error
    recovery, plan = copy.recovery, copy.recovery.plan
    told = {name: getattr(recovery, name) for name in _IN_PLAN}
    if hash_value(plan) != recovery.plan_hash or not told.items() <= plan.items():
        raise StagingError("the copy of the plan was changed", subject=str(path))
    return copy
