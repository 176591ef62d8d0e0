"""Which bookmarks are looked for; pure."""

from __future__ import annotations

from backlogctl.spark_backfill.placing.ranking import choose_bookmarks
from backlogctl.values import Bookmark, OffsetRange


def mark(partition: int, offset: int, digest: str = "") -> Bookmark:
    return Bookmark(partition, offset, offset, digest or f"{partition}-{offset}")


def test_each_edge_has_the_bookmarks_around_it() -> None:
    marks = [mark(0, offset) for offset in range(0, 10_000, 10)]
    gaps = [OffsetRange(0, 500, 700), OffsetRange(0, 9_000, 9_500)]
    chosen = [item.offset for item in choose_bookmarks(marks, gaps, {0: 9_600})]
    assert {500, 490, 700, 710, 9_000, 9_500} <= set(chosen)
    assert len(chosen) <= 4 * 16
    assert max(chosen) < 9_600, "what is in the log is known by its message"


def test_what_is_noted_in_two_partitions_says_of_none_where_its_row_belongs() -> None:
    marks = [mark(0, 5, "same"), mark(0, 6), mark(1, 7, "same"), mark(2, 8)]
    gaps = [OffsetRange(number, 5, 9) for number in (0, 1)]
    chosen = choose_bookmarks(marks, gaps, {0: 100, 1: 100, 2: 100})
    assert [item.offset for item in chosen] == [6]
