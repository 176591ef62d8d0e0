"""Whether an archive is still what its manifest says: each file there, and its hash the same."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from backlogctl.archive_manifest import ARCHIVE_MANIFEST, ARCHIVE_PARTS, ArchiveManifest
from backlogctl.errors import Refused, StagingError
from backlogctl.formats import format_plural
from backlogctl.spark_backfill.archive.job import is_data, is_ours
from backlogctl.spark_backfill.archive.place import ArchivePlace
from backlogctl.values import OffsetRange
from backlogctl_delivery.crashpoints import reach

if TYPE_CHECKING:
    from backlogctl.spark_backfill.archive.place import Spark


# Whose archive lies in a place: two ledgers that share one may give the same ids.

# What says whose it is; it is written first, and purged last.
SIGNS = (f"{ARCHIVE_PARTS}/job.json", ARCHIVE_MANIFEST)


class ForeignArchive(Refused):
    """Another recovery's archive, or another plan's, lies there."""

    code = "foreign_archive"


def refuse_foreign(place: ArchivePlace, there: Collection[str], owner: Mapping[str, str]) -> None:
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


def _make_error(place: ArchivePlace, found: Any) -> ForeignArchive:
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


_MAX_NAMES = 5


@dataclass(frozen=True, slots=True)
class ArchiveCheck:
    """What was found. `files` and `count` are those of the manifest; the names are relative to the
    archive's place."""

    files: int
    count: int
    missing: tuple[str, ...]
    corrupt: tuple[str, ...]
    unexpected: tuple[str, ...]

    @property
    def is_good(self) -> bool:
        """All of it is there as it was written, and nothing else."""
        return not (self.missing or self.corrupt or self.unexpected)

    def list_damaged(self, manifest: ArchiveManifest) -> tuple[OffsetRange, ...]:
        """The offsets of files that are missing or corrupt; what is in none holds no message."""
        bad = {*self.missing, *self.corrupt}
        return tuple(
            OffsetRange(file.partition, file.first_offset, file.last_offset + 1)
            for file in manifest.files
            if file.path in bad
        )

    def require_good(self, subject: str, way_out: str = "") -> None:
        """Raises StagingError, naming files, unless it is good."""
        if self.is_good:
            return
        kinds = ("missing", "corrupt", "unexpected")
        parts = [f"{kind}: {_name(getattr(self, kind))}" for kind in kinds if getattr(self, kind)]
        raise StagingError(
            f"the archive is not what was written; {'; '.join(parts)}; nothing was sent",
            subject=subject,
            hint="bring these files back from a copy, and remove what is none of the archive's"
            + way_out,
        )


def verify_archive(
    spark: Spark, location: str, manifest: ArchiveManifest, *, rehash: bool = True
) -> ArchiveCheck:
    """Looks at every file.

    Args:
        rehash: read them whole; else only their sizes are compared.

    Raises:
        StagingError: the place could not be read.
    """
    return check_place(ArchivePlace(spark, location), manifest, rehash=rehash)


def check_place(
    place: ArchivePlace, manifest: ArchiveManifest, *, rehash: bool = True
) -> ArchiveCheck:
    """As `verify_archive`, of any kind of place."""
    there = place.list_files()
    files = {file.path: file for file in manifest.files}
    missing = [path for path in files if path not in there]
    corrupt = {p for p, f in files.items() if p in there and there[p] != f.bytes}
    if rehash:
        rest = [path for path in files if path in there and path not in corrupt]
        hashes = place.hash_files(rest)
        corrupt |= {path for path in rest if hashes[path] != files[path].sha256}
    unexpected = [p for p in there if p not in files and (is_data(p) or not is_ours(p))]
    return ArchiveCheck(
        len(files),
        manifest.count,
        tuple(sorted(missing)),
        tuple(sorted(corrupt)),
        tuple(sorted(unexpected)),
    )


def read_archive_manifest(
    spark: Spark, location: str, expected_sha256: str | None = None
) -> ArchiveManifest:
    """Of a finished archive.

    Raises:
        StagingError: it is missing, of a later version, or not the one that was expected.
    """
    return read_manifest_of(ArchivePlace(spark, location), expected_sha256)


def read_manifest_of(place: ArchivePlace, expected_sha256: str | None = None) -> ArchiveManifest:
    """As `read_archive_manifest`, of any kind of place."""
    if not place.exists(ARCHIVE_MANIFEST):
        raise StagingError(
            "no finished archive is there: it has no manifest",
            subject=place.location,
            hint="was it purged, or is the offload that writes it not at its end?"
            if expected_sha256 is None
            else "it is on record, so somebody removed it: bring it back from a copy",
        )
    value = place.read_json(ARCHIVE_MANIFEST)
    manifest = ArchiveManifest.from_json(value, place.name(ARCHIVE_MANIFEST))
    if expected_sha256 is not None and manifest.sha256() != expected_sha256:
        raise StagingError(
            "the archive's manifest is not the one that was recorded; nothing was sent",
            subject=place.name(ARCHIVE_MANIFEST),
            hint="bring it back from a copy",
        )
    return manifest


def _name(paths: tuple[str, ...]) -> str:
    more = len(paths) - _MAX_NAMES
    named = ", ".join(paths[:_MAX_NAMES])
    return f"{named} and {format_plural(more, 'more file')}" if more > 0 else named


# Deletes an archive: its own files, and the place where nothing else is left.


@dataclass(frozen=True, slots=True)
class Purged:
    """How many files of messages were deleted, and their bytes."""

    files: int
    bytes: int


def purge_archive(spark: Spark, location: str, *, owner: Mapping[str, str]) -> Purged:
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


def purge_place(place: ArchivePlace, *, owner: Mapping[str, str]) -> Purged:
    """As `purge_archive`, of any kind of place."""
    there = place.list_files()
    if not any(is_ours(path) for path in there):
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
        reach("p10.purge.file")
    for path in there:
        if path.startswith(f"{ARCHIVE_PARTS}/") and path not in SIGNS:
            place.delete(path)
    if all(is_ours(path) for path in there):
        place.delete_all()
    else:
        place.delete(ARCHIVE_MANIFEST)
        place.delete(ARCHIVE_PARTS)
    return Purged(len(data), sum(data.values()))
