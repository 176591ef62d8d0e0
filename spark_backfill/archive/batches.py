"""One batch: pieces written side by side, read back, compared, and their files hashed.

What Spark read from the topic is counted and fingerprinted in the very job that writes it; what the
files hold is counted and fingerprinted when they are read back.
"""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame, Observation, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812

from backlogctl.archive_manifest import ArchiveFile
from backlogctl.clock import Deadline
from backlogctl.errors import KafkaFailure, StagingError
from backlogctl.formats import format_plural
from backlogctl.kafka.peek import peek_at
from backlogctl.spark_backfill.archive.job import ArchiveJob, Parts, Piece
from backlogctl.spark_backfill.archive.place import ArchivePlace, filling
from backlogctl.spark_backfill.archive.reading import (
    PARTITION,
    open_files,
    summarize,
)
from backlogctl.spark_backfill.failures import list_secrets, translating
from backlogctl.spark_backfill.spark.topic import TopicReader
from backlogctl.values import OffsetRange

if TYPE_CHECKING:
    from pyspark import SparkContext


# What makes it quick to read a range of a topic, in one Spark task.

_TUNING: Mapping[str, str] = {
    # The default, 1 MB, costs the client more than the messages themselves.
    "max.partition.fetch.bytes": str(4 * 1024 * 1024),
    "fetch.max.bytes": str(16 * 1024 * 1024),
    "fetch.min.bytes": str(256 * 1024),
    "fetch.max.wait.ms": "100",
    "receive.buffer.bytes": str(1024 * 1024),
}
# What one poll gives is in memory at once, uncompressed. Few messages a poll cost the client more
# than the messages themselves; many large ones, which are small in their batch, fill the heap.
_POLL_BYTES = 8 * 1024 * 1024
_FEWEST, _MOST = 10, 5_000
_PEEKED = 20
_PEEK_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Reader:
    """How a run reads. `group` is the client's group id: it joins none and commits nothing; by it
    Spark knows its consumers again, so that the next piece of a partition is read by the same.
    `records` is how many messages a poll gives at most."""

    group: str
    records: int


def make_reader(job: ArchiveJob, ranges: Sequence[OffsetRange]) -> Reader:
    """For one run; a consumer that Spark kept of an earlier one may be another cluster's."""
    starts = {item.partition: item.start for item in reversed(ranges)}
    found = peek_at(job.properties, job.topic, starts, _PEEKED, Deadline(_PEEK_SECONDS))
    largest = max((message.size for seen in found.values() for message in seen), default=0)
    records = min(_MOST, max(_FEWEST, _POLL_BYTES // max(1, largest)))
    return Reader(f"backlogctl-archive-{job.recovery_id}-{uuid.uuid4().hex[:8]}", records)


# What is really in files that were written: read back, and summed up by file.

_FOLDER = re.compile(r"partition=(\d+)/([^/]+)")
_ROW = "_metadata.row_index"
_NAME = "_metadata.file_name"


@dataclass(frozen=True, slots=True)
class FoundFile:
    """One file. `is_ascending`: each offset is above the one before it."""

    path: str
    partition: int
    count: int
    first: int
    last: int
    fingerprint: int
    is_ascending: bool


def read_back(spark: SparkSession, place: ArchivePlace, paths: Sequence[str]) -> list[FoundFile]:
    """Sums of each file; one without messages is not among them."""
    if not paths:
        return []
    frame = open_files(spark, place, paths)
    # Where offset and row number differ by the same everywhere there is no hole, and they ascend.
    shift = F.col("offset") - F.col(_ROW)
    sums = [*summarize(), F.min(shift).alias("low"), F.max(shift).alias("high")]
    rows = {
        row["name"]: row for row in frame.groupBy(F.col(_NAME).alias("name")).agg(*sums).collect()
    }
    folders = {found[2]: found for path in paths if (found := _FOLDER.fullmatch(path))}
    uneven = [folders[name][0] for name, row in rows.items() if row["low"] != row["high"]]
    disordered = _find_disordered(spark, place, uneven)
    return [
        FoundFile(
            folders[name][0],
            int(folders[name][1]),
            row["count"],
            row["first"],
            row["last"],
            row["fingerprint"],
            name not in disordered,
        )
        for name, row in rows.items()
    ]


def _find_disordered(spark: SparkSession, place: ArchivePlace, paths: Sequence[str]) -> set[str]:
    """Of files with holes, those with an offset that is not above the one before it."""
    if not paths:
        return set()
    rows = open_files(spark, place, paths).select(
        F.col(_NAME).alias("name"), F.col(_ROW).alias("row"), "offset"
    )
    before = F.lag("offset").over(Window.partitionBy("name").orderBy("row"))
    bad = rows.withColumn("before", before).where(F.col("offset") <= F.col("before"))
    return {row["name"] for row in bad.select("name").distinct().collect()}


_SESSION: Mapping[str, str] = {
    # A writer a partition, as each task has one: so Spark need not sort the messages.
    "spark.sql.maxConcurrentOutputFileWriters": "8",
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
class ArchiveBatch:
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
) -> ArchiveBatch:
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
    return ArchiveBatch(tuple(done), written - began, time.monotonic() - written)


def plan_write(
    spark: SparkSession, job: ArchiveJob, pieces: Sequence[OffsetRange], reader: Reader
) -> tuple[DataFrame, list[Observation]]:
    """All pieces as one frame, a task each, and what will be seen of each."""
    seen = [Observation(f"piece-{number}") for number in range(len(pieces))]
    own = {"group.id": reader.group, "max.poll.records": str(reader.records)}
    topic = TopicReader(spark, job.properties, job.topic, {**_TUNING, **own})
    frames = [
        topic.read([piece]).observe(each, *summarize())
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
