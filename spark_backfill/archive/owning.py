"""Whose archive lies in a place: two ledgers that share one may give the same ids."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from backlog.archive import ARCHIVE_MANIFEST, ARCHIVE_PARTS
from backlog.errors import Refused
from spark_backfill.archive.place import Place

# What says whose it is; it is written first, and purged last.
SIGNS = (f"{ARCHIVE_PARTS}/job.json", ARCHIVE_MANIFEST)


class ForeignArchive(Refused):
    """Another recovery's archive, or another plan's, lies there."""

    code = "foreign_archive"


def refuse_foreign(place: Place, there: Collection[str], owner: Mapping[str, str]) -> None:
    """Refuses a place that holds somebody else's archive, finished or begun.

    Args:
        there: its files.
        owner: `recovery_id` and, where it is known, `plan_hash`.

    Raises:
        ForeignArchive: names whose it is.
        StagingError: it could not be read.
    """
    for path in SIGNS:
        if path not in there:
            continue
        found = place.read_json(path)
        if not isinstance(found, dict) or not _has(found, owner):
            raise _make_error(place, found)


def _make_error(place: Place, found: Any) -> ForeignArchive:
    told = found.get("recovery_id") if isinstance(found, dict) else None
    return ForeignArchive(
        f"it holds the archive of another recovery or plan, {told or 'an unknown one'}; nothing "
        "of it was changed",
        subject=place.location,
        hint="does another ledger use the same place? Give each its own: `staging.archive` in "
        "backlog.yaml",
    )


def _has(found: dict[str, Any], owner: Mapping[str, str]) -> bool:
    return all(found.get(name) == value for name, value in owner.items())
