"""Frames that Spark makes by itself: real Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

from backlogctl.spark_backfill.spark.frames import make_rows, mark_within
from backlogctl.values import OffsetRange

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_thousands_of_ranges_mark_each_row_once(spark: SparkSession) -> None:
    """Ranges may overlap; an offset or partition that is not known lies in none."""
    ranges = [OffsetRange(p, start, start + 5) for p in range(300) for start in range(0, 100, 10)]
    ranges += [OffsetRange(7, 0, 3), OffsetRange(7, 2, 12)]
    rows = [(p, at) for p in (0, 7, 299, 300, None) for at in (0, 4, 5, 11, None)]
    frame = make_rows(spark, rows, "home int, at long")
    marked = mark_within(frame, ranges, "inside", partition="home", offset="at").collect()
    inside = {(row["home"], row["at"]) for row in marked if row["inside"]}
    assert len(marked) == len(rows)
    assert inside == {
        *((p, at) for p in (0, 299) for at in (0, 4, 11)),
        *((7, at) for at in (0, 4, 5, 11)),
    }
    none = mark_within(frame, [], "inside", partition="home", offset="at")
    assert none.where("inside").count() == 0
