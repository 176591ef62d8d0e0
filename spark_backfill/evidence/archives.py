"""Archived messages as evidence: what was moved off the log was neither lost nor expired."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession

from backlogctl.archive_manifest import ArchiveManifest
from backlogctl.spark_backfill.archive.place import normalize_location
from backlogctl.spark_backfill.archive.reading import read_archive
from backlogctl.spark_backfill.archive.verification import read_archive_manifest, verify_archive
from backlogctl.spark_backfill.evidence.survivors import as_survivors
from backlogctl.spark_backfill.request import ArchiveSource, Stretch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True, slots=True)
class OpenArchive:
    """An archive whose manifest is the recorded one, and whose files are there."""

    location: str
    manifest: ArchiveManifest


def open_archives(
    spark: SparkSession, archives: Sequence[ArchiveSource]
) -> tuple[OpenArchive, ...]:
    """Files are compared by their sizes, and not hashed: nothing is put back from them.

    Raises:
        StagingError: names the files that are missing or changed; nothing is planned then.
    """
    opened = []
    for source in archives:
        location = normalize_location(source.location)
        manifest = read_archive_manifest(spark, location, source.manifest_sha256)
        check = verify_archive(spark, location, manifest, rehash=False)
        check.require_good(f"archive {source.recovery_id} in {location}")
        opened.append(OpenArchive(location, manifest))
    return tuple(opened)


def read_survivors(archives: Sequence[OpenArchive], header: str | None) -> DataFrame | None:
    """As `as_survivors`; None for no archive."""
    if not archives:
        return None
    spark = SparkSession.active()
    frames = [read_archive(spark, item.location, item.manifest) for item in archives]
    whole = reduce(lambda a, b: a.unionAll(b), frames)
    return as_survivors(whole, header)


def find_starts(archives: Sequence[OpenArchive]) -> dict[int, int]:
    """The first archived offset of each partition."""
    starts: dict[int, int] = {}
    for item in archives:
        for part in item.manifest.ranges:
            starts[part.partition] = min(part.start, starts.get(part.partition, part.start))
    return starts


def list_stretches(archives: Sequence[OpenArchive]) -> tuple[Stretch, ...]:
    """Offsets that stand for no lost row: their messages are archived, or they never had one."""
    return tuple(
        Stretch(part.partition, part.start, part.end, part.end - part.start)
        for item in archives
        for part in item.manifest.ranges
        if part.end > part.start
    )
