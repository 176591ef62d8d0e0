"""What is really in files that were written: read back, and summed up by file."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812

from spark_backfill.archive.filesystem import ArchivePlace
from spark_backfill.archive.layout import summarize
from spark_backfill.archive.reading import open_files

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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
