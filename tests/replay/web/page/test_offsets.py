"""A partition's offsets as segments."""

from __future__ import annotations

import time
from dataclasses import replace
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from backlogctl.monitoring.verdict.status import PartitionStatus
from backlogctl.replay.web.page.streams import (
    Kind,
    Segment,
    join_thin,
    map_partition,
    map_partitions,
)
from backlogctl.values import Gap, GapState
from tests.kernel.ledger.makers import make_gap, make_sample

OFFSET = st.integers(0, 60)


def make_part(low: int, committed: int | None, end: int, number: int = 0) -> PartitionStatus:
    return PartitionStatus(number, low, committed, end, None, None, None)


def show(part: PartitionStatus, *gaps: Gap, first_low: int | None = None) -> list[tuple[str, int]]:
    found = map_partition(part, gaps, first_low)
    return [(segment.kind.value, segment.count) for segment in found.segments]


def test_each_kind_has_its_place() -> None:
    lost = replace(make_gap(10, 30), id="a")
    back = replace(make_gap(40, 45), id="b", state=GapState.VERIFIED)
    waived = replace(make_gap(45, 47), id="c", state=GapState.WAIVED)

    assert show(make_part(60, 80, 100), lost, back, waived, first_low=5) == [
        ("gone", 5),
        ("lost", 20),
        ("gone", 10),
        ("back", 5),
        ("waived", 2),
        ("gone", 13),
        ("read", 20),
        ("unread", 20),
    ]


def test_what_expired_unread_is_lost_before_a_gap_is_written_down() -> None:
    assert show(make_part(60, 40, 100)) == [("lost", 20), ("unread", 40)]


def test_skipped_messages_are_lost_where_they_still_are() -> None:
    assert show(make_part(0, 80, 100), make_gap(20, 50)) == [
        ("read", 20),
        ("lost", 30),
        ("read", 30),
        ("unread", 20),
    ]


def test_without_a_commit_nothing_is_known() -> None:
    assert show(make_part(10, None, 30), first_low=0) == [("gone", 10), ("unknown", 20)]
    assert show(make_part(0, None, 0)) == [], "and nothing was written"


def test_a_settled_gap_long_ago_does_not_stretch_the_bar() -> None:
    old = replace(make_gap(0, 10), state=GapState.VERIFIED)
    assert show(make_part(1000, 1050, 1100), old) == [("read", 50), ("unread", 50)]


def test_bars_share_a_scale_and_ignore_other_topics_of_the_name() -> None:
    sample = make_sample()
    other = make_gap(0, 50, topic_id="an earlier topic")
    short, long = map_partitions(
        [make_part(90, 95, 100), make_part(0, 5, 100, 1)], [other], [sample], "orders-service"
    )

    assert (short.total, long.total) == (100, 100), "the sample saw partition 0 from 0 on"
    assert Kind.LOST not in {segment.kind for segment in short.segments}
    (alone,) = map_partitions([make_part(90, 95, 100)], [], [], "orders-service")
    assert (alone.padding, alone.share(5)) == (0, "500.00")


@given(OFFSET, st.none() | OFFSET, OFFSET, st.lists(st.tuples(OFFSET, OFFSET, st.booleans())))
def test_segments_cover_all_once(
    low: int, committed: int | None, end: int, ranges: list[tuple[int, int, bool]]
) -> None:
    gaps = [
        replace(
            make_gap(min(a, b), max(a, b) + 1), state=GapState.VERIFIED if done else GapState.OPEN
        )
        for a, b, done in ranges
    ]
    found = map_partition(make_part(low, committed, end), gaps)

    cursor = found.oldest
    for segment in found.segments:
        assert segment.start == cursor
        assert segment.count > 0
        cursor = segment.end
    assert cursor == found.end == max(end, low)
    assert all(a.kind is not b.kind for a, b in pairwise(found.segments))
    if not gaps and committed is not None:
        unread = sum(s.count for s in found.segments if s.kind is Kind.UNREAD)
        assert unread == max(0, end - max(committed, low))


def test_of_gaps_that_overlap_the_first_one_counts() -> None:
    first = replace(make_gap(20, 30), id="a", state=GapState.WAIVED)
    second = replace(make_gap(10, 40), id="b", state=GapState.VERIFIED)
    wanted = [("back", 10), ("waived", 10), ("back", 10), ("read", 10), ("unread", 50)]
    part = make_part(10, 50, 100)
    assert show(part, first, second) == wanted
    assert show(part, second, first) == [("back", 30), ("read", 10), ("unread", 50)]


def test_what_is_too_thin_to_see_is_drawn_as_the_worst_in_it() -> None:
    wide, thin = 1000, 1
    cuts = [Segment(Kind.GONE, 0, wide)]
    for number in range(50):
        start = wide + 2 * number
        cuts += [
            Segment(Kind.LOST, start, start + thin),
            Segment(Kind.GONE, start + thin, start + 2),
        ]
    end = wide + 100
    cuts.append(Segment(Kind.READ, end, end + wide))
    joined = join_thin(cuts, 10)
    assert [(one.kind, one.start, one.end, one.mixed) for one in joined] == [
        (Kind.GONE, 0, 1000, False),
        (Kind.LOST, 1000, 1100, True),
        (Kind.READ, 1100, 2100, False),
    ]
    alone = [cuts[0], Segment(Kind.LOST, 1000, 1001), Segment(Kind.READ, 1001, 2100)]
    assert join_thin(alone, 10) == tuple(alone), "a thin one between others is seen"


def test_many_gaps_cost_little_to_draw() -> None:
    gaps = [replace(make_gap(10 * n, 10 * n + 1), id=f"g{n:05}") for n in range(20_000)]
    part = make_part(200_000, 200_000, 200_100)
    start = time.thread_time()  # other threads of these tests work meanwhile
    (found,) = map_partitions([part], gaps, [make_sample()], "orders-service")
    assert time.thread_time() - start < 5, "the more gaps, the more for each of them"
    assert len(found.segments) <= 2000
    assert found.told.startswith("partition 0: partly lost: never read 0 to ")


@given(
    st.lists(st.tuples(st.sampled_from(Kind), st.integers(1, 40)), max_size=30), st.integers(1, 60)
)
def test_joined_segments_cover_the_same_and_hide_no_loss(
    runs: list[tuple[Kind, int]], thin: int
) -> None:
    segments, cursor = [], 0
    for kind, count in runs:
        segments.append(Segment(kind, cursor, cursor + count))
        cursor += count
    joined = join_thin(segments, thin)
    assert [one.end for one in joined[:-1]] == [one.start for one in joined[1:]]
    assert sum(one.count for one in joined) == cursor
    assert all(a.kind is not b.kind for a, b in pairwise(joined))
    for lost in (one for one in segments if one.kind is Kind.LOST):
        at = next(one for one in joined if one.start <= lost.start < one.end)
        assert at.kind is Kind.LOST
