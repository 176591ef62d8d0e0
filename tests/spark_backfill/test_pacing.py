"""The rate of an injection, without a broker."""

from __future__ import annotations

import pytest

from backlogctl.spark_backfill.injection.job import (
    MAX_TRANSACTION_SECONDS,
    choose_pace,
    choose_slots,
)
from backlogctl.values import Chunk


def chunks(slot: int, *counts: int) -> list[Chunk]:
    """Chunks of a slot that hold so many messages each."""
    return [
        Chunk(slot=slot, number=n, count=count, bytes=1, sha256="", path="", ids_path="")
        for n, count in enumerate(counts)
    ]


def test_without_a_rate_all_slots_with_chunks_left_go_as_fast_as_they_can() -> None:
    assert choose_slots({0: chunks(0, 9), 1: [], 2: chunks(2, 9)}, None) == [0, 2]
    assert choose_pace(100, None, 3, 2) is None


def test_a_wave_holds_what_the_rate_allows_in_one_transaction_and_always_one_chunk() -> None:
    left = {0: chunks(0, 40), 1: chunks(1, 40, 40), 2: chunks(2, 40)}
    assert choose_slots(left, 15) == [1]
    assert choose_slots(left, 20) == [1, 0]
    assert choose_slots(left, 1) == [1]


@pytest.mark.parametrize("parallelism", [1, 2, 8, 64])
@pytest.mark.parametrize("width", [1, 2, 12])
@pytest.mark.parametrize("rate", [300, 1000, 50_000])
def test_a_wave_takes_the_time_that_its_rate_says(width: int, parallelism: int, rate: int) -> None:
    count = int(rate * MAX_TRANSACTION_SECONDS / width)
    pace = choose_pace(count, rate, width, parallelism)
    assert pace is not None
    at_once = min(width, parallelism)
    # Rounds of `at_once` chunks, each as long as its pace says; the last may be smaller.
    seconds = -(-width // at_once) * count / pace
    assert seconds == pytest.approx(width * count / rate, rel=0.35)
    assert count / pace <= MAX_TRANSACTION_SECONDS + 1e-9


def test_a_chunk_is_never_so_slow_that_its_transaction_stays_open() -> None:
    assert choose_pace(100, 1, 1, 1) == 100 / MAX_TRANSACTION_SECONDS
