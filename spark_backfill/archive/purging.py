"""Deletes an archive: its own files, and the place where nothing else is left."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from backlog.archive import ARCHIVE_MANIFEST, ARCHIVE_PARTS
from backlog.errors import Refused
from spark_backfill.archive.filesystem import ArchivePlace
from spark_backfill.archive.owning import SIGNS, refuse_foreign
from spark_backfill.archive.parts import is_data, is_ours
from spark_backfill.archive.place import Place

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class Purged:
    """How many files of messages were deleted, and their bytes."""

    files: int
    bytes: int


def purge_archive(spark: SparkSession, location: str, *, owner: Mapping[str, str]) -> Purged:
    """Deletes it for good; a place that is gone is nothing left to do. What is none of the
    archive's stays.

    What says whose archive it is goes last, so a purge that was killed can be done again.

    Args:
        owner: whose it must be: `recovery_id` and, where it is known, `plan_hash`.

    Raises:
        ForeignArchive: it is somebody else's; nothing was deleted.
        Refused: what is there is no archive.
        StagingError: it could not be deleted.
    """
    return purge_place(ArchivePlace(spark, location), owner=owner)


def purge_place(place: Place, *, owner: Mapping[str, str]) -> Purged:
    """As `purge_archive`, of any kind of place."""
    there = place.list_files()
    if not there:
        return Purged(0, 0)
    if ARCHIVE_MANIFEST not in there and not any(p.startswith(f"{ARCHIVE_PARTS}/") for p in there):
        raise Refused(
            "it does not look like an archive (no manifest, no records of parts); nothing was "
            "deleted",
            subject=place.location,
            hint="name the place that an offload has written to",
        )
    refuse_foreign(place, there, owner)
    data = {path: size for path, size in there.items() if is_data(path)}
    for path in data:
        place.delete(path)
    for path in there:
        if path.startswith(f"{ARCHIVE_PARTS}/") and path not in SIGNS:
            place.delete(path)
    if all(is_ours(path) for path in there):
        place.delete_all()
    else:
        place.delete(ARCHIVE_MANIFEST)
        place.delete(ARCHIVE_PARTS)
    return Purged(len(data), sum(data.values()))
