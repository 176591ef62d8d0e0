"""Gives the candidates to the gaps, by the best evidence there is for each partition (P2.10)."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pyspark.sql import DataFrame

from backlogctl.formats import format_plural
from backlogctl.spark_backfill.evidence.injected import LOST, QUARANTINED, InjectedEvidence
from backlogctl.spark_backfill.evidence.survivors import Holes, LogSpan, SurvivorEvidence
from backlogctl.spark_backfill.messages.rules import ORIGINAL, MessageRules
from backlogctl.spark_backfill.messages.windows import CLOCKS, Windows
from backlogctl.spark_backfill.placing.attribution import (
    Attribution,
    attribute_rows,
)
from backlogctl.spark_backfill.placing.measuring import (
    MIN_COMPARED,
    Measurement,
    cut_rows,
    is_disordered,
)
from backlogctl.spark_backfill.placing.ranking import (
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
from backlogctl.values import OffsetRange
from backlogctl_delivery.visible import escape_text

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
    rows = ground.survivors.read_frozen().groupBy("partition").min("timestamp").collect()
    oldest = {row["partition"]: row["min(timestamp)"] for row in rows}
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
    lost = f"label IN ('{LOST}', '{QUARANTINED}') AND home IS NULL"
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
