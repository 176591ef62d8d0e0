"""The comparison of what was lost with what was rebuilt, partition by partition (P2.10); pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from backlog.values import OffsetRange
from spark_backfill.request import PartitionOutcome

EXACT = "exact"
SHORT = "short"
SURPLUS = "surplus"


@dataclass(frozen=True, slots=True)
class Tally:
    """What was counted, by partition. A partition that is missing has none.

    `unplaced` quarantined rows have no partition, since their key could not be read.
    """

    rebuilt: Mapping[int, int]
    surviving: Mapping[int, int]
    quarantined: Mapping[int, int]
    unplaced: int = 0
    injected: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class VerdictBasis:
    """What is known about the inputs of the comparison.

    Attributes:
        sharp: the evidence at the lower bound is sharp (P2.10).
        bounded: some gap's range is itself only an upper bound.
        holes: why offsets in the ranges need not be messages; empty where they are.
        collapsible: rows are mutable and restated, so one may stand for several messages.
        spread: messages without a key were spread, their partition is a guess.
        unproved: why the rules are not proved on survivors; empty where they are.
    """

    sharp: bool
    bounded: bool = False
    holes: str = ""
    collapsible: bool = False
    spread: bool = False
    unproved: str = ""


@dataclass(frozen=True, slots=True)
class RebuildVerdict:
    """`kind` is exact, short or surplus; `reasons` say why it is not exact."""

    kind: str
    partitions: tuple[PartitionOutcome, ...]
    reasons: tuple[str, ...]


def count_expected(ranges: Sequence[OffsetRange]) -> dict[int, int]:
    """Offsets lost by partition; ranges that overlap count once."""
    expected: dict[int, int] = {}
    last: dict[int, int] = {}
    for item in sorted(ranges, key=lambda r: (r.partition, r.start, r.end)):
        start = max(item.start, last.get(item.partition, item.start))
        expected[item.partition] = expected.get(item.partition, 0) + max(0, item.end - start)
        last[item.partition] = max(item.end, last.get(item.partition, item.end))
    return expected


def judge_plan(expected: Mapping[int, int], tally: Tally, basis: VerdictBasis) -> RebuildVerdict:
    """Compares per partition: equal totals prove nothing, since errors cancel out.

    Args:
        expected: offsets of the gaps by partition; a partition without a gap is not in it.
    """
    numbers = sorted({*expected, *tally.rebuilt, *tally.quarantined})
    partitions = tuple(_judge_partition(number, expected, tally, basis) for number in numbers)
    surplus = sum(item.surplus for item in partitions)
    shortfall = sum(item.shortfall for item in partitions)
    quarantined = sum(item.quarantined for item in partitions) + tally.unplaced
    collapsed = sum(item.collapsed for item in partitions)
    reasons: list[str] = []
    if surplus:
        where = [item.partition for item in partitions if item.surplus]
        reasons.append(
            f"{surplus} rebuilt messages more than were lost, in partitions {_join(where)}: "
            "rows that were read before, or whose message was never sent"
        )
    if shortfall:
        before = sum(min(p.shortfall, tally.injected.get(p.partition, 0)) for p in partitions)
        reasons.append(_explain_shortfall(shortfall, before, collapsed, quarantined, basis))
    elif basis.holes:
        reasons.append(f"offsets are at most that many messages: {basis.holes}")
    if quarantined:
        reasons.append(f"{quarantined} rows cannot be built and are in quarantine")
    if basis.bounded:
        reasons.append("a gap's range is an upper bound: the group may have read some of it")
    if basis.spread:
        reasons.append("messages without a key were spread: their old partition is unknown")
    if not basis.sharp:
        # A consumed row may have changed since, so that evidence is sharp for fixed rows only.
        more = "let `backlogctl watch` run" if basis.collapsible else "add `consumed` evidence"
        reasons.append(f"where the loss begins is known no better than the margin: {more}")
    if basis.unproved:
        reasons.append(f"the rules are not proved: {basis.unproved}")
    kind = SURPLUS if surplus else SHORT if reasons else EXACT
    return RebuildVerdict(kind, partitions, tuple(reasons))


def _judge_partition(
    number: int, expected: Mapping[int, int], tally: Tally, basis: VerdictBasis
) -> PartitionOutcome:
    lost = expected.get(number, 0)
    rebuilt = tally.rebuilt.get(number, 0)
    surviving = tally.surviving.get(number, 0)
    quarantined = tally.quarantined.get(number, 0)
    shortfall = max(0, lost - rebuilt)
    # A lost message whose row has a newer one, rebuilt or in the log, is covered by that one.
    injected = tally.injected.get(number, 0)
    may_collapse = basis.collapsible and rebuilt + surviving + injected > 0
    return PartitionOutcome(
        partition=number,
        expected=lost,
        rebuilt=rebuilt,
        surviving=surviving,
        quarantined=quarantined,
        collapsed=max(0, shortfall - quarantined) if may_collapse else 0,
        surplus=max(0, rebuilt - lost),
        shortfall=shortfall,
    )


def _explain_shortfall(
    shortfall: int, before: int, collapsed: int, quarantined: int, basis: VerdictBasis
) -> str:
    may = []
    if before:
        may.append(f"up to {before} put back by an earlier recovery")
    if collapsed:
        may.append(f"up to {collapsed} collapsed (one row stands for several messages)")
    if quarantined:
        may.append(f"{quarantined} in quarantine")
    if basis.holes:
        may.append(f"at most {shortfall}, control records included ({basis.holes})")
    may.append("rows that are gone from the table are unrecoverable")
    return f"{shortfall} lost offsets have no rebuilt message: {'; '.join(may)}"


def _join(numbers: Sequence[int]) -> str:
    shown = ", ".join(str(number) for number in numbers[:10])
    return f"{shown}, ..." if len(numbers) > 10 else shown
