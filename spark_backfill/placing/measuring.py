"""Measures ranked rows: their order against the log's, and the places of edges (P2.10)."""

from __future__ import annotations

import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from itertools import pairwise

from pyspark.sql import Row
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.window import Window

from backlog.clock import format_time
from backlog.values import Bookmark, EdgeTimes, OffsetRange
from spark_backfill.evidence.survivors import SurvivorEvidence
from spark_backfill.placing.edges import place_gaps
from spark_backfill.placing.ranking import Ranked
from spark_backfill.placing.values import (
    Anchor,
    OrderProof,
    PartitionRows,
    PlacedGap,
    TimedPlaces,
    Unordered,
)
from spark_backfill.request import Stretch
from spark_backfill.spark.frames import make_rows, mark_within

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
    may lie before, and after, its message's; `latest`: no lost row of a partition is younger.
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

    @cached_property
    def order(self) -> OrderProof:
        """How well the rows' order is the log's."""
        found = self._displacements.values()
        compared = sum(item.compared for item in found)
        return OrderProof(
            compared=compared,
            early=max((item.early for item in found), default=0),
            late=max((item.late for item in found), default=0),
            mean=sum(item.total for item in found) / max(1, compared),
            disorder=sum(item.total for item in found)
            / max(1, sum(item.compared**2 for item in found)),
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
        return {
            part.partition: place_gaps(part, self.order, gaps, countable=countable, bounded=bounded)
            for part in self.partition_rows
            if (gaps := [item for item in ranges if item.partition == part.partition])
        }

    @cached_property
    def _displacements(self) -> Mapping[int, _Displacement]:
        home = Window.partitionBy("home")
        by_offset = F.row_number().over(home.orderBy("log_offset", "rank")) - 1
        delta = F.row_number().over(home.orderBy("rank")) - 1 - by_offset
        inner = F.col("i") < F.col("all") * _INNER
        matched = self.ranked.in_gaps().where(F.col("log_offset").isNotNull())
        # Of archived messages the rows' order is known too, but they are before the log.
        logs = make_rows(
            self.ranked.frame.sparkSession,
            [(number, self.survivors.starts[number]) for number in self.partitions],
            "l_home int, l_start long",
        )
        matched = matched.join(F.broadcast(logs), F.col("home") == F.col("l_home"), "left")
        in_log = F.col("log_offset") >= F.col("l_start")
        until_here = home.orderBy("log_offset", "rank")
        i_log = F.when(in_log, F.sum(in_log.cast("int")).over(until_here) - 1)
        rows = (
            matched.select(
                "home",
                "rank",
                "log_offset",
                by_offset.alias("i"),
                i_log.alias("i_log"),
                delta.alias("delta"),
                F.count(F.lit(1)).over(home).alias("all"),
            )
            .groupBy("home")
            .agg(
                F.count(F.lit(1)).alias("n"),
                F.max("delta").alias("late"),
                F.max(-F.col("delta")).alias("early"),
                F.sum(F.abs("delta")).alias("total"),
                F.min("log_offset").alias("first"),
                # The rows of the last ones may lie behind what was read of the table.
                F.max(F.when(F.col("i") < F.col("all") * _INNER, F.col("log_offset"))).alias(
                    "last"
                ),
                F.count_if(inner).alias("inner"),
                F.max("rank").alias("last_rank"),
                F.collect_list(
                    F.when(F.col("i_log") < _FIRST_SURVIVORS, F.col("rank") - F.col("i_log"))
                ).alias("starts"),
            )
            .collect()
        )
        spans = {row["home"]: (row["first"], row["last"]) for row in rows}
        there = self._count_messages(spans)
        return {
            row["home"]: _Displacement(
                compared=row["n"],
                early=row["early"],
                late=row["late"],
                total=row["total"],
                start=int(statistics.median_low(row["starts"])) if row["starts"] else None,
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
        frozen = self.survivors.read_frozen().where(~F.col("ours"))
        marked = mark_within(frozen, ranges, "inside", partition="partition", offset="offset")
        rows = (
            marked.where("inside").groupBy("partition").agg(F.count(F.lit(1)).alias("n")).collect()
        )
        return {row["partition"]: row["n"] for row in rows}

    @cached_property
    def _places(self) -> Mapping[int, _Places]:
        """Places of the log starts and of the samples' times."""
        displaced = self._displacements
        late = max((item.late for item in displaced.values()), default=0)
        cuts = _find_cuts(self.times, self.clocks, self.drift)
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
        limits = make_rows(
            self.ranked.frame.sparkSession,
            params,
            "number int, until long, last long, latest string, passed int, begin string, "
            "end string",
        )
        rank, time = F.col("rank"), F.col("time")
        here = (F.col("home") == F.col("number")) & (time >= F.col("begin")) & (time < F.col("end"))
        left = self.ranked.in_gaps().where(F.col("log_offset").isNull())
        before = F.when(F.col("until").isNull(), time <= F.col("latest")).otherwise(
            rank < F.col("until")
        )
        among = F.coalesce(rank < F.col("last"), F.lit(True)) & ~before
        sent = F.col("reason").isNull() & (time <= self.young_after)
        rows = (
            left.join(F.broadcast(limits), here)
            .groupBy("home", "passed")
            .agg(
                F.count(F.lit(1)).alias("rows"),
                F.count_if(before).alias("before"),
                F.count_if(among & sent).alias("unsent"),
                F.count("unordered").alias("unordered"),
                F.collect_set("unordered").alias("columns"),
            )
            .collect()
        )
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
        lost = F.col("log_offset").isNull() & F.col("unordered").isNull()
        marked = self.ranked.in_gaps().where(F.col("mark").isNotNull() & lost)
        rows = marked.select("home", "place", "mark").collect()
        places = {(row["home"], row["mark"]): row["place"] for row in rows}
        found: dict[int, dict[int, Anchor]] = {}
        for mark in self.bookmarks:
            place = places.get((mark.partition, mark.digest))
            if place is None:
                continue
            known = found.setdefault(mark.partition, {})
            old = known.get(mark.offset)
            first = mark.committed if old is None else min(old.first, mark.committed)
            known[mark.offset] = Anchor(first, mark.offset, place)
        return {number: tuple(known.values()) for number, known in found.items()}


@dataclass(frozen=True, slots=True)
class _Displacement:
    """Survivors of one partition that have a row. `start` is the rank of the first one in the log;
    None where all are archived."""

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


def _find_cuts(
    times: Iterable[EdgeTimes], clocks: timedelta, drift: tuple[timedelta, timedelta]
) -> Mapping[int, Sequence[_Cut]]:
    """The times that bound each edge, by partition and in their order."""
    found: dict[int, list[_Cut]] = {}
    for item in times:
        if item.lower is None or item.upper is None:
            continue
        cuts = found.setdefault(item.partition, [])
        lower, upper = item.lower - clocks, item.upper + clocks
        cuts.append(_Cut(item.offset, "floor", format_time(lower - drift[0])))
        cuts.append(_Cut(item.offset, "lower", format_time(lower)))
        # The upper time itself belongs to it; times in the normal form have one length.
        cuts.append(_Cut(item.offset, "upper", format_time(upper) + " "))
        cuts.append(_Cut(item.offset, "ceiling", format_time(upper + drift[1]) + " "))
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
