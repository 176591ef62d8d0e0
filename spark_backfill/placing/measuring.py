"""Measures ranked rows: their order against the log's, and the places of edges (P2.10)."""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import cached_property
from itertools import pairwise

from pyspark.sql import Row

from backlogctl.clock import format_time
from backlogctl.spark_backfill.evidence.survivors import SurvivorEvidence
from backlogctl.spark_backfill.messages.windows import Doubled, widen_backwards, widen_forwards
from backlogctl.spark_backfill.placing.ranking import (
    Anchor,
    Edge,
    EdgeEvidence,
    OrderProof,
    PartitionRows,
    PlacedGap,
    Ranked,
    RowRange,
    TimedPlaces,
    Unordered,
)
from backlogctl.spark_backfill.placing.ties import find_ties, list_limits, measure_ties, open_ties
from backlogctl.spark_backfill.request import Stretch, count_offsets
from backlogctl.spark_backfill.spark.frames import make_rows, mark_within, quote
from backlogctl.values import Bookmark, EdgeTimes, OffsetRange

# Finds the places of a gap's edges; pure.
#
# An offset whose row is known is an *anchor*: a bookmark, or the start of the log. Between an
# edge and the nearest anchor, offsets are counted as rows. The count is off by rows that were
# never sent, messages whose rows are gone, and offsets that are no messages, so each edge says by
# how much.

# Below so many survivors with a row, their order proves nothing about the lost ones.
MIN_COMPARED = 20
# An order is none where rows stand so far from their messages, as a share of all of a partition.
MAX_DISORDER = 0.1
# None seen among n means less than 3/n with 95 % confidence (rule of three, Hanley and
# Lippman-Hand, JAMA 1983).
RULE_OF_THREE = 3


def is_ordered(order: OrderProof) -> bool:
    """Whether the rows' order is the log's, so that offsets can be counted as rows."""
    return order.compared >= MIN_COMPARED and not is_disordered(order)


def is_disordered(order: OrderProof) -> bool:
    """Whether survivors show another order than the rows': then no place says anything."""
    return order.mean > 1.0 and order.disorder > MAX_DISORDER


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
    """Whether as many rows as offsets may lie between two anchors."""
    between = count_offsets(first.offset, second.offset, part.ours)
    rows = second.place - first.place
    return rows - first.after - second.before <= between <= rows + first.before + second.after


def find_edge(
    part: PartitionRows, order: OrderProof, offset: int, *, countable: bool = True
) -> Edge | None:
    """The place of an offset, by the best evidence; the next one checks it (P2.10)."""
    if offset >= part.log_start:
        place, timed = part.before_log, _find_timed(part, offset)
        if timed is None or is_ordered(order):
            return Edge(offset, place, EdgeEvidence.LOG)
        # Too few survivors say which rows come before them.
        early, late = max(0, place - timed.floor), max(0, timed.ceiling - place)
        return Edge(offset, place, EdgeEvidence.LOG, early, late)
    counted = _count(part, order, offset) if countable else None
    known = next((a for a in part.bookmarks if a.first <= offset <= a.offset), None)
    if known is None:
        if counted is None or not is_ordered(order):
            return None
        return _begin_at_first(part, counted) if offset == 0 else counted
    first, last = known.place - known.before, known.place + known.after
    # Which of the rows that tie with the bookmark's come before it, counting says at best.
    place = known.place if counted is None else min(max(counted.place, first), last)
    early, late = order.early + place - first, order.late + last - place
    timed = _find_timed(part, offset)
    if timed is not None and not is_ordered(order):
        # That the rows before it were handled, nothing but the samples' times can say.
        early, late = max(early, place - timed.floor), max(late, timed.ceiling - place)
    if counted is None:
        return Edge(offset, place, EdgeEvidence.BOOKMARK, early, late)
    differs = counted.place - place
    if 0 < abs(differs) <= order.displacement and not order.holes and is_ordered(order):
        # The bookmark's own row is one of those that stand elsewhere than their message.
        return Edge(
            offset,
            counted.place,
            EdgeEvidence.COUNTED,
            max(order.early, counted.place - first),
            max(order.late, last - counted.place),
            -differs,
            EdgeEvidence.BOOKMARK,
        )
    # Counting says that fewer rows were lost: those in between are told.
    open_rows = late if order.holes else max(late, differs)
    return Edge(
        offset, place, EdgeEvidence.BOOKMARK, early, open_rows, differs, EdgeEvidence.COUNTED
    )


def _begin_at_first(part: PartitionRows, counted: Edge) -> Edge:
    """The edge before a topic's first message: no row lies before it where there are no more rows
    than offsets. Rows of before the topic would be too many, unless as many others are gone."""
    if part.before_log > count_offsets(0, part.log_start, part.ours):
        return counted
    return replace(counted, place=0, before=0, after=max(0, counted.place + counted.after))


def _count(part: PartitionRows, order: OrderProof, offset: int) -> Edge:
    """Counts from the nearest anchor; the other side and the samples check it."""
    sharp = [anchor for anchor in part.bookmarks if anchor.is_sharp]
    above = min(
        (a for a in sharp if a.first > offset),
        key=lambda a: a.first,
        default=Anchor(part.log_start, part.log_start, part.before_log),
    )
    below = max((a for a in sharp if a.offset < offset), key=lambda a: a.offset, default=None)
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
    timed = _find_timed(part, offset)
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


def _find_timed(part: PartitionRows, offset: int) -> TimedPlaces | None:
    return next((item for item in part.timed if item.offset == offset), None)


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


# Survivors at the log's start from whose rows the log start's own place is read.
_FIRST_SURVIVORS = 201
# The share of survivors, from the log start on, among which messages without a row are counted.
_INNER = 0.9
# Below and above every time in the normal form.
_FIRST, _LAST = "", "~"


@dataclass(frozen=True)
class Measurement:
    """Measures ranked rows; each property is one job at most, made when it is first asked for.

    `clocks`: by how much times of samples and rows may differ; `drift`: by how much a row's time
    may lie before, and after, its message's; `latest`: no lost row of a partition is younger;
    `doubled`: hours that the clock of the rows' times says twice.
    """

    ranked: Ranked
    survivors: SurvivorEvidence
    bookmarks: tuple[Bookmark, ...]
    times: tuple[EdgeTimes, ...]
    clocks: timedelta
    drift: tuple[timedelta, timedelta]
    latest: Mapping[int, str | None]
    ours: tuple[Stretch, ...]
    partitions: tuple[int, ...]
    holes: float
    young_after: str
    doubled: Doubled = ()

    @cached_property
    def order(self) -> OrderProof:
        """How well the rows' order is the log's."""
        found = self._displacements.values()
        rows = sum(item.rows for item in found)
        return OrderProof(
            compared=sum(item.compared for item in found),
            early=max((item.early for item in found), default=0),
            late=max((item.late for item in found), default=0),
            mean=sum(item.total for item in found) / max(1, rows),
            disorder=sum(item.total for item in found)
            / max(1, sum(item.rows**2 for item in found)),
            unsent=sum(item.unsent for item in self._places.values()),
            gone=sum(item.gone for item in found),
            holes=self.holes,
        )

    @cached_property
    def partition_rows(self) -> tuple[PartitionRows, ...]:
        """The rows of each partition."""
        marks = self._find_anchors()
        return tuple(
            PartitionRows(
                partition=number,
                rows=places.rows,
                log_start=self.survivors.starts[number],
                before_log=places.before_log,
                bookmarks=marks.get(number, ()),
                ours=tuple(item for item in self.ours if item.partition == number),
                timed=places.timed,
                unordered=places.unordered,
            )
            for number in self.partitions
            for places in (self._places.get(number, _Places()),)
        )

    def place(
        self, ranges: Sequence[OffsetRange], bounded: Collection[OffsetRange], *, countable: bool
    ) -> Mapping[int, tuple[PlacedGap, ...] | None]:
        """The gaps of each partition that has some; None where they cannot be placed."""
        placed = {
            part.partition: place_gaps(part, self.order, gaps, countable=countable, bounded=bounded)
            for part in self.partition_rows
            if (gaps := [item for item in ranges if item.partition == part.partition])
        }
        limits = {(p, at) for p, gaps in placed.items() for at in list_limits(gaps or ())}
        ties = find_ties(self.ranked, limits)
        return {
            number: None if gaps is None else open_ties(gaps, ties.get(number, ()))
            for number, gaps in placed.items()
        }

    @cached_property
    def _displacements(self) -> Mapping[int, _Displacement]:
        spark = self.ranked.frame.sparkSession
        # Of archived messages the rows' order is known too, but they are before the log.
        starts = [(number, self.survivors.starts[number]) for number in self.partitions]
        rows = spark.sql(
            f"""
            WITH matched AS (
                SELECT /*+ BROADCAST(l) */ home, rank, place, tie, log_offset,
                    log_offset >= l_start AS in_log
                FROM {{ranked}} LEFT JOIN {{logs}} l ON home = l_home
                WHERE log_offset IS NOT NULL
            ), numbered AS (
                SELECT *, row_number() OVER by_offset - 1 AS i,
                    row_number() OVER (PARTITION BY home ORDER BY rank)
                        - row_number() OVER by_offset AS delta,
                    CASE WHEN in_log THEN count_if(in_log) OVER by_offset - 1 END AS i_log,
                    count(*) OVER (PARTITION BY home) AS matched
                FROM matched WINDOW by_offset AS (PARTITION BY home ORDER BY log_offset, rank)
            )
            SELECT home, count(*) AS n, count(DISTINCT tie) AS apart,
                max(delta) AS late, max(-delta) AS early,
                max(CASE WHEN i_log IS NOT NULL THEN -delta - place END) AS ahead,
                sum(abs(delta)) AS total, min(log_offset) AS first,
                -- The rows of the last ones may lie behind what was read of the table.
                max(CASE WHEN i < matched * {_INNER} THEN log_offset END) AS last,
                count_if(i < matched * {_INNER}) AS inner, max(rank) AS last_rank,
                collect_list(CASE WHEN i_log < {_FIRST_SURVIVORS} THEN rank - i_log END) AS starts,
                collect_list(CASE WHEN i_log < {_FIRST_SURVIVORS} THEN place END) AS places
            FROM numbered GROUP BY home
            """,
            ranked=self.ranked.in_gaps(),
            logs=make_rows(spark, starts, "l_home int, l_start long"),
        ).collect()
        spans = {row["home"]: (row["first"], row["last"]) for row in rows}
        there = self._count_messages(spans)
        return {
            row["home"]: _Displacement(
                rows=row["n"],
                compared=row["apart"],
                # Before the log's start too, where one stands among rows that left it.
                early=max(row["early"], _find_middle(row["places"]) + (row["ahead"] or 0)),
                late=row["late"],
                total=row["total"],
                start=_find_middle(row["starts"]) if row["starts"] else None,
                last_rank=row["last_rank"],
                gone=max(0, there.get(row["home"], 0) - row["inner"]),
            )
            for row in rows
        }

    def _count_messages(self, spans: Mapping[int, tuple[int, int]]) -> dict[int, int]:
        """Messages between two offsets, by partition; one that was sent twice counts twice."""
        if not spans:
            return {}
        ranges = [OffsetRange(number, first, last + 1) for number, (first, last) in spans.items()]
        frozen = self.survivors.read_frozen().where("NOT ours")
        marked = mark_within(frozen, ranges, "inside", partition="partition", offset="offset")
        rows = marked.where("inside").groupBy("partition").count().collect()
        return {row["partition"]: row["count"] for row in rows}

    @cached_property
    def _places(self) -> Mapping[int, _Places]:
        """Places of the log starts and of the samples' times."""
        displaced = self._displacements
        late = max((item.late for item in displaced.values()), default=0)
        cuts = _find_cuts(self.times, self.clocks, self.drift, self.doubled)
        params = []
        for number in self.partitions:
            item, latest = displaced.get(number), self.latest.get(number)
            # Without a survivor that has a row, times say which rows come before the log.
            known: tuple[int | None, int | None] = (None, None)
            if item is not None and item.start is not None:
                known = (item.start + late, item.last_rank)
            latest = min(latest or self.young_after, self.young_after)
            texts = [cut.before for cut in cuts.get(number, ())]
            for i, (begin, end) in enumerate(pairwise([_FIRST, *texts, _LAST])):
                params.append((number, *known, latest, i, begin, end))
        spark = self.ranked.frame.sparkSession
        rows = spark.sql(
            f"""
            WITH here AS (
                -- Of rows that tie with survivors, those without a message come first.
                SELECT /*+ BROADCAST(l) */ *,
                    CASE WHEN until IS NULL THEN time <= latest ELSE tie < until END AS is_before
                FROM {{left}}
                JOIN {{limits}} l ON home = number AND time >= begin AND time < end
            )
            SELECT home, passed, count(*) AS rows, count_if(is_before) AS before,
                count_if(coalesce(rank < last, true) AND NOT is_before AND reason IS NULL
                    AND time <= {quote(self.young_after)}) AS unsent,
                count(unordered) AS unordered, collect_set(unordered) AS columns
            FROM here GROUP BY home, passed
            """,
            left=self.ranked.list_left(),
            limits=make_rows(
                spark,
                params,
                "number int, until long, last long, latest string, passed int, begin string, "
                "end string",
            ),
        ).collect()
        found: dict[int, list[Row]] = {}
        for row in rows:
            found.setdefault(row["home"], []).append(row)
        return {
            number: _Places(
                rows=sum(row["rows"] for row in parts),
                before_log=sum(row["before"] for row in parts),
                unsent=sum(row["unsent"] for row in parts),
                timed=_count_timed(cuts.get(number, ()), parts),
                unordered=_join_unordered(parts),
            )
            for number, parts in found.items()
        }

    def _find_anchors(self) -> Mapping[int, tuple[Anchor, ...]]:
        if not self.bookmarks:
            return {}
        marked = self.ranked.list_left().where("mark IS NOT NULL AND unordered IS NULL")
        rows = marked.selectExpr("home", "place", "mark", "tie").collect()
        ties = measure_ties(self.ranked, {(row["home"], row["tie"]) for row in rows})
        places = {(row["home"], row["mark"]): (row["place"], row["tie"]) for row in rows}
        found: dict[int, dict[int, Anchor]] = {}
        for mark in self.bookmarks:
            found_at = places.get((mark.partition, mark.digest))
            if found_at is None:
                continue
            place, tie = found_at[0], ties[mark.partition, found_at[1]]
            known = found.setdefault(mark.partition, {})
            old = known.get(mark.offset)
            first = mark.committed if old is None else min(old.first, mark.committed)
            before, after = place - tie.first, tie.end - 1 - place
            known[mark.offset] = Anchor(first, mark.offset, place, before, after)
        return {number: tuple(known.values()) for number, known in found.items()}


@dataclass(frozen=True, slots=True)
class _Displacement:
    """Survivors of one partition that have a row; `compared`: those that tie count once. `start` is
    the rank of the first one in the log; None where all are archived."""

    rows: int
    compared: int
    early: int
    late: int
    total: int
    start: int | None
    last_rank: int
    gone: int


@dataclass(frozen=True, slots=True)
class _Places:
    rows: int = 0
    before_log: int = 0
    unsent: int = 0
    timed: tuple[TimedPlaces, ...] = ()
    unordered: Unordered | None = None


@dataclass(frozen=True, slots=True)
class _Cut:
    """Rows with a time below `before` are counted for one limit of an edge."""

    offset: int
    limit: str
    before: str


def _find_middle(numbers: Sequence[int]) -> int:
    return int(statistics.median_low(numbers)) if numbers else 0


def _find_cuts(
    times: Iterable[EdgeTimes],
    clocks: timedelta,
    drift: tuple[timedelta, timedelta],
    doubled: Doubled,
) -> Mapping[int, Sequence[_Cut]]:
    """The times that bound each edge, by partition and in their order."""
    found: dict[int, list[_Cut]] = {}
    for item in times:
        if item.lower is None or item.upper is None:
            continue
        cuts = found.setdefault(item.partition, [])
        lower, upper = item.lower - clocks, item.upper + clocks
        limits = {
            "floor": widen_backwards(lower - drift[0], doubled),
            "lower": widen_backwards(lower, doubled),
            # The upper time itself belongs to it; times in the normal form have one length.
            "upper": widen_forwards(upper, doubled),
            "ceiling": widen_forwards(upper + drift[1], doubled),
        }
        for limit, at in limits.items():
            behind = " " if limit in ("upper", "ceiling") else ""
            cuts.append(_Cut(item.offset, limit, format_time(at) + behind))
    for cuts in found.values():
        cuts.sort(key=lambda cut: cut.before)
    return found


def _join_unordered(rows: Sequence[Row]) -> Unordered | None:
    columns = {name for row in rows for name in row["columns"]}
    if not columns:
        return None
    return Unordered(sum(row["unordered"] for row in rows), tuple(sorted(columns)))


def _count_timed(cuts: Sequence[_Cut], rows: Sequence[Row]) -> tuple[TimedPlaces, ...]:
    """Rows below each cut: those that passed none but earlier ones."""
    limits: dict[int, dict[str, int]] = {}
    for i, cut in enumerate(cuts):
        count = sum(row["rows"] for row in rows if row["passed"] <= i)
        limits.setdefault(cut.offset, {})[cut.limit] = count
    return tuple(TimedPlaces(offset, **counts) for offset, counts in limits.items())
