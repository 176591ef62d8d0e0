"""Random tables of one partition whose losses are known, placed and judged as a plan does it."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from backlogctl.spark_backfill.placing.measuring import (
    cut_rows,
    is_disordered,
    is_ordered,
    place_gaps,
)
from backlogctl.spark_backfill.placing.ranking import Anchor, OrderProof, PartitionRows
from backlogctl.spark_backfill.placing.ties import Tie, list_limits, open_ties
from backlogctl.spark_backfill.proof import ENOUGH_SURVIVORS
from backlogctl.spark_backfill.verdict import Tally, VerdictBasis, judge_plan
from backlogctl.values import OffsetRange

HOUR = 3600


@dataclass(frozen=True)
class Row:
    """`key`: what the stream's order says of it; `mark`: its primary key, in no order."""

    offset: int
    key: float
    mark: float


@dataclass(frozen=True)
class Table:
    """Rows in the order of the log, of which those in `[commit, low)` are lost."""

    rows: tuple[Row, ...]
    commit: int
    low: int
    bookmarks: tuple[int, ...]
    kinds: frozenset[str]


def say_wall_clock(at: int) -> int:
    """The clock is set back at second 3600: of two hours the database says the second."""
    said = at + HOUR if 0 <= at < HOUR else at
    return 0 if 0 <= said < 2 * HOUR else said


def make_table(random: Random, *, survivors: int = 130) -> Table:
    """Messages are sent in the order of time. What rows say of it is less: whole seconds or
    minutes, one time for a bulk insert, a wall clock that is set back, an older time (a backfill, a
    row that was restored). The survivors show of this at most the last."""
    handled, lost = random.randrange(40), random.randrange(1, 40)
    total = handled + lost + survivors
    kinds = {kind for kind in ("bulk", "doubled", "coarse", "late") if random.random() < 0.4}
    at, step = random.randrange(-4 * HOUR, HOUR), random.choice([1, 7, 60, 300])
    times: list[int] = []
    for _ in range(total):
        at += random.randrange(1, step + 1)
        times.append(at)
    said = list(times)
    if "bulk" in kinds:
        first = random.randrange(handled + lost)
        for i in range(first, min(total, first + random.randrange(2, 60))):
            said[i] = said[first]
    if "coarse" in kinds:
        unit = random.choice([2, 10, 60, 600])
        said = [value // unit * unit for value in said]
    if "doubled" in kinds:
        said = [say_wall_clock(value) for value in said]
    if "late" in kinds:
        # The survivors show as many that are at least as old.
        some = random.sample(range(handled + lost), random.randrange(1, 1 + min(3, handled + lost)))
        for i in some:
            said[i] = said[max(0, i - random.randrange(1, 30))] - 1
        for i in random.sample(range(survivors // 2), len(some)):
            said[handled + lost + i] = min(said) - 1
    rows = tuple(Row(i, value, random.random()) for i, value in enumerate(said))
    looks = {handled, *random.sample(range(handled + 1), random.randrange(handled // 8 + 1))}
    marks = tuple(sorted(looks)) if random.random() < 0.5 else ()
    return Table(rows, handled, handled + lost, marks, frozenset(kinds))


@dataclass(frozen=True)
class Judged:
    kind: str
    uncertain: int
    missed: int
    doubled: int

    @property
    def is_true(self) -> bool:
        """Whether it may say `exact` or `within`: what is wrong is listed."""
        return not (self.missed or self.doubled)


def judge(table: Table) -> Judged:
    """What a plan says. `missed` and `doubled` count rows that it does not list."""
    low = table.low
    ranked = sorted(
        table.rows, key=lambda r: (r.key, r.offset >= low, r.offset if r.offset >= low else r.mark)
    )
    left = [row for row in ranked if row.offset < low]
    ties = list_ties(left)
    order, before = measure(ranked, left, low)
    if is_disordered(order):
        return Judged("short", 0, 0, 0)
    anchors = []
    for mark in table.bookmarks:
        place = next(i for i, row in enumerate(left) if row.offset == mark)
        tie = next((t for t in ties if t.first <= place < t.end), Tie(place, place + 1))
        anchors.append(Anchor(mark, mark, place, place - tie.first, tie.end - 1 - place))
    part = PartitionRows(0, len(left), low, before, tuple(anchors))
    placed = place_gaps(part, order, [OffsetRange(0, table.commit, low)], countable=True)
    if placed is None:
        return Judged("short", 0, 0, 0)
    cuts = [tie for tie in ties if any(tie.first < at < tie.end for at in list_limits(placed))]
    taken, listed = set[int](), set[int]()
    for cut in cut_rows(0, len(left), open_ties(placed, cuts)):
        offsets = {row.offset for row in left[cut.first : cut.end]}
        taken |= offsets if cut.likely else set()
        listed |= set() if cut.sure else offsets
    ragged = order.compared < ENOUGH_SURVIVORS or order.unsent or not is_ordered(order)
    basis = VerdictBasis(uncertain={0: len(listed)}, ragged="ragged" if ragged else "")
    verdict = judge_plan({0: low - table.commit}, Tally({0: len(taken)}, {}, {}), basis)
    lost = set(range(table.commit, low))
    return Judged(verdict.kind, len(listed), len(lost - taken - listed), len(taken - lost - listed))


def list_ties(left: Sequence[Row]) -> list[Tie]:
    starts = [i for i, row in enumerate(left) if i == 0 or left[i - 1].key != row.key]
    return [Tie(first, end) for first, end in zip(starts, [*starts[1:], len(left)], strict=True)]


def measure(ranked: Sequence[Row], left: Sequence[Row], low: int) -> tuple[OrderProof, int]:
    """As `Measurement` does it in Spark: the order, and the rows before the log's start."""
    seen = [(rank, row) for rank, row in enumerate(ranked) if row.offset >= low]
    position = {offset: i for i, offset in enumerate(sorted(row.offset for _, row in seen))}
    deltas = [i - position[row.offset] for i, (_, row) in enumerate(seen)]
    places = [rank - i for i, (rank, _) in enumerate(seen)]
    near = [i for i, (_, row) in enumerate(seen) if position[row.offset] < 201]
    start = statistics.median_low([seen[i][0] - position[seen[i][1].offset] for i in near])
    middle = statistics.median_low([places[i] for i in near])
    ahead = max(-delta - place for delta, place in zip(deltas, places, strict=True))
    late = max(deltas)
    begins: dict[float, int] = {}
    for rank, row in enumerate(ranked):
        begins.setdefault(row.key, rank)
    behind = [row for row in left if begins[row.key] >= start + late]
    total = sum(map(abs, deltas))
    order = OrderProof(
        compared=len({row.key for _, row in seen}),
        early=max(-min(deltas), middle + ahead),
        late=late,
        mean=total / len(seen),
        disorder=total / len(seen) ** 2,
        unsent=len(behind),
    )
    return order, len(left) - len(behind)
