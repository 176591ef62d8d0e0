"""One batch: pieces written side by side, read back, compared, and their files hashed.

What Spark read from the topic is counted and fingerprinted in the very job that writes it; what the
files hold is counted and fingerprinted when they are read back.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame, Observation, SparkSession

from backlog.archive import ArchiveFile
from backlog.errors import KafkaFailure, StagingError
from backlog.numbers import format_plural
from backlog.values import OffsetRange
from spark_backfill.archive.failures import filling
from spark_backfill.archive.filesystem import ArchivePlace
from spark_backfill.archive.job import ArchiveJob
from spark_backfill.archive.layout import PARTITION, summarize
from spark_backfill.archive.parts import Parts
from spark_backfill.archive.pieces import Piece
from spark_backfill.archive.read_back import FoundFile, read_back
from spark_backfill.archive.topic_reading import Reader, read_range
from spark_backfill.failures import list_secrets, translating

if TYPE_CHECKING:
    from pyspark import SparkContext

_SESSION: Mapping[str, str] = {
    # A writer a partition, as each task has one: so Spark need not sort the messages.
    "spark.sql.maxConcurrentOutputFileWriters": "8",
    # Spark's newer reader of Kafka gives rows as they are written; the other one converts twice.
    "spark.sql.sources.useV1SourceList": "avro,csv,json,orc,parquet,text",
    # One piece is one file, whatever the user's settings say.
    "spark.sql.files.maxRecordsPerFile": "0",
}
_WRITING: Mapping[str, str] = {
    "compression": "zstd",
    "parquet.compression.codec.zstd.level": "1",
    # Small enough for several writers in a small heap, and for a range to be found quickly.
    "parquet.block.size": str(32 * 1024 * 1024),
    # Of what is never the same a dictionary is given up after it was made.
    "parquet.enable.dictionary#offset": "false",
    "parquet.enable.dictionary#value": "false",
    # A task's file is moved into place when the task ends. That some are there when a task fails
    # does no harm: only what was read back counts.
    "mapreduce.fileoutputcommitter.algorithm.version": "2",
    "mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
}


@dataclass(frozen=True, slots=True)
class Batch:
    """What came of each piece, and the seconds that writing and checking it took."""

    pieces: tuple[Piece, ...]
    write_seconds: float
    check_seconds: float


def open_writer(spark: SparkSession) -> SparkSession:
    """A session of the same Spark with our settings, which are nobody else's."""
    session = spark.newSession()
    for name, value in _SESSION.items():
        session.conf.set(name, value)
    return session


def write_batch(
    spark: SparkSession,
    place: ArchivePlace,
    parts: Parts,
    job: ArchiveJob,
    pieces: Sequence[OffsetRange],
    reader: Reader,
) -> Batch:
    """Writes and checks one batch.

    Args:
        spark: of `open_writer`.

    Raises:
        ArchiveFull: no space is left.
        StagingError: what was read back is not what was read from the topic.
        KafkaFailure: the topic could not be read.
    """
    began = time.monotonic()
    expected = _write(spark, place, job, pieces, reader)
    written = time.monotonic()
    sizes = parts.list_new()
    with (
        _cancelling(spark.sparkContext, job),
        translating(
            "read the archive back", subject=place.location, hint="run it again", kind=StagingError
        ),
    ):
        found = read_back(spark, place, sorted(sizes))
    hashes = place.hash_files(sorted(sizes))
    place.sync(sorted(sizes))
    done = []
    for piece, told in zip(pieces, expected, strict=True):
        own = [f for f in found if f.partition == piece.partition and _is_within(f, piece)]
        _compare(place, piece, told, own)
        file = None
        if own:
            file = ArchiveFile(
                own[0].path,
                piece.partition,
                own[0].count,
                own[0].first,
                own[0].last,
                sizes[own[0].path],
                hashes[own[0].path],
            )
        done.append(
            Piece(
                piece.partition,
                piece.start,
                piece.end,
                int(told["count"]),
                told["first_time"],
                told["last_time"],
                file,
            )
        )
    named = {piece.file.path for piece in done if piece.file is not None}
    if strays := [file.path for file in found if file.path not in named]:
        raise _make_mismatch(place, f"{strays[0]} holds offsets that were not asked for")
    return Batch(tuple(done), written - began, time.monotonic() - written)


def plan_write(
    spark: SparkSession, job: ArchiveJob, pieces: Sequence[OffsetRange], reader: Reader
) -> tuple[DataFrame, list[Observation]]:
    """All pieces as one frame, a task each, and what will be seen of each."""
    seen = [Observation(f"piece-{number}") for number in range(len(pieces))]
    frames = [
        read_range(spark, job.topic, piece, job.properties, reader).observe(each, *summarize())
        for piece, each in zip(pieces, seen, strict=True)
    ]
    return reduce(DataFrame.unionAll, frames), seen


def _write(
    spark: SparkSession,
    place: ArchivePlace,
    job: ArchiveJob,
    pieces: Sequence[OffsetRange],
    reader: Reader,
) -> list[dict[str, Any]]:
    with (
        translating(
            "archive the messages",
            subject=f"topic {job.topic}",
            hint="run it again: it goes on from what is archived",
            kind=KafkaFailure,
            secrets=list_secrets(job.properties),
        ),
        filling(place.location),
        _cancelling(spark.sparkContext, job),
    ):
        frame, seen = plan_write(spark, job, pieces, reader)
        options = {**_WRITING, **place.settings}
        frame.write.mode("append").partitionBy(PARTITION).options(**options).parquet(place.location)
        return [each.get for each in seen]


def _is_within(file: FoundFile, piece: OffsetRange) -> bool:
    return piece.start <= file.first and file.last < piece.end


def _compare(
    place: ArchivePlace, piece: OffsetRange, told: Mapping[str, Any], own: Sequence[FoundFile]
) -> None:
    where = f"[{piece.partition}] {piece.start} to {piece.end}"
    count = int(told["count"])
    if len(own) != (1 if count else 0):
        raise _make_mismatch(
            place, f"{where}: {format_plural(count, 'message')} in {len(own)} files instead of one"
        )
    for file in own:
        if (file.count, file.first, file.last) != (count, told["first"], told["last"]):
            raise _make_mismatch(
                place,
                f"{where}: {format_plural(count, 'message')} were read from the topic, the file "
                f"holds {file.count:,}, {file.first} to {file.last}",
            )
        if file.fingerprint != told["fingerprint"]:
            raise _make_mismatch(place, f"{where}: the file's messages are others")
        if not file.is_ascending:
            raise _make_mismatch(place, f"{where}: the file's offsets do not ascend")


def _make_mismatch(place: ArchivePlace, what: str) -> StagingError:
    return StagingError(
        f"what was read back is not what was archived: {what}; these files do not count",
        subject=place.location,
        hint="run it again: the topic still has them",
        retryable=True,
    )


@contextmanager
def _cancelling(context: SparkContext, job: ArchiveJob) -> Iterator[None]:
    """An interrupt ends what Spark does, too."""
    name = f"backlogctl-archive-{job.recovery_id}"
    context.setJobGroup(name, "archive", interruptOnCancel=False)
    try:
        yield
    except BaseException:
        context.cancelJobGroup(name)
        raise
    finally:
        context.setLocalProperty("spark.jobGroup.id", None)  # type: ignore[arg-type]
        context.setLocalProperty("spark.job.description", None)  # type: ignore[arg-type]
