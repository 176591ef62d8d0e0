"""The order of what comes from a table and from archives: per key as it was.

Where a partition lost rows before an archived range and after it, they stand before and behind its
messages: segment 0 before the first range, 1 in it, 2 behind it, and so on. Rows have even numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812

from backlog.archive import ArchivedRange
from backlog.clock import format_time
from backlog.values import OffsetRange
from spark_backfill.spark.frames import make_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_FIRST, _LAST = "", "~"


@dataclass(frozen=True, slots=True)
class RowSegment:
    """Rows of a partition with times `[begin, end)`, in the normal form."""

    partition: int
    begin: str
    end: str
    segment: int


@dataclass(frozen=True, slots=True)
class Segments:
    """Numbers of the archived ranges, and of the rows around them."""

    archived: tuple[tuple[OffsetRange, int], ...] = ()
    rows: tuple[RowSegment, ...] = ()


def number_segments(archived: Iterable[ArchivedRange], lost: Sequence[OffsetRange]) -> Segments:
    """Of each partition by itself: messages of one key are in one partition.

    Args:
        archived: the ranges that messages are taken from.
        lost: the gaps that rows are rebuilt for.
    """
    by_partition: dict[int, list[ArchivedRange]] = {}
    for item in archived:
        by_partition.setdefault(item.partition, []).append(item)
    numbers: list[tuple[OffsetRange, int]] = []
    rows: list[RowSegment] = []
    for partition, found in sorted(by_partition.items()):
        ranges = sorted(found, key=lambda item: item.start)
        for place, item in enumerate(ranges):
            numbers.append((OffsetRange(partition, item.start, item.end), 2 * place + 1))
        starts = sorted(gap.start for gap in lost if gap.partition == partition)
        places = sorted({sum(item.start < start for item in ranges) for start in starts})
        rows += _cut_times(partition, ranges, places)
    return Segments(tuple(numbers), tuple(rows))


def _cut_times(
    partition: int, ranges: Sequence[ArchivedRange], places: Sequence[int]
) -> Iterable[RowSegment]:
    """Rows have no offset: between two places where some were lost, the time decides that is in
    the middle of what was archived between them."""
    begin = _FIRST
    for number, place in enumerate(places):
        end = _LAST
        if number + 1 < len(places):
            end = max(begin, _find_middle(ranges[place : places[number + 1]]))
        yield RowSegment(partition, begin, end, 2 * place)
        begin = end


def _find_middle(between: Sequence[ArchivedRange]) -> str:
    first = min((item.first_time for item in between if item.first_time), default=None)
    last = max((item.last_time for item in between if item.last_time), default=None)
    if first is None or last is None:
        return _FIRST  # no message lies between them: their order is the rows' own
    return format_time(first + (last - first) / 2)


def mark_archived(frame: DataFrame, segments: Segments) -> DataFrame:
    """Adds `segment` to messages by their `source_partition` and `source_offset`."""
    if len({number for _, number in segments.archived}) < 2:
        return frame.withColumn("segment", F.lit(1))
    known = make_rows(
        frame.sparkSession,
        [(item.partition, item.start, item.end, number) for item, number in segments.archived],
        "s_home int, s_first long, s_end long, s_number int",
    )
    inside = (
        (F.col("source_partition") == F.col("s_home"))
        & (F.col("source_offset") >= F.col("s_first"))
        & (F.col("source_offset") < F.col("s_end"))
    )
    joined = frame.drop("segment").join(F.broadcast(known), inside, "left")
    return joined.withColumn("segment", F.coalesce("s_number", F.lit(1))).drop(
        "s_home", "s_first", "s_end", "s_number"
    )


def mark_rows(rows: DataFrame, segments: Segments) -> DataFrame:
    """Adds `segment` to rows by `lost_from`, the partition that lost them, and `time`."""
    known = make_rows(
        rows.sparkSession,
        [(item.partition, item.begin, item.end, item.segment) for item in segments.rows],
        "s_home int, s_begin string, s_end string, s_number int",
    )
    time = F.coalesce("time", F.lit(_FIRST))
    inside = (
        (F.col("lost_from") == F.col("s_home"))
        & (time >= F.col("s_begin"))
        & (time < F.col("s_end"))
    )
    joined = rows.join(F.broadcast(known), inside, "left")
    return joined.withColumn("segment", F.coalesce("s_number", F.lit(0))).drop(
        "s_home", "s_begin", "s_end", "s_number"
    )
