"""Gives the candidates to the gaps, by the best evidence there is for each partition (P2.10)."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.window import Window

from backlogctl.errors import StagingError
from backlogctl.formats import format_plural
from backlogctl.spark_backfill.evidence.injected import LOST, OUTSIDE, QUARANTINED, InjectedEvidence
from backlogctl.spark_backfill.evidence.survivors import Holes, LogSpan, SurvivorEvidence
from backlogctl.spark_backfill.failures import translating
from backlogctl.spark_backfill.messages.rules import ORIGINAL, MessageRules
from backlogctl.spark_backfill.messages.windows import CLOCKS, Bounds, Windows
from backlogctl.spark_backfill.messages.windows import Window as TimeWindow
from backlogctl.spark_backfill.placing.measuring import (
    MIN_COMPARED,
    Measurement,
    cut_rows,
    is_disordered,
)
from backlogctl.spark_backfill.placing.ranking import (
    SPREAD,
    Edge,
    EdgeEvidence,
    OrderProof,
    PlacedGap,
    Ranked,
    RowRange,
    Unordered,
    choose_bookmarks,
    rank_rows,
)
from backlogctl.spark_backfill.placing.ties import find_doubled, list_sort_keys
from backlogctl.spark_backfill.request import RebuildRequest, Stretch, count_offsets
from backlogctl.spark_backfill.spark.frames import freeze, make_rows, mark_within
from backlogctl.values import OffsetRange
from backlogctl_delivery.visible import escape_text

# Decides of each candidate whether it lies in a gap: by its offset, its place, or its time.

INCLUDE, EXCLUDE = "include", "exclude"


def take_by_edge(edge: str | None, *, sure: Column, likely: Column) -> Column:
    """Which of the messages that may be lost are put back, by the stream's `source.edge`."""
    return {INCLUDE: F.lit(True), EXCLUDE: sure}.get(edge or "", likely)


@dataclass(frozen=True, slots=True)
class Attribution:
    """How rows are given to gaps.

    Attributes:
        ranges: the gaps: a row whose message is still in the log is in one by its offset.
        bounded: those of them that the group may have read in part.
        cuts: places, of the partitions whose gaps could be placed.
        windows: times, of the other partitions that have a gap; they do not overlap.
        anywhere: times of rows whose partition is not known.
        proven: whether the partitioner is proved: else a row may be of any partition. What else
            messages differ in says nothing of that.
        edge: what is done with uncertain rows: include, exclude, or None for what is likely.
    """

    ranges: Sequence[OffsetRange]
    bounded: Collection[OffsetRange]
    cuts: Sequence[RowRange]
    windows: Sequence[TimeWindow]
    anywhere: Bounds
    proven: bool
    edge: str | None = None

    def take(self, cut: RowRange) -> bool:
        """Whether rows of a range are put back."""
        if self.edge == INCLUDE:
            return True
        return cut.sure if self.edge == EXCLUDE else cut.likely


def attribute_rows(
    ranked: DataFrame, how: Attribution, again: DataFrame | None, work: Path
) -> DataFrame:
    """The ranked rows with their last `label`, `uncertain` and whether they are `likely` lost, and
    `counted` (the partition of a row that is of one of two), frozen.

    A row that no evidence explains and that lies in no gap is `outside`: the group has read it.

    Args:
        again: ids (`key`) of messages that were put back and may have been lost again (`likely`,
            `sure`), wherever their rows lie.
    """
    spark = ranked.sparkSession
    rows = ranked
    place = {"partition": "log_partition", "offset": "log_offset"}
    for name, ranges in (("in_log", how.ranges), ("in_bounded", how.bounded)):
        rows = mark_within(rows, ranges, f"c_{name}", **place)
    cuts = make_rows(
        spark,
        [(c.partition, c.first, c.end, how.take(c), c.likely, not c.sure) for c in how.cuts],
        "c_home int, c_first long, c_end long, c_take boolean, c_is_likely boolean, "
        "c_uncertain boolean",
    )
    windows = make_rows(
        spark,
        [(w.partition, *w.bounds.to_text()) for w in how.windows],
        "w_home int, w_lower string, w_upper string",
    )
    others = sorted({window.partition for window in how.windows})
    within_cut = (
        (F.col("home") == F.col("c_home"))
        & (F.col("place") >= F.col("c_first"))
        & (F.col("place") < F.col("c_end"))
        & F.col("log_offset").isNull()
    )
    rows = rows.join(F.broadcast(cuts), within_cut, "left")
    in_window = (F.col("home") == F.col("w_home")) & _is_between("w_lower", "w_upper")
    rows = rows.join(F.broadcast(windows), in_window, "left")
    lower, upper = how.anywhere.to_text()
    elsewhere = _is_between(F.lit(lower), F.lit(upper))
    # A row without a time is a candidate until evidence explains it.
    timeless = F.col("time").isNull()
    in_log = F.col("c_in_log")
    # A message with a key that was sent while partitions were added: of one of two partitions.
    numbers = sorted({*(r.partition for r in how.ranges), *(w.partition for w in how.windows)})
    possible = F.array_intersect("homes", F.array(*map(F.lit, numbers)))
    either = F.col("home").isNull() & F.col("homes").isNotNull() & ~timeless
    either_lost = either & elsewhere & ((F.size(possible) > 0) if how.proven else F.lit(True))
    take_either = either_lost
    if how.edge == EXCLUDE:
        in_log, take_either = in_log & ~F.col("c_in_bounded"), F.lit(False)
    in_gap = (
        F.when(F.col("log_offset").isNotNull(), in_log)
        .when(either, take_either)
        .when(F.col("home").isNull() | timeless, elsewhere | timeless)
        .when(F.col("home").isin(others), F.col("w_home").isNotNull())
        .when(F.col("c_take").isNotNull(), F.col("c_take"))
        .otherwise(F.lit(False) if how.proven else elsewhere)
    )
    open_ = F.col("label").isin(LOST, QUARANTINED)
    uncertain = F.coalesce("c_uncertain", F.col("c_in_bounded") | either_lost)
    decided = (
        rows.withColumn("uncertain", open_ & uncertain)
        .withColumn("likely", F.coalesce("c_is_likely", F.lit(True)))
        .withColumn("label", F.when(open_ & ~in_gap, OUTSIDE).otherwise(F.col("label")))
        .withColumn("counted", F.when(either, F.try_element_at(possible, F.lit(1))))
    )
    if again is not None:
        decided = _take_again(decided, again, how.edge)
    path = str(work / "attributed")
    with translating("find the lost rows", subject=path, kind=StagingError):
        names = [name for name in decided.columns if name[:2] not in ("c_", "w_")]
        return freeze(decided.select(*names), path)


def _take_again(decided: DataFrame, again: DataFrame, edge: str | None) -> DataFrame:
    marks = {"key": "c_again", "likely": "c_likely", "sure": "c_sure"}
    lost_again = F.broadcast(again.withColumnsRenamed(marks))
    found = decided.join(lost_again, F.col("message_id") == F.col("c_again"), "left")
    take = take_by_edge(edge, sure=F.col("c_sure"), likely=F.col("c_likely"))
    back = F.col("c_again").isNotNull() & (F.col("label") == OUTSIDE) & take
    kind = F.when(F.col("reason").isNull(), LOST).otherwise(QUARANTINED)
    # Where it was put back says more than where its row stands, which may be at a gap's edge.
    known = F.col("c_again").isNotNull() & F.col("label").isin(LOST, QUARANTINED, OUTSIDE)
    return (
        found.withColumn("uncertain", F.when(known, ~F.col("c_sure")).otherwise(F.col("uncertain")))
        .withColumn("likely", F.when(known, F.col("c_likely")).otherwise(F.col("likely")))
        .withColumn("label", F.when(back, kind).otherwise(F.col("label")))
    )


def _is_between(lower: Column | str, upper: Column | str) -> Column:
    first, last = (F.col(at) if isinstance(at, str) else at for at in (lower, upper))
    time = F.col("time")
    return (first.isNull() | (time >= first)) & (last.isNull() | (time <= last))


def fill_needs(decided: DataFrame, needs: Mapping[int, int]) -> DataFrame:
    """Gives lost messages without a key to the partitions that still lack some, in order of time.

    Args:
        needs: lost offsets that no message with a key explains, by partition. What is left over
            keeps the partition it was spread to.
    """
    edges, at = [], 0
    for number, need in sorted(needs.items()):
        if need > 0:
            edges.append((number, at, at + need))
            at += need
    if not edges:
        return decided
    keyless = (F.col("label") == LOST) & F.col("key_is_null") & F.col("home").isNull()
    # The other rows are sorted as well, but not all of them in one task.
    group = F.when(~F.col("__keyless"), F.pmod(F.xxhash64("message_id"), F.lit(SPREAD)))
    order = Window.partitionBy("__keyless", group).orderBy("time", "message_id")
    ranges = make_rows(decided.sparkSession, edges, "f_slot int, f_first long, f_end long")
    index = F.row_number().over(order) - 1
    numbered = decided.withColumn("__keyless", keyless).withColumn(
        "__index", F.when(F.col("__keyless"), index)
    )
    inside = (F.col("__index") >= F.col("f_first")) & (F.col("__index") < F.col("f_end"))
    filled = numbered.join(F.broadcast(ranges), inside, "left")
    return filled.withColumn("slot", F.coalesce("f_slot", "slot")).drop(
        "f_slot", "f_first", "f_end", "__keyless", "__index"
    )


# Survivors by which the rows' order is judged, where there are as many.
_ENOUGH = 1000
_SHOWN = 10


@dataclass(frozen=True, slots=True)
class GapPlacement:
    """The candidates with their last label, and how they were given to the gaps.

    Attributes:
        gaps: of each partition that has some; None where only times say which rows were lost.
        order: the rows' order, measured; None where it does not matter.
        consumed: the consumer's own table says what was handled.
        uneven: partitions where a gap has another number of rows than of messages.
        beyond: by partition, how many rows before the first one that was read a loss may begin.
        unsent: a lost row is one that has no message anywhere: no edge has to be known.
        unreached: of those, partitions whose log does not reach back to before the holes.
        unordered: by partition, rows that have no place.
        noted: whether `watch` noted messages at committed offsets.
    """

    decided: DataFrame
    gaps: Mapping[int, tuple[PlacedGap, ...] | None]
    order: OrderProof | None = None
    consumed: bool = False
    uneven: tuple[int, ...] = ()
    beyond: Mapping[int, int] = field(default_factory=dict)
    unsent: bool = False
    unreached: tuple[int, ...] = ()
    unordered: Mapping[int, Unordered] = field(default_factory=dict)
    noted: bool = False

    @property
    def by_time(self) -> tuple[int, ...]:
        """Partitions where only times say which rows were lost."""
        if self.unsent:
            return ()
        return tuple(number for number, placed in sorted(self.gaps.items()) if placed is None)

    @property
    def misplaced(self) -> tuple[int, ...]:
        """Partitions where rows without a place may be lost ones. Where bookmarks are sharp, no
        row stands for one of these: they are missing in the count."""
        return tuple(
            number
            for number in sorted(self.unordered)
            if (gaps := self.gaps.get(number)) is None
            or any(edge.before or edge.after for edge in _list_edges(gaps))
        )

    @property
    def is_counted(self) -> bool:
        """Whether counting alone says which rows were lost, among some at least."""
        edges = [edge for gaps in self.gaps.values() for edge in _list_edges(gaps or ())]
        counted = (edge for edge in edges if edge.evidence is EdgeEvidence.COUNTED)
        return any(edge.before or edge.after for edge in counted)

    def find_evidence(self, partition: int) -> EdgeEvidence:
        """What says where the losses of a partition begin and end: the weakest of it."""
        if self.consumed:
            return EdgeEvidence.CONSUMED
        if self.unsent:
            return EdgeEvidence.LOG
        placed = self.gaps.get(partition)
        if placed is None:
            return EdgeEvidence.SAMPLES
        order = list(EdgeEvidence)
        return max((edge.evidence for edge in _list_edges(placed)), key=order.index)

    def find_difference(self, partition: int) -> int:
        """By how many rows the check of a partition's evidence says otherwise."""
        edges = _list_edges(self.gaps.get(partition) or ())
        return max((edge.differs for edge in edges), key=abs, default=0)


@dataclass(frozen=True, slots=True)
class Ground:
    """What candidates are placed by."""

    request: RebuildRequest
    rules: MessageRules
    windows: Windows
    ranges: tuple[OffsetRange, ...]
    survivors: SurvivorEvidence
    injected: InjectedEvidence
    spans: tuple[LogSpan, ...]
    holes: Holes
    proven: bool
    young_after: str
    work: Path
    archived: tuple[Stretch, ...] = ()

    @property
    def stretches(self) -> tuple[Stretch, ...]:
        """Offsets that stand for no lost row: what recoveries wrote, and what was archived."""
        return (*self.injected.list_stretches(), *self.archived)

    @property
    def partitions(self) -> tuple[int, ...]:
        """Those that have a gap."""
        return self.request.lost_from

    @property
    def bounded(self) -> frozenset[OffsetRange]:
        """The gaps that the group may have read in part."""
        return frozenset(
            OffsetRange(gap.partition, gap.start, gap.end)
            for gap in self.request.gaps
            if gap.may_be_read and gap.start is not None and gap.end is not None
        )

    @property
    def is_rankable(self) -> bool:
        """Whether a row stands for one message, in the order of its partition, and nothing better
        says whether it was handled."""
        original = self.rules.fidelity == ORIGINAL and not self.request.is_unsent
        return original and self.proven and self.rules.source.consumed is None


def place_candidates(labelled: DataFrame, ground: Ground) -> GapPlacement:
    """Ranks the candidates where that says something, and decides which of them were lost."""
    ranked, measured = _rank(labelled, ground)
    placed, cuts = _place(ranked, measured, ground) if measured is not None else ({}, [])
    unplaced = {number for number in ground.partitions if placed.get(number) is None}
    how = Attribution(
        ranges=ground.ranges,
        bounded=ground.bounded,
        cuts=cuts,
        windows=tuple(w for w in ground.windows.lost if w.partition in unplaced),
        anywhere=ground.windows.anywhere,
        proven=ground.proven,
        edge=ground.rules.source.edge,
    )
    injected = ground.injected
    again = injected.collect_lost_again() if injected.has_lost_again else None
    decided = attribute_rows(ranked.frame, how, again, ground.work)
    return GapPlacement(
        decided,
        {number: placed.get(number) for number in ground.partitions},
        None if measured is None else measured.order,
        # That a row was handled says nothing of its later changes.
        ground.rules.source.consumed is not None and ground.rules.fidelity == ORIGINAL,
        _find_uneven(placed, ground.stretches, ground.survivors.starts),
        {
            number: max(edge.beyond for edge in _list_edges(gaps))
            for number, gaps in placed.items()
            if gaps
        },
        ground.request.is_unsent,
        _find_unreached(ground) if ground.request.is_unsent else (),
        {} if measured is None else _find_unordered(measured, ground.partitions),
        bool(ground.request.bookmarks),
    )


def _find_unreached(ground: Ground) -> tuple[int, ...]:
    """A row whose message has expired looks as if it had never been sent."""
    rows = ground.survivors.read_frozen().groupBy("partition").agg(F.min("timestamp").alias("at"))
    oldest = {row["partition"]: row["at"] for row in rows.collect()}
    found = []
    for window in ground.windows.lost:
        begin, first = window.bounds.lower, oldest.get(window.partition)
        whole = ground.survivors.starts.get(window.partition, 0) == 0
        reaches = begin is not None and first is not None and first <= begin.timestamp() * 1000
        if not (whole or reaches):
            found.append(window.partition)
    return tuple(sorted(set(found)))


def _find_uneven(
    placed: Mapping[int, Sequence[PlacedGap] | None],
    ours: Sequence[Stretch],
    starts: Mapping[int, int],
) -> tuple[int, ...]:
    """Totals of a partition may fit although its gaps do not: errors cancel out.

    What of a gap is in the log still is known by its messages.
    """
    found = []
    for number, gaps in sorted(placed.items()):
        here = [item for item in ours if item.partition == number]
        for gap in gaps or ():
            rows = gap.end.place - gap.start.place
            open_rows = sum(edge.before + edge.after for edge in (gap.start, gap.end))
            first, end = (min(edge.offset, starts[number]) for edge in (gap.start, gap.end))
            if abs(rows - count_offsets(first, end, here)) > open_rows:
                found.append(number)
                break
    return tuple(found)


def _rank(labelled: DataFrame, ground: Ground) -> tuple[Ranked, Measurement | None]:
    rules, survivors = ground.rules, ground.survivors
    rankable = ground.is_rankable
    ranked_partitions = _choose_ranked(ground)
    bookmarks = choose_bookmarks(
        ground.request.bookmarks if rankable else (), ground.ranges, survivors.starts
    )
    ranked = rank_rows(
        labelled,
        survivors,
        bookmarks,
        topic_id=ground.request.topic_id,
        partitions=ranked_partitions if rankable else (),
        order=dict(zip(rules.order_names(), (c.name for c in rules.order), strict=True)),
        sort_keys=list_sort_keys(rules) if rankable else (),
        keys=rules.key_names(),
        work=ground.work,
    )
    if not rankable:
        return ranked, None
    return ranked, Measurement(
        ranked=ranked,
        survivors=survivors,
        bookmarks=bookmarks,
        times=ground.request.edge_times,
        clocks=CLOCKS,
        drift=rules.source.drift,
        latest=_find_latest(ground.windows),
        ours=ground.stretches,
        partitions=ranked_partitions,
        holes=ground.holes.share,
        young_after=ground.young_after,
        doubled=find_doubled(rules),
    )


def _place(
    ranked: Ranked, measured: Measurement, ground: Ground
) -> tuple[Mapping[int, tuple[PlacedGap, ...] | None], list[RowRange]]:
    """The gaps among the rows, where these are not seen to be in another order."""
    if is_disordered(measured.order):
        return {}, []
    placed = measured.place(ground.ranges, ground.bounded, countable=_is_countable(ranked))
    parts = {part.partition: part for part in measured.partition_rows}
    cuts = [
        cut
        for number, gaps in placed.items()
        if gaps is not None
        for cut in cut_rows(number, parts[number].rows, gaps)
    ]
    return placed, cuts


def _find_unordered(measured: Measurement, partitions: Collection[int]) -> Mapping[int, Unordered]:
    return {
        part.partition: part.unordered
        for part in measured.partition_rows
        if part.unordered is not None and part.partition in partitions
    }


def _choose_ranked(ground: Ground) -> tuple[int, ...]:
    """The gaps' partitions, and others where too few of their messages survive to show an order."""
    survivors = {span.partition: span.records - span.ours for span in ground.spans}
    chosen = list(ground.partitions)
    there = sum(survivors.get(number, 0) for number in chosen)
    others = sorted(set(survivors) - set(chosen), key=lambda number: -survivors[number])
    for number in others:
        if there >= _ENOUGH:
            break
        chosen.append(number)
        there += survivors[number]
    return tuple(sorted(chosen))


def _list_edges(placed: Sequence[PlacedGap]) -> list[Edge]:
    return [edge for gap in placed for edge in (gap.start, gap.end)]


def _find_latest(windows: Windows) -> Mapping[int, str | None]:
    """The time of each partition after which no lost row can lie; None is open."""
    return {item.partition: item.bounds.to_text()[1] for item in windows.lost}


def _is_countable(ranked: Ranked) -> bool:
    """Whether every row's partition is known, so that offsets can be counted as rows."""
    lost = F.col("label").isin(LOST, QUARANTINED) & F.col("home").isNull()
    return ranked.frame.where(lost).isEmpty()


def describe_evidence(placement: GapPlacement) -> str:
    """What says where the losses begin, in one sentence."""
    if placement.unsent:
        return "a lost row is one that has no message, neither in the log nor in an archive"
    numbers = sorted(placement.gaps)
    by: dict[EdgeEvidence, list[int]] = {}
    for number in numbers:
        by.setdefault(placement.find_evidence(number), []).append(number)
    parts = [
        f"{_WORDS[kind]} in {format_plural(len(found), 'partition')}"
        for kind in EdgeEvidence
        if (found := by.get(kind))
    ]
    told = f"where the losses begin is known by {', '.join(parts)}"
    checks = list(_describe_checks(placement))
    if placement.unordered:
        checks.append(describe_unordered(placement, sorted(placement.unordered)))
    return "; ".join([told, *checks])


def describe_blurred(placement: GapPlacement) -> str:
    """Why only times say where losses begin, and what would say it better."""
    order = placement.order
    why = []
    if order is not None and is_disordered(order):
        places = format_plural(order.displacement, "place")
        why.append(f"survivors stand up to {places} from their rows, so `order_by` says nothing")
    elif order is not None and order.compared < MIN_COMPARED:
        why.append(f"{describe_few(order)} to count offsets as rows")
    if placement.noted and not (order is not None and is_disordered(order)):
        why.append("no bookmark that can be used is of the row there")
    do = "add `consumed` evidence"
    if not placement.noted:
        do = f"let `backlogctl watch` run, or {do}"
    return "; ".join([*why, do])


def describe_few(order: OrderProof) -> str:
    """That too few survivors show the rows' order."""
    survivors = format_plural(order.compared, "survivor")
    return f"only {survivors} show the rows' order, {MIN_COMPARED} are needed"


def describe_unordered(placement: GapPlacement, numbers: Sequence[int]) -> str:
    """Rows of these partitions that have no place, and what follows from it; empty for none."""
    found = [placement.unordered[number] for number in numbers]
    if not found:
        return ""
    rows = sum(item.rows for item in found)
    columns = ", ".join(sorted({name for item in found for name in item.columns}))
    where = ", ".join(map(str, numbers[:_SHOWN])) + (", ..." if len(numbers) > _SHOWN else "")
    return (
        f"{format_plural(rows, 'row')} in partitions {where} with NULL in {escape_text(columns)}: "
        "their place in the log is unknown, so offsets are not counted as rows there"
    )


def _describe_checks(placement: GapPlacement) -> Iterator[str]:
    if placement.consumed:
        return
    starts = [gap.start for placed in placement.gaps.values() for gap in placed or ()]
    for kind, words in _CHECKS.items():
        checked = [edge.differs for edge in starts if edge.check is kind]
        if not checked:
            continue
        differ = [abs(by) for by in checked if by]
        told = f"{words} agrees in {len(checked) - len(differ)} of {len(checked)}"
        most = f", and differs by at most {format_plural(max(differ), 'row')}" if differ else ""
        yield told + most
    order = placement.order
    if order is not None and order.compared < MIN_COMPARED:
        yield describe_few(order)
    elif order is not None and not order.displacement:
        yield f"{format_plural(order.compared, 'survivor')} stand in the order of their rows"
    elif order is not None:
        places = format_plural(order.displacement, "place")
        compared = format_plural(order.compared, "survivor")
        yield f"{compared} stand at most {places} from their rows"


_WORDS: Mapping[EdgeEvidence, str] = {
    EdgeEvidence.CONSUMED: "the consumer's own table",
    EdgeEvidence.LOG: "the log itself",
    EdgeEvidence.BOOKMARK: "bookmarks",
    EdgeEvidence.COUNTED: "counting offsets as rows",
    EdgeEvidence.SAMPLES: "the samples' times only",
}
_CHECKS: Mapping[EdgeEvidence, str] = {
    EdgeEvidence.COUNTED: "counting",
    EdgeEvidence.BOOKMARK: "the bookmark",
    EdgeEvidence.SAMPLES: "the samples' time",
}
