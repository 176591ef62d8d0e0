"""Writes an archive: pieces of a topic into files, read back and hashed before they count."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from backlogctl.archive_manifest import ARCHIVE_MANIFEST, ArchiveManifest
from backlogctl.clock import Deadline
from backlogctl.errors import KafkaFailure, Refused, StagingError
from backlogctl.kafka.admin import list_offsets
from backlogctl.kafka.clients import Connection, make_admin
from backlogctl.spark_backfill.archive.batches import (
    ArchiveBatch,
    make_reader,
    open_writer,
    write_batch,
)
from backlogctl.spark_backfill.archive.job import (
    ArchiveJob,
    ArchiveProgress,
    Parts,
    find_rest,
    list_overlaps,
    split_ranges,
    sum_ranges,
)
from backlogctl.spark_backfill.archive.place import ArchivePlace, make_lagging
from backlogctl.spark_backfill.archive.verification import check_place, read_manifest_of
from backlogctl.spark_backfill.injection.job import check_target
from backlogctl.values import OffsetRange
from backlogctl_delivery.crashpoints import reach

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# Whether the topic still holds what is to be archived, and shows all of it.

_SECONDS = 60.0


def require_readable(connection: Connection, job: ArchiveJob) -> None:
    """The topic is the plan's, and each range ends where readers get to now.

    Raises:
        PlanStale: the topic was deleted, recreated, or has more partitions.
        Refused: a range ends above the last stable offset.
    """
    limit = Deadline(_SECONDS)
    check_target(connection, job.topic, job.topic_id, job.partitions, limit)
    ends: dict[int, int] = {}
    for item in job.ranges:
        ends[item.partition] = max(item.end, ends.get(item.partition, 0))
    stable = list_offsets(connection, job.topic, ends, "latest", "read_committed", deadline=limit)
    if hidden := {p: end for p, end in sorted(ends.items()) if stable[p] < end}:
        places = ", ".join(f"[{p}] to {end}, readable to {stable[p]}" for p, end in hidden.items())
        raise Refused(
            f"open transactions hide messages that are to be archived ({places})",
            subject=f"topic {job.topic}",
            hint="archive no further than the last stable offsets",
        )


def find_moved_log_starts(
    connection: Connection, job: ArchiveJob, rest: Sequence[OffsetRange]
) -> dict[int, tuple[int, int]]:
    """Partitions whose log starts above what is next to be read: (needed from, starts at).

    Raises:
        PlanStale: the topic was deleted or recreated.
    """
    limit = Deadline(_SECONDS)
    check_target(connection, job.topic, job.topic_id, job.partitions, limit)
    needed: dict[int, int] = {}
    for item in rest:
        needed[item.partition] = min(item.start, needed.get(item.partition, item.start))
    lows = list_offsets(connection, job.topic, needed, "earliest", deadline=limit)
    return {p: (at, lows[p]) for p, at in needed.items() if lows[p] > at}


__all__ = ["ArchiveJob", "ArchiveProgress", "write_archive"]

# Pieces of a batch for each core: with more of them fewer cores wait for the last one.
_PIECES_PER_CORE = 3


def write_archive(
    spark: SparkSession,
    job: ArchiveJob,
    *,
    look: Callable[[], None] = lambda: None,
    confirm: Callable[[], None] = lambda: None,
    on_progress: Callable[[ArchiveProgress], None] = lambda progress: None,
) -> ArchiveManifest:
    """Archives the ranges, or goes on where an earlier run was stopped; changes nothing in Kafka.

    Called again on a finished archive it verifies that, and returns its manifest.

    Args:
        look: called between batches, of some seconds each; may raise.
        confirm: called before what was written counts; raises where another run has taken over.
        on_progress: called after each batch.

    Raises:
        ArchiveLagging: retention was faster; what is archived stays.
        ArchiveFull: no space is left; what is archived stays.
        Refused: the place holds something else, or a range is not to be read to its end yet.
        PlanStale: the topic is another one.
        StagingError: what was read back is not what was written, or the place cannot be used.
        KafkaFailure, ClusterUnreachable.
    """
    place = ArchivePlace(spark, job.location)
    parts = Parts(place, job)
    if place.exists(ARCHIVE_MANIFEST):
        return _check_finished(place)
    admin = make_admin(job.properties)
    require_readable(admin, job)
    parts.begin()
    rest = split_ranges(find_rest(job.left, parts.pieces), job.bytes_per_message, job.file_bytes)
    writer = open_writer(spark)
    reader = make_reader(job, rest)
    width = _PIECES_PER_CORE * spark.sparkContext.defaultParallelism
    pace = _Pace(job, parts)
    for start in range(0, len(rest), width):
        look()
        batch = rest[start : start + width]
        if moved := find_moved_log_starts(admin, job, rest[start:]):
            raise make_lagging(job.topic, moved)
        try:
            done = write_batch(writer, place, parts, job, batch, reader)
            reach("p5.4.batch.written")
            confirm()
            parts.add(done.pieces)
            reach("p5.4.batch.noted")
        except BaseException as error:
            _clear(parts, error)
            if isinstance(error, KafkaFailure) and (moved := _look_moved(job, rest[start:])):
                raise make_lagging(job.topic, moved) from None
            raise
        on_progress(pace.tell(done))
    look()
    confirm()
    return _finish(place, parts, job)


class _Pace:
    """How quick it is in this run."""

    def __init__(self, job: ArchiveJob, parts: Parts) -> None:
        self._parts = parts
        self._total = sum(item.count for item in job.left)
        self._began = time.monotonic()
        self._before = self._sum()
        self._writing = self._checking = 0.0

    def tell(self, last: ArchiveBatch) -> ArchiveProgress:
        self._writing += last.write_seconds
        self._checking += last.check_seconds
        messages, size, offsets = self._sum()
        seconds = time.monotonic() - self._began
        fresh, passed = messages - self._before[0], offsets - self._before[2]
        left = self._total - offsets
        eta = seconds * left / passed if passed else None
        rate = fresh / seconds if seconds else None
        return ArchiveProgress(
            messages, size, offsets, self._total, rate, eta, self._writing, self._checking
        )

    def _sum(self) -> tuple[int, int, int]:
        pieces = self._parts.pieces
        return (
            sum(piece.count for piece in pieces),
            sum(piece.file.bytes for piece in pieces if piece.file is not None),
            sum(piece.end - piece.start for piece in pieces),
        )


def _clear(parts: Parts, error: BaseException) -> None:
    try:
        parts.clear()
    except StagingError:  # the next run does it
        error.add_note("what it had written so far could not be deleted")


def _look_moved(job: ArchiveJob, rest: Sequence[OffsetRange]) -> dict[int, tuple[int, int]]:
    try:
        return find_moved_log_starts(make_admin(job.properties), job, rest)
    except KafkaFailure:
        return {}  # the failure itself says more


def _finish(place: ArchivePlace, parts: Parts, job: ArchiveJob) -> ArchiveManifest:
    """All of it is there once: then it is written down."""
    rest, twice = find_rest(job.left, parts.pieces), list_overlaps(parts.pieces)
    files = [piece.file for piece in parts.pieces if piece.file is not None]
    there = place.list_files()
    gone = [file.path for file in files if there.get(file.path) != file.bytes]
    if rest or twice or gone:
        what = f"{gone[0]} is missing or changed" if gone else f"{rest or twice} not exactly once"
        raise StagingError(
            f"the archive is not whole: {what}",
            subject=place.location,
            hint="a cancel throws it away and starts the consumers again, then plan again: nothing "
            "was deleted from the topic",
        )
    made_by, made_at = parts.read_made()
    manifest = ArchiveManifest(
        recovery_id=job.recovery_id,
        stream=job.stream,
        cluster=job.cluster,
        topic=job.topic,
        topic_id=job.topic_id,
        group=job.group,
        partitions=job.partitions,
        plan_hash=job.plan_hash,
        made_by=made_by,
        made_at=made_at,
        ranges=sum_ranges(job.left, parts.pieces),
        files=tuple(sorted(files, key=lambda file: (file.partition, file.first_offset))),
    )
    reach("p5.4.manifest.before")
    # Another run has come to the end while this one slept: what is on record stays as it is.
    if place.exists(ARCHIVE_MANIFEST):
        return _check_finished(place)
    place.write_text(ARCHIVE_MANIFEST, json.dumps(manifest.to_json(), indent=1))
    return manifest


def _check_finished(place: ArchivePlace) -> ArchiveManifest:
    manifest = read_manifest_of(place)
    check_place(place, manifest).require_good(place.location)
    return manifest
