"""Edges of gaps among rows, bookmarks, and rows that have no place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backlogctl.spark_backfill.placing.measuring import cut_rows, find_edge, is_ordered, place_gaps
from backlogctl.spark_backfill.placing.placement import GapPlacement
from backlogctl.spark_backfill.placing.ranking import (
    Anchor,
    Edge,
    EdgeEvidence,
    OrderProof,
    PartitionRows,
    PlacedGap,
    TimedPlaces,
    Unordered,
    choose_bookmarks,
)
from backlogctl.spark_backfill.request import RebuildOutcome, RebuildRequest, Stretch, count_offsets
from backlogctl.values import Bookmark, OffsetRange
from tests.spark_backfill import world
from tests.spark_backfill.placing.losing import (
    HANDLED,
    LOST,
    PARTITIONS,
    Losing,
    lost_keys,
    make_orders,
    mark_all,
    place,
)

TIGHT = OrderProof(compared=1000)
MESSAGE, MARKER, UNSENT, GONE = "message", "marker", "unsent", "gone"


@dataclass(frozen=True)
class World:
    """What happened in one partition, in its order; the log starts at `low`."""

    kinds: tuple[str, ...]
    low: int

    def rows(self) -> list[int | None]:
        """Rows that are not in the log, each with its offset; None where it was never sent."""
        found: list[int | None] = []
        offset = 0
        for kind in self.kinds:
            if offset >= self.low:
                break
            if kind == UNSENT:
                found.append(None)
                continue
            if kind == MESSAGE:
                found.append(offset)
            offset += 1
        return found

    def part(self, *marks: int) -> PartitionRows:
        """As it is measured, with bookmarks of these committed offsets."""
        rows = self.rows()
        anchors = []
        for committed in marks:
            at = next((o for o in rows if o is not None and o >= committed), None)
            if at is not None:
                anchors.append(Anchor(committed, at, rows.index(at)))
        return PartitionRows(0, len(rows), self.low, len(rows), tuple(anchors))

    def lost(self, gap: OffsetRange) -> set[int]:
        """Places of the rows whose message lies in the gap."""
        return {
            place
            for place, offset in enumerate(self.rows())
            if offset is not None and gap.start <= offset < gap.end
        }


def take(part: PartitionRows, gaps: list[OffsetRange], order: OrderProof = TIGHT) -> set[int]:
    """Places that are put back as is likely."""
    placed = place_gaps(part, order, gaps, countable=True)
    assert placed is not None
    cuts = cut_rows(0, part.rows, placed)
    return {at for cut in cuts if cut.likely for at in range(cut.first, cut.end)}


def find(part: PartitionRows, order: OrderProof, offset: int) -> tuple[str, int, int, int]:
    edge = find_edge(part, order, offset)
    assert edge is not None
    return str(edge.evidence), edge.place, edge.before, edge.after


@st.composite
def partitions(draw: st.DrawFn, *kinds: str) -> World:
    made = draw(st.lists(st.sampled_from([MESSAGE] * 4 + list(kinds)), min_size=1, max_size=60))
    offsets = sum(kind != UNSENT for kind in made)
    return World((*made, MESSAGE), draw(st.integers(0, offsets)))


@given(world=partitions(), data=st.data())
def test_counting_is_right_where_every_offset_is_a_row(world: World, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, world.low))
    end = data.draw(st.integers(start, world.low))
    gap = OffsetRange(0, start, end)
    assert take(world.part(), [gap]) == world.lost(gap)


@given(world=partitions(MARKER, GONE), data=st.data())
def test_bookmarks_are_right_whatever_is_no_row(world: World, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, world.low))
    end = data.draw(st.integers(start, world.low))
    gap = OffsetRange(0, start, end)
    if not any(offset is not None and offset >= end for offset in world.rows()):
        end = world.low
        gap = OffsetRange(0, start, end)
    if not any(offset is not None and offset >= start for offset in world.rows()):
        return  # there is no message that a bookmark could be of
    order = OrderProof(compared=1000, holes=0.2)
    assert take(world.part(start, end), [gap], order) == world.lost(gap)


@given(world=partitions(MARKER, UNSENT, GONE), data=st.data())
def test_a_sharp_edge_is_always_right(world: World, data: st.DataObject) -> None:
    """Whatever happened: an edge without doubt whose check agrees has the right rows behind it."""
    start = data.draw(st.integers(0, world.low))
    marks = data.draw(st.lists(st.integers(0, max(0, world.low - 1)), max_size=4))
    part = world.part(*marks)
    edge = find_edge(part, TIGHT, start)
    assert edge is not None
    if edge.evidence is EdgeEvidence.BOOKMARK and edge.before == edge.after == 0:
        behind = {at for at, offset in enumerate(world.rows()) if (offset or -1) >= start}
        assert behind <= set(range(edge.place, part.rows))
        before = {at for at, o in enumerate(world.rows()) if o is not None and o < start}
        assert before <= set(range(edge.place))


def test_several_gaps_of_one_partition_leave_out_what_was_read_between() -> None:
    world = World((MESSAGE,) * 30, 20)
    gaps = [OffsetRange(0, 3, 6), OffsetRange(0, 10, 14)]
    assert take(world.part(), gaps) == {3, 4, 5, 10, 11, 12, 13}


def test_nothing_of_a_bounded_gap_is_sure() -> None:
    part = World((MESSAGE,) * 30, 20).part()
    gaps = [OffsetRange(0, 0, 6), OffsetRange(0, 10, 14)]
    placed = place_gaps(part, TIGHT, gaps, countable=True, bounded=gaps[:1])
    assert placed is not None
    cuts = cut_rows(0, part.rows, placed)
    sure = {at for cut in cuts if cut.sure for at in range(cut.first, cut.end)}
    likely = {at for cut in cuts if cut.likely for at in range(cut.first, cut.end)}
    assert likely == {*range(6), *range(10, 14)}
    assert sure < set(range(10, 14))


def test_counting_says_how_wrong_it_may_be() -> None:
    part = PartitionRows(0, 100, 100, 100)
    # 3 of 1000 for those not seen by chance: 60 rows may be wrong by one.
    assert find(part, TIGHT, 40) == ("counted", 40, 1, 1)
    unsent = OrderProof(compared=1000, unsent=17)
    assert find(part, unsent, 50) == ("counted", 50, 1, 1)
    assert find(part, OrderProof(compared=100, gone=7), 50) == ("counted", 50, 5, 5)
    loose = OrderProof(compared=1000, early=12, late=2)
    assert find(part, loose, 40) == ("counted", 40, 13, 3)


def test_samples_bound_what_counting_leaves_open() -> None:
    order = OrderProof(compared=100, unsent=20)
    part = PartitionRows(0, 100, 100, 100, timed=(TimedPlaces(40, 38, 43, 38, 43),))
    assert find(part, order, 40) == ("counted", 40, 2, 3)
    wrong = PartitionRows(0, 100, 100, 100, timed=(TimedPlaces(40, 50, 55, 50, 55),))
    edge = find_edge(wrong, order, 40)
    assert edge is not None
    assert (edge.place, edge.check, edge.differs) == (40, EdgeEvidence.SAMPLES, 10)
    # Where control records are seen, offsets are too many: the samples say how far to go.
    holes = OrderProof(compared=100, holes=0.2)
    assert find(wrong, holes, 40)[1] == 52
    assert (
        find(PartitionRows(0, 100, 100, 100, timed=(TimedPlaces(40, 20, 30, 20, 30),)), holes, 40)[
            1
        ]
        == 30
    )


def test_rows_committed_late_may_lie_before_what_samples_say() -> None:
    order = OrderProof(compared=100, unsent=20)
    part = PartitionRows(0, 100, 100, 100, timed=(TimedPlaces(40, 38, 43, 5, 43),))
    assert find(part, order, 40) == ("counted", 40, 14, 3)


def test_rows_marked_late_may_lie_behind_what_samples_say() -> None:
    order = OrderProof(compared=100, unsent=20)
    part = PartitionRows(0, 100, 100, 100, timed=(TimedPlaces(40, 38, 43, 38, 90),))
    assert find(part, order, 40) == ("counted", 40, 2, 14)


def test_two_anchors_that_disagree_leave_open_what_lies_between() -> None:
    """A row of the rows between 20 and the log's start was never sent; or two messages lost
    theirs: counting from either side gives another place."""
    marks = (Anchor(20, 20, 20),)
    few = PartitionRows(0, 94, 100, 94, bookmarks=marks)
    assert find(few, TIGHT, 70) == ("counted", 64, 1, 7)
    many = PartitionRows(0, 106, 100, 106, bookmarks=marks)
    assert find(many, TIGHT, 70) == ("counted", 76, 7, 1)


def test_a_first_offset_is_counted_as_any_other() -> None:
    """As many rows as offsets may be one that was never sent and one that is gone."""
    assert find(PartitionRows(0, 100, 100, 100), TIGHT, 0) == ("counted", 0, 0, 1)
    fewer = OrderProof(compared=1000, holes=0.1)
    assert find(PartitionRows(0, 90, 100, 90), fewer, 0) == ("counted", 0, 0, 11)
    known = PartitionRows(0, 100, 100, 100, bookmarks=(Anchor(0, 0, 0),))
    assert find(known, TIGHT, 0) == ("bookmark", 0, 0, 0)


def test_gaps_that_meet_have_no_edge_between_them() -> None:
    part = World((MESSAGE,) * 300, 200).part()
    gaps = [OffsetRange(0, 50, 120), OffsetRange(0, 120, 200)]
    order = OrderProof(compared=1000, early=3, late=3)
    placed = place_gaps(part, order, gaps, countable=True)
    whole = place_gaps(part, order, [OffsetRange(0, 50, 200)], countable=True)
    assert placed == whole
    apart = place_gaps(part, order, gaps, countable=True, bounded=gaps[:1])
    assert apart is not None
    assert [gap.bounded for gap in apart] == [True, False]


def test_a_bookmark_of_a_displaced_row_gives_way_to_counting() -> None:
    loose = OrderProof(compared=1000, early=12)
    part = PartitionRows(0, 100, 100, 100, bookmarks=(Anchor(40, 40, 31),))
    edge = find_edge(part, loose, 40)
    assert edge is not None
    assert (edge.evidence, edge.place, edge.differs) == (EdgeEvidence.COUNTED, 40, -9)
    far = PartitionRows(0, 100, 100, 100, bookmarks=(Anchor(40, 40, 20),))
    edge = find_edge(far, loose, 40)
    assert edge is not None
    assert (edge.evidence, edge.place, edge.differs) == (EdgeEvidence.BOOKMARK, 20, 20)


def test_a_bookmark_that_its_neighbours_contradict_is_dropped() -> None:
    """Its row stands 17 places from its message, further than any survivor showed."""
    loose = OrderProof(compared=1000, early=12)
    marks = (Anchor(20, 20, 20), Anchor(40, 40, 23))
    part = PartitionRows(0, 100, 100, 100, bookmarks=marks)
    placed = place_gaps(part, loose, [OffsetRange(0, 40, 100)], countable=True)
    assert placed is not None
    assert (placed[0].start.evidence, placed[0].start.place) == (EdgeEvidence.COUNTED, 40)
    # In tight order it is what lies between the others that differs: a row that was never sent.
    tight = place_gaps(part, TIGHT, [OffsetRange(0, 40, 100)], countable=True)
    assert tight is not None
    assert (tight[0].start.evidence, tight[0].start.place) == (EdgeEvidence.BOOKMARK, 23)


def test_without_a_way_to_count_only_bookmarks_place() -> None:
    part = PartitionRows(0, 100, 100, 100, bookmarks=(Anchor(38, 40, 31),))
    assert find_edge(part, TIGHT, 60, countable=False) is None
    edge = find_edge(part, TIGHT, 39, countable=False)
    assert edge is not None
    assert (edge.place, edge.check) == (31, None)


def test_offsets_of_earlier_recoveries_are_no_rows() -> None:
    ours = (Stretch(0, 10, 21, 11),)
    assert count_offsets(0, 40, ours) == 29
    part = PartitionRows(0, 29, 40, 29, ours=ours)
    assert find(part, TIGHT, 5)[1] == 5
    assert find(part, TIGHT, 25)[1] == 14


@pytest.mark.parametrize(
    ("order", "ordered"),
    [
        (OrderProof(compared=19), False),
        (OrderProof(compared=20), True),
        (OrderProof(compared=150, late=75, mean=3.0, disorder=0.02), True),
        (OrderProof(compared=1800, late=140, mean=50.0, disorder=0.33), False),
    ],
)
def test_an_order_is_proved_by_survivors(order: OrderProof, ordered: bool) -> None:
    assert is_ordered(order) is ordered


def bookmark(partition: int, offset: int, digest: str = "") -> Bookmark:
    return Bookmark(partition, offset, offset, digest or f"{partition}-{offset}")


def test_each_edge_has_the_bookmarks_around_it() -> None:
    marks = [bookmark(0, offset) for offset in range(0, 10_000, 10)]
    gaps = [OffsetRange(0, 500, 700), OffsetRange(0, 9_000, 9_500)]
    chosen = [item.offset for item in choose_bookmarks(marks, gaps, {0: 9_600})]
    assert {500, 490, 700, 710, 9_000, 9_500} <= set(chosen)
    assert len(chosen) <= 4 * 16
    assert max(chosen) < 9_600, "what is in the log is known by its message"


def test_what_is_noted_in_two_partitions_says_of_none_where_its_row_belongs() -> None:
    marks = [bookmark(0, 5, "same"), bookmark(0, 6), bookmark(1, 7, "same"), bookmark(2, 8)]
    gaps = [OffsetRange(number, 5, 9) for number in (0, 1)]
    chosen = choose_bookmarks(marks, gaps, {0: 100, 1: 100, 2: 100})
    assert [item.offset for item in chosen] == [6]


# Their sender did not know its column yet.
AMONG_LOST = range(LOST - 60, LOST, 5)
AMONG_HANDLED = range(HANDLED - 60, HANDLED, 5)


class Losses:
    """Rows are in the order of `sequence`, a column that was added later."""

    def __init__(self, losing: Losing) -> None:
        self._losing = losing
        self.rows = make_orders()
        self.gaps = losing.lose(self.rows)
        self.marks = mark_all(self.rows, self.gaps)

    def clear(self, numbers: range) -> dict[int, int]:
        """These have NULL there; returns how many of each partition."""
        listed = ", ".join(map(str, numbers))
        world.run_sql(
            self._losing.shop,
            "ALTER TABLE orders ADD COLUMN sequence BIGINT",
            f"UPDATE orders SET sequence = order_id WHERE order_id NOT IN ({listed})",
        )
        own = [place(self.rows[number - 1]) for number in numbers]
        return {partition: own.count(partition) for partition in range(PARTITIONS)}

    def plan(
        self, bookmarks: tuple[Bookmark, ...] = (), **source: Any
    ) -> tuple[RebuildRequest, RebuildOutcome]:
        order = {"order_by": ["sequence"], **source}
        request = self._losing.open(self.gaps, bookmarks=bookmarks, source=order)
        return request, self._losing.plan(request)


@pytest.fixture
def losses(losing: Losing) -> Losses:
    return Losses(losing)


def test_over_rows_without_a_place_nothing_is_counted(losses: Losses) -> None:
    """They would stand first, as handled ones, and as many handled ones be put back for them."""
    cleared = losses.clear(AMONG_LOST)
    request, outcome = losses.plan()
    assert all(cleared.values())
    assert set(lost_keys(losses.rows)) <= set(world.keys_of(request))
    assert {part.evidence for part in outcome.partitions} == {"samples"}
    assert outcome.verdict not in {"exact", "within"}
    told = f"{len(AMONG_LOST)} rows in partitions 0, 1, 2 with NULL in sequence: "
    assert any(reason.startswith(told) for reason in outcome.reasons)
    assert told in outcome.evidence


def test_where_they_are_of_one_partition_the_others_are_counted(losses: Losses) -> None:
    number = next(n for n in AMONG_LOST if place(losses.rows[n - 1]) == 1)
    losses.clear(range(number, number + 1))
    request, outcome = losses.plan()
    found = set(world.keys_of(request))
    assert set(lost_keys(losses.rows)) <= found
    assert [part.evidence for part in outcome.partitions] == ["counted", "samples", "counted"]
    others = {key for key in found if place(losses.rows[key - 1]) != 1}
    assert others == set(lost_keys(losses.rows, [0, 2]))


def test_a_bookmark_is_as_good_as_it_was(losses: Losses) -> None:
    losses.clear(AMONG_HANDLED)
    request, outcome = losses.plan(losses.marks)
    assert world.keys_of(request) == lost_keys(losses.rows)
    assert (outcome.verdict, outcome.reasons) == ("exact", ())
    assert "with NULL in sequence" in outcome.evidence


def test_a_lost_row_without_a_place_is_missing_in_the_count(losses: Losses) -> None:
    cleared = losses.clear(AMONG_LOST)
    request, outcome = losses.plan(losses.marks)
    assert set(world.keys_of(request)) == set(lost_keys(losses.rows)) - set(AMONG_LOST)
    assert outcome.verdict == "short"
    assert {part.partition: part.shortfall for part in outcome.partitions} == cleared


def test_a_bookmark_of_a_row_without_a_place_says_nothing(losses: Losses) -> None:
    """Such a row stands beside another one, whatever their order was in the log."""
    first = losses.gaps[0]
    own = [row for row in losses.rows if place(row) == first.partition]
    number = own[first.start or 0]["order_id"]
    losses.clear(range(number, number + 1))
    request, outcome = losses.plan(losses.marks)
    assert set(lost_keys(losses.rows)) <= set(world.keys_of(request))
    assert [part.evidence for part in outcome.partitions] == ["samples", "bookmark", "bookmark"]
    assert outcome.verdict not in {"exact", "within"}


def test_only_where_bookmarks_are_sharp_no_other_row_stands_for_one_without_a_place() -> None:
    end = Edge(9, 9, EdgeEvidence.LOG)
    sharp = PlacedGap(Edge(5, 5, EdgeEvidence.BOOKMARK), end)
    open_ = PlacedGap(Edge(5, 5, EdgeEvidence.BOOKMARK, before=1), end)
    unordered = dict.fromkeys(range(3), Unordered(1, ("sequence",)))
    gaps = {0: (sharp,), 1: (sharp, open_), 2: None, 3: None}
    placement = GapPlacement(cast(Any, None), gaps, unordered=unordered)
    assert placement.misplaced == (1, 2)
