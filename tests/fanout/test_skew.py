"""The share of one key, from a sample."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from backlogctl.clock import Deadline
from backlogctl.fanout.layout import PLACES, Skew, measure_skew, sample_keys
from backlogctl.kafka.peek import Peeked


def test_a_key_counts_by_its_partitions_part_of_the_lag() -> None:
    keys: dict[int, Sequence[bytes | None]] = {
        0: [b"hot"] * 30 + [b"a", b"b"] * 5,
        1: [b"c", None] * 20,
    }
    found = measure_skew(keys, {0: 900, 1: 100})
    assert found.looked == 80
    assert round(found.share, 3) == 0.675  # three quarters of nine tenths


def test_messages_without_a_key_and_a_few_of_one_are_nobodys() -> None:
    assert measure_skew({0: [None] * 50 + [b"a"] * 9}, {0: 59}) == Skew(0.0, 59)
    assert measure_skew({0: [], 1: []}, {0: 5, 1: 0}) == Skew()


def test_it_looks_all_over_the_range() -> None:
    asked: list[int] = []

    def peek(starts: Mapping[int, int], limit: Deadline) -> Mapping[int, Iterable[Peeked]]:
        asked.append(starts[0])
        return {0: [Peeked(starts[0], b"k", None)]}

    assert sample_keys(peek, {0: (100, 1100)}) == {0: [b"k"] * PLACES}
    assert asked == [100, 300, 500, 700, 900]
