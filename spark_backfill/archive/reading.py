"""An archive's messages as a data frame."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812

from backlogctl.archive_manifest import ArchiveManifest
from backlogctl.spark_backfill.archive.place import ArchivePlace
from backlogctl.spark_backfill.spark.frames import make_empty, mark_within
from backlogctl.spark_backfill.spark.topic import MESSAGE_SCHEMA, known_time
from backlogctl.values import OffsetRange

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession


# How an archived message is written: its columns, and the fingerprint that both sides compare.

# A folder for each, so that the files themselves lack this column.
PARTITION = "partition"
ARCHIVE_SCHEMA = MESSAGE_SCHEMA
COLUMNS = (PARTITION, "offset", "timestamp", "timestamp_type", "key", "value", "headers")


def summarize() -> list[Column]:
    """What is compared of the messages of one file: written, and read back.

    `fingerprint` does not depend on the order: that is looked at when they are read back.
    """
    time = known_time()
    return [
        F.count(F.lit(1)).alias("count"),
        F.min("offset").alias("first"),
        F.max("offset").alias("last"),
        F.min(time).alias("first_time"),
        F.max(time).alias("last_time"),
        F.bit_xor(_fingerprint()).alias("fingerprint"),
    ]


def _fingerprint() -> Column:
    # The hash passes over NULL: so it is said which are, and how many headers there are.
    return F.xxhash64(
        "offset",
        "timestamp",
        "timestamp_type",
        F.isnull("key"),
        "key",
        F.isnull("value"),
        "value",
        F.size("headers"),
        "headers",
    )


# More as one expression would exhaust the stack.
_FEW = 50
_READING: Mapping[str, str] = {
    # A place's name may hold what would be a pattern.
    "__globPaths__": "false",
    # Damage is told, whatever the user's settings say.
    "ignoreCorruptFiles": "false",
    "ignoreMissingFiles": "false",
}


def read_archive(
    spark: SparkSession,
    location: str,
    manifest: ArchiveManifest,
    ranges: Sequence[OffsetRange] | None = None,
) -> DataFrame:
    """Messages in the columns of `ARCHIVE_SCHEMA`; in no order, unless one is asked for.

    Only files that the manifest names are opened, and of these only what can hold the ranges. The
    files are not hashed: see `verify_archive`.

    Args:
        ranges: which offsets; None for all.
    """
    place = ArchivePlace(spark, location)
    wanted = [
        file.path
        for file in manifest.files
        if ranges is None
        or any(
            item.partition == file.partition
            and item.start <= file.last_offset
            and item.end > file.first_offset
            for item in ranges
        )
    ]
    frame = read_files(spark, place, wanted)
    if ranges is None or not wanted:
        return frame
    if len(ranges) > _FEW:
        marked = mark_within(frame, ranges, "_wanted", partition="partition", offset="offset")
        return marked.where("_wanted").select(*COLUMNS)
    # Parquet's statistics pass over what it cannot hold.
    inside = [
        (F.col("partition") == r.partition)
        & (F.col("offset") >= r.start)
        & (F.col("offset") < r.end)
        for r in ranges
    ]
    return frame.where(reduce(lambda a, b: a | b, inside))


def read_files(spark: SparkSession, place: ArchivePlace, paths: Sequence[str]) -> DataFrame:
    """Of these files alone."""
    if not paths:
        return make_empty(spark, ARCHIVE_SCHEMA)
    return open_files(spark, place, paths).select(*COLUMNS)


def open_files(spark: SparkSession, place: ArchivePlace, paths: Sequence[str]) -> DataFrame:
    """With Spark's own hidden columns; at least one file."""
    reader = spark.read.schema(ARCHIVE_SCHEMA).options(basePath=place.location, **_READING)
    return reader.parquet(*(place.name(path) for path in paths))
