"""Pieces cover the ranges, each offset once, whatever was done before."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from backlogctl.spark_backfill.archive.job import (
    Piece,
    find_rest,
    list_overlaps,
    split_ranges,
    sum_ranges,
)
from backlogctl.values import OffsetRange

SPANS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 50), st.integers(0, 400)), max_size=6)


def lay_out(spans: list[tuple[int, int, int]]) -> list[OffsetRange]:
    """Ranges that do not overlap: (partition, offsets left out, offsets taken)."""
    at: dict[int, int] = {}
    ranges = []
    for partition, gap, count in spans:
        start = at.get(partition, 0) + gap
        at[partition] = start + count
        ranges.append(OffsetRange(partition, start, start + count))
    return ranges


def offsets(ranges: list[OffsetRange]) -> list[tuple[int, int]]:
    return sorted((r.partition, at) for r in ranges for at in range(r.start, r.end))


@given(SPANS, st.one_of(st.none(), st.floats(0.5, 1000)), st.integers(1, 5000), st.data())
def test_what_is_cut_and_what_is_left_are_the_ranges(
    spans: list[tuple[int, int, int]], size: float | None, file_bytes: int, data: st.DataObject
) -> None:
    ranges = lay_out(spans)
    pieces = split_ranges(ranges, size, file_bytes)
    assert offsets(pieces) == offsets(ranges)
    assert all(piece.count for piece in pieces)
    if size is not None:
        most = max(1, round(file_bytes / size))
        assert all(piece.count <= most for piece in pieces)
    chosen = data.draw(st.sets(st.sampled_from(pieces))) if pieces else set()
    done = [Piece(p.partition, p.start, p.end, count=p.count) for p in chosen]
    rest = find_rest(ranges, done)
    assert offsets([*rest, *chosen]) == offsets(ranges)
    assert list_overlaps(done) == []
    whole = [Piece(p.partition, p.start, p.end, count=p.count) for p in pieces]
    assert sum(item.count for item in sum_ranges(ranges, whole)) == len(offsets(ranges))


def test_neighbours_are_of_different_partitions() -> None:
    ranges = [OffsetRange(0, 0, 30), OffsetRange(1, 0, 20), OffsetRange(2, 5, 5)]
    cut = split_ranges(ranges, 1.0, 10)
    assert [piece.partition for piece in cut] == [0, 1, 0, 1, 0]
    assert [piece.start for piece in cut if piece.partition == 0] == [0, 10, 20]


def test_an_offset_that_is_in_two_pieces_is_found() -> None:
    first, second, third = Piece(0, 0, 10), Piece(0, 9, 20), Piece(1, 5, 8)
    assert list_overlaps([third, second, first]) == [(first, second)]


def test_times_that_are_no_times_are_unknown() -> None:
    ranges = [OffsetRange(0, 0, 2)]
    (told,) = sum_ranges(ranges, [Piece(0, 0, 2, 2, -1, 2**62)])
    assert told.first_time is not None
    assert told.last_time is None
