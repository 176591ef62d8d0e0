"""Rows that the stream's own order does not tell apart, and what that leaves open (P2.10)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from zoneinfo import ZoneInfo

from backlogctl.clock import find_doubled_times, format_time, utc_now
from backlogctl.spark_backfill.messages.rules import MessageRules
from backlogctl.spark_backfill.messages.windows import Doubled
from backlogctl.spark_backfill.placing.ranking import Edge, PlacedGap, Ranked
from backlogctl.spark_backfill.sources.databases import ColumnKind, SourceColumn, parse_time_text
from backlogctl.spark_backfill.spark.frames import make_rows, quote

# A *tie* is all rows that `order_by` leaves equal: their order in the log is not known, whatever
# else they are sorted by. Rows of a doubled hour tie too: their times do not say of which of its
# two passes they are.

# Rows may be dated ahead.
_AHEAD = timedelta(days=400)


@dataclass(frozen=True, slots=True)
class Tie:
    """Places `[first, end)` whose rows have no order among themselves."""

    first: int
    end: int


def find_doubled(rules: MessageRules) -> Doubled:
    """The doubled hours of the source's zone; none where the time column has a zone itself."""
    timed = next((c for c in rules.columns if c.name == rules.source.time_column), None)
    return _list_doubled(rules) if timed is None or _is_wall_clock(timed) else ()


def _list_doubled(rules: MessageRules) -> Doubled:
    return find_doubled_times(ZoneInfo(rules.timezone), utc_now() + _AHEAD)


def _is_wall_clock(item: SourceColumn) -> bool:
    """Whether it may hold times without a zone."""
    plain = item.kind in (ColumnKind.TEXT, ColumnKind.OTHER, ColumnKind.DATE)
    return plain or (item.kind is ColumnKind.TIME and not item.zoned)


def list_sort_keys(rules: MessageRules) -> tuple[str, ...]:
    """What tells rows apart, as Spark SQL over the columns of `build_messages`: rows with equal
    keys tie."""
    chain = _list_doubled(rules)
    keys: list[str] = []
    # Behind a time that says nothing the next columns say nothing either.
    blurred: list[str] = []
    for item, name in zip(rules.own_order, rules.order_names(), strict=False):
        plain, begin = name, ""
        if chain and _is_wall_clock(item):
            is_text = name != "time" and item.kind is not ColumnKind.TIME
            begin = _find_begin(parse_time_text(name, rules.timezone) if is_text else name, chain)
            plain = f"coalesce({begin}, {name})"
        keys.append(f"CASE WHEN {' AND '.join(blurred)} THEN {plain} END" if blurred else plain)
        if begin:
            blurred.append(f"{begin} IS NULL")
    return tuple(keys)


def _find_begin(time: str, doubled: Doubled) -> str:
    """Where the doubled hour of a time begins; NULL for a time that is in none. The newest is
    looked at first: most rows need no other."""
    hours = [
        f"WHEN {time} >= {first} THEN CASE WHEN {time} < {end} THEN {first} END"
        for first, end in (map(quote, map(format_time, hour)) for hour in reversed(doubled))
    ]
    return f"CASE {' '.join(hours)} END"


Points = Collection[tuple[int, int]]


def find_ties(ranked: Ranked, points: Points) -> Mapping[int, tuple[Tie, ...]]:
    """The ties that these places (partition, place) cut through, by partition. Two small jobs,
    whatever the table's size: the rows on both sides of each place, then all rows of their ties."""
    sides = {(number, side) for number, at in points for side in (at - 1, at) if side >= 0}
    if not sides:
        return {}
    spark = ranked.frame.sparkSession
    rows = spark.sql(
        "SELECT /*+ BROADCAST(w) */ home, tie, place FROM {left} "
        "JOIN {wanted} w ON home = number AND place = at",
        left=ranked.list_left(),
        wanted=make_rows(spark, sorted(sides), "number int, at long"),
    ).collect()
    ties = {(row["home"], row["place"]): row["tie"] for row in rows}
    cut = {
        (number, tie)
        for number, at in points
        if (tie := ties.get((number, at))) is not None and ties.get((number, at - 1)) == tie
    }
    found: dict[int, list[Tie]] = {}
    for (number, _), tie in sorted(measure_ties(ranked, cut).items()):
        found.setdefault(number, []).append(tie)
    return {number: tuple(here) for number, here in found.items()}


def measure_ties(ranked: Ranked, ties: Points) -> Mapping[tuple[int, int], Tie]:
    """The places of these ties, by partition and the rank that each begins with."""
    if not ties:
        return {}
    spark = ranked.frame.sparkSession
    rows = spark.sql(
        "SELECT /*+ BROADCAST(w) */ home, tie, min(place) AS first, max(place) AS last FROM {left} "
        "JOIN {wanted} w ON home = number AND tie = begin GROUP BY home, tie",
        left=ranked.list_left(),
        wanted=make_rows(spark, sorted(ties), "number int, begin int"),
    ).collect()
    return {(r["home"], r["tie"]): Tie(r["first"], r["last"] + 1) for r in rows}


def list_limits(gaps: Iterable[PlacedGap]) -> set[int]:
    """The places between which the rows of the gaps' edges are open."""
    edges = [edge for gap in gaps for edge in (gap.start, gap.end)]
    return {at for edge in edges for at in (edge.place - edge.before, edge.place + edge.after)}


def open_ties(gaps: Iterable[PlacedGap], ties: Sequence[Tie]) -> tuple[PlacedGap, ...]:
    """The gaps, with all rows of a tie open that an edge, or the end of its open rows, lies in."""
    return tuple(
        replace(gap, start=_open(gap.start, ties), end=_open(gap.end, ties)) for gap in gaps
    )


def _open(edge: Edge, ties: Sequence[Tie]) -> Edge:
    low, high = edge.place - edge.before, edge.place + edge.after
    for tie in ties:
        if tie.first < edge.place - edge.before < tie.end:
            low = tie.first
        if tie.first < edge.place + edge.after < tie.end:
            high = tie.end
    return replace(edge, before=edge.place - low, after=high - edge.place)
