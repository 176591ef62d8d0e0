"""Whether an archive is still what its manifest says: each file there, and its hash the same."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from backlog.archive import ARCHIVE_MANIFEST, ArchiveManifest
from backlog.errors import StagingError
from backlog.numbers import format_plural
from spark_backfill.archive.filesystem import ArchivePlace
from spark_backfill.archive.parts import is_data, is_ours
from spark_backfill.archive.place import Place

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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

    def require_good(self, subject: str) -> None:
        """Raises StagingError, naming files, unless it is good."""
        if self.is_good:
            return
        kinds = ("missing", "corrupt", "unexpected")
        parts = [f"{kind}: {_name(getattr(self, kind))}" for kind in kinds if getattr(self, kind)]
        raise StagingError(
            f"the archive is not what was written; {'; '.join(parts)}; nothing was sent",
            subject=subject,
            hint="bring these files back from a copy, and remove what is none of the archive's",
        )


def verify_archive(
    spark: SparkSession, location: str, manifest: ArchiveManifest, *, rehash: bool = True
) -> ArchiveCheck:
    """Looks at every file.

    Args:
        rehash: read them whole; else only their sizes are compared.

    Raises:
        StagingError: the place could not be read.
    """
    return check_place(ArchivePlace(spark, location), manifest, rehash=rehash)


def check_place(place: Place, manifest: ArchiveManifest, *, rehash: bool = True) -> ArchiveCheck:
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


def read_manifest(
    spark: SparkSession, location: str, expected_sha256: str | None = None
) -> ArchiveManifest:
    """Of a finished archive.

    Raises:
        StagingError: it is missing, of a later version, or not the one that was expected.
    """
    return read_manifest_of(ArchivePlace(spark, location), expected_sha256)


def read_manifest_of(place: Place, expected_sha256: str | None = None) -> ArchiveManifest:
    """As `read_manifest`, of any kind of place."""
    if not place.exists(ARCHIVE_MANIFEST):
        raise StagingError(
            "no finished archive is there: it has no manifest",
            subject=place.location,
            hint="was it purged, or is the offload that writes it not at its end?",
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
