"""The archives of a plan, opened: their manifests are the recorded ones, their files are there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from backlog.archive import ArchivedRange, ArchiveManifest
from backlog.values import OffsetRange
from spark_backfill.archive.filesystem import normalize_location
from spark_backfill.archive.verification import read_manifest, verify_archive
from spark_backfill.request import ArchiveSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class OpenArchive:
    """An archive that was verified; `taken` are the ranges that are put back from it."""

    location: str
    manifest: ArchiveManifest
    taken: tuple[OffsetRange, ...]

    def find_range(self, item: OffsetRange) -> ArchivedRange | None:
        """The range of the archive that a taken one lies in."""
        return next(
            (
                known
                for known in self.manifest.ranges
                if known.partition == item.partition
                and known.start <= item.start
                and item.end <= known.end
            ),
            None,
        )


def open_archives(
    spark: SparkSession, archives: Sequence[ArchiveSource]
) -> tuple[OpenArchive, ...]:
    """Files of those from which messages are put back are hashed; of the others only the sizes are
    compared.

    Raises:
        StagingError: names the files that are missing or changed; nothing is planned then.
    """
    opened = []
    for source in archives:
        location = normalize_location(source.location)
        manifest = read_manifest(spark, location, source.manifest_sha256)
        check = verify_archive(spark, location, manifest, rehash=bool(source.taken))
        check.require_good(f"archive {source.recovery_id} in {location}")
        opened.append(OpenArchive(location, manifest, source.taken))
    return tuple(opened)


def describe_moved(archives: Sequence[OpenArchive], topic: str, partitions: int) -> list[str]:
    """Archives whose messages cannot go to the partitions that they were in."""
    return [
        f"topic {item.manifest.topic} had {item.manifest.partitions} partitions when archive "
        f"{item.manifest.recovery_id} was made, and topic {topic} has {partitions}: its messages "
        "go where their keys belong now, those without a key by the number of their partition"
        for item in archives
        if item.taken and item.manifest.partitions != partitions
    ]
