"""Rows stand before or behind the archived messages of their partition; pure."""

from __future__ import annotations

from datetime import timedelta

from backlog.archive import ArchivedRange
from backlog.clock import format_time
from backlog.values import OffsetRange
from spark_backfill.archived.segments import RowSegment, number_segments
from tests.backlog.ledger.makers import NOON

HOUR = timedelta(hours=1)


def make_range(start: int, end: int, hour: int, partition: int = 0) -> ArchivedRange:
    begin = NOON + hour * HOUR
    return ArchivedRange(partition, start, end, end - start, begin, begin + HOUR)


def test_rows_lost_before_and_behind() -> None:
    ranges = [make_range(100, 200, 1), make_range(300, 400, 3)]
    lost = [OffsetRange(0, at, at + 10) for at in (50, 250, 450)]
    found = number_segments(ranges, lost)
    assert found.archived == ((OffsetRange(0, 100, 200), 1), (OffsetRange(0, 300, 400), 3))
    first, second = (format_time(NOON + hour * HOUR) for hour in (1.5, 3.5))
    assert found.rows == (
        RowSegment(0, "", first, 0),
        RowSegment(0, first, second, 2),
        RowSegment(0, second, "~", 4),
    )


def test_rows_lost_on_one_side_need_no_times() -> None:
    ranges = [make_range(100, 200, 1), make_range(10, 20, 1, partition=1)]
    lost = [OffsetRange(0, 200, 210), OffsetRange(1, 0, 10), OffsetRange(2, 0, 10)]
    found = number_segments(ranges, lost)
    assert found.rows == (RowSegment(0, "", "~", 2), RowSegment(1, "", "~", 0))


def test_an_archive_without_messages_parts_nothing() -> None:
    empty = ArchivedRange(0, 100, 102, 0, None, None)
    found = number_segments([empty], [OffsetRange(0, 50, 60), OffsetRange(0, 200, 210)])
    assert found.rows == (RowSegment(0, "", "", 0), RowSegment(0, "", "~", 2))
