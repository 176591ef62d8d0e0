"""Finds the places of a gap's edges; pure.

An offset whose row is known is an *anchor*: a bookmark, or the start of the log. Between an edge
and the nearest anchor, offsets are counted as rows. The count is off by rows that were never sent,
messages whose rows are gone, and offsets that are no messages, so each edge says by how much.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

from backlog.values import OffsetRange
from spark_backfill.placing.values import (
    Anchor,
    Edge,
    EdgeEvidence,
    OrderProof,
    PartitionRows,
    PlacedGap,
    RowRange,
)
from spark_backfill.request import count_offsets

# Below so many survivors with a row, their order proves nothing about the lost ones.
MIN_COMPARED = 20
# An order is none where rows stand so far from their messages, as a share of all of a partition.
MAX_DISORDER = 0.1
# None seen among n means less than 3/n with 95 % confidence (rule of three, Hanley and
# Lippman-Hand, JAMA 1983).
RULE_OF_THREE = 3


def is_ordered(order: OrderProof) -> bool:
    """Whether the rows' order is the log's, so that offsets can be counted as rows."""
    if order.compared < MIN_COMPARED:
        return False
    return order.mean <= 1.0 or order.disorder <= MAX_DISORDER


def place_gaps(
    part: PartitionRows,
    order: OrderProof,
    gaps: Iterable[OffsetRange],
    *,
    countable: bool,
    bounded: Collection[OffsetRange] = (),
) -> tuple[PlacedGap, ...] | None:
    """Both edges of each gap of a partition; None where an edge cannot be placed.

    Args:
        countable: whether every message of the partition has a row that is known to be of it.
            Over rows that have no place nothing is counted.
        bounded: those of the gaps that the group may have read in part.
    """
    part = replace(part, bookmarks=_drop_displaced(part, order))
    countable = countable and part.unordered is None
    placed = []
    for gap, is_bounded in _join_touching(gaps, bounded):
        start = find_edge(part, order, gap.start, countable=countable)
        end = find_edge(part, order, gap.end, countable=countable)
        if start is None or end is None:
            return None
        placed.append(PlacedGap(start, end, is_bounded))
    return tuple(placed)


def _join_touching(
    gaps: Iterable[OffsetRange], bounded: Collection[OffsetRange]
) -> list[tuple[OffsetRange, bool]]:
    """Gaps that meet, as one: all between them was lost, so their common edge is none."""
    joined: list[tuple[OffsetRange, bool]] = []
    for gap in sorted(gaps, key=lambda item: item.start):
        item = gap, gap in bounded
        if joined and joined[-1][0].end >= gap.start and joined[-1][1] == item[1]:
            last = joined.pop()[0]
            item = OffsetRange(gap.partition, last.start, max(last.end, gap.end)), item[1]
        joined.append(item)
    return joined


def _drop_displaced(part: PartitionRows, order: OrderProof) -> tuple[Anchor, ...]:
    """The bookmarks without those between two anchors that agree with each other and not with it:
    where rows stand out of order, its own row is one of them."""
    marks = sorted(part.bookmarks, key=lambda anchor: anchor.offset)
    if not order.displacement:
        return tuple(marks)
    end = Anchor(part.log_start, part.log_start, part.before_log)
    kept: list[Anchor] = []
    for mark, after in pairwise([*marks, end]):
        before = kept[-1] if kept else None
        if before is None or _fits(before, mark, part) or not _fits(before, after, part):
            kept.append(mark)
    return tuple(kept)


def _fits(first: Anchor, second: Anchor, part: PartitionRows) -> bool:
    """Whether as many rows as offsets lie between two anchors."""
    between = count_offsets(first.offset, second.offset, part.ours)
    return second.place - first.place == between


def find_edge(
    part: PartitionRows, order: OrderProof, offset: int, *, countable: bool = True
) -> Edge | None:
    """The place of an offset, by the best evidence; the next one checks it (P2.10)."""
    if offset >= part.log_start:
        return Edge(offset, part.before_log, EdgeEvidence.LOG)
    counted = _count(part, order, offset) if countable else None
    known = next((a for a in part.bookmarks if a.first <= offset <= a.offset), None)
    if known is None and counted is not None and offset == 0:
        return _begin_at_first(part, counted)
    if known is None:
        return counted
    early, late = order.early, order.late
    if counted is None:
        return Edge(offset, known.place, EdgeEvidence.BOOKMARK, early, late)
    differs = counted.place - known.place
    if 0 < abs(differs) <= order.displacement and not order.holes:
        # The bookmark's own row is one of those that stand elsewhere than their message.
        return Edge(
            offset,
            counted.place,
            EdgeEvidence.COUNTED,
            max(early, differs),
            max(late, -differs),
            -differs,
            EdgeEvidence.BOOKMARK,
        )
    # Counting says that fewer rows were lost: those in between are told.
    open_rows = late if order.holes else max(late, differs)
    return Edge(
        offset, known.place, EdgeEvidence.BOOKMARK, early, open_rows, differs, EdgeEvidence.COUNTED
    )


def _begin_at_first(part: PartitionRows, counted: Edge) -> Edge:
    """The edge before a topic's first message: no row lies before it where there are no more rows
    than offsets. Rows of before the topic would be too many, unless as many others are gone."""
    if part.before_log > count_offsets(0, part.log_start, part.ours):
        return counted
    return replace(counted, place=0, before=0, after=max(0, counted.place + counted.after))


def _count(part: PartitionRows, order: OrderProof, offset: int) -> Edge:
    """Counts from the nearest anchor; the other side and the samples check it."""
    above = min(
        (a for a in part.bookmarks if a.first > offset),
        key=lambda a: a.first,
        default=Anchor(part.log_start, part.log_start, part.before_log),
    )
    below = max(
        (a for a in part.bookmarks if a.offset < offset), key=lambda a: a.offset, default=None
    )
    back = count_offsets(offset, above.first, part.ours)
    place, distance = above.place - _to_rows(back, order), back
    other: int | None = None
    if below is not None:
        forward = count_offsets(below.offset, offset, part.ours)
        other = below.place + _to_rows(forward, order)
        if forward < back:
            place, other, distance = other, place, forward
    doubt = math.ceil(distance * _find_error_rate(order))
    apart = 0 if other is None else other - place
    before, after = doubt + order.early + max(0, -apart), doubt + order.late + max(0, apart)
    check, differs = (None, 0) if other is None else (EdgeEvidence.COUNTED, other - place)
    timed = next((item for item in part.timed if item.offset == offset), None)
    if timed is not None:
        lowest, highest = timed.lower - order.early, timed.upper + order.late
        differs_in_time = min(max(place, lowest), highest) - place
        if order.holes:
            place += differs_in_time  # what holes make too many or too few
            differs_in_time = 0
        if check is None:
            check, differs = EdgeEvidence.SAMPLES, differs_in_time
        if not differs_in_time:
            # The samples leave no more rows open than these.
            before = min(before, place - (timed.floor - order.early))
            after = min(after, timed.ceiling + order.late - place)
    return Edge(
        offset,
        min(max(place, 0), part.rows),
        EdgeEvidence.COUNTED,
        before,
        after,
        differs,
        check,
        max(0, -place),
    )


def _to_rows(offsets: int, order: OrderProof) -> int:
    return round(offsets * (1.0 - order.holes))


def _find_error_rate(order: OrderProof) -> float:
    """Rows that a counted row may be wrong by: seen on the survivors, and not seen for chance."""
    seen = order.unsent + order.gone
    return min(1.0, order.holes + (seen + RULE_OF_THREE) / max(1, order.compared))


def cut_rows(partition: int, rows: int, gaps: Sequence[PlacedGap]) -> tuple[RowRange, ...]:
    """The gaps as ranges of places that do not overlap; what is in none was not lost."""
    likely = [(gap.start.place, gap.end.place) for gap in gaps]
    sure = [
        (gap.start.place + gap.start.after, gap.end.place - gap.end.before)
        for gap in gaps
        if not gap.bounded
    ]
    maybe = [(g.start.place - g.start.before, g.end.place + g.end.after) for g in gaps]
    points = sorted({min(max(at, 0), rows) for pair in (*likely, *sure, *maybe) for at in pair})
    return tuple(_cut(partition, points, likely, sure, maybe))


def _cut(
    partition: int,
    points: Sequence[int],
    likely: Sequence[tuple[int, int]],
    sure: Sequence[tuple[int, int]],
    maybe: Sequence[tuple[int, int]],
) -> Iterator[RowRange]:
    for first, end in pairwise(points):
        if _holds(maybe, first):
            yield RowRange(partition, first, end, _holds(likely, first), _holds(sure, first))


def _holds(ranges: Sequence[tuple[int, int]], at: int) -> bool:
    return any(first <= at < end for first, end in ranges)
