"""A stream's past."""

from __future__ import annotations

from datetime import timedelta
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from backlogctl.monitoring.offsets.history import estimate_time
from backlogctl.replay.web.page.streams import (
    measure_ages,
    measure_left,
    read_history,
    sum_lag,
    thin,
)
from backlogctl.values import PartitionSample, Sample
from tests.kernel.ledger.makers import NOON, make_sample

STEP = timedelta(minutes=1)


def take(minute: int, *parts: tuple[int | None, int]) -> Sample:
    """Partitions as (committed, end)."""
    rows = (PartitionSample(n, 0, at, end, end) for n, (at, end) in enumerate(parts))
    return Sample("s", "c", "t", "g", "id", NOON + minute * STEP, tuple(rows))


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=12))
def test_ages_are_those_of_the_timeline(moves: list[tuple[int, int]]) -> None:
    samples: list[Sample] = []
    committed = end = 0
    for minute, (written, read) in enumerate(moves):
        end += written
        committed = min(end, committed + read)
        samples.append(take(minute, (committed, end)))

    for at, age in measure_ages(samples, samples, "read_committed"):
        sample = next(one for one in samples if one.taken_at == at)
        part = sample.partitions[0]
        assert part.committed is not None
        if part.committed == part.high:
            assert age == 0
            continue
        written_at = estimate_time(samples, 0, part.committed, "id")
        if written_at is None:
            assert age is None
        else:
            assert age is not None
            assert abs(age - (at - written_at).total_seconds()) < 0.001


def test_the_oldest_partition_counts_and_an_unknown_age_is_told_as_such() -> None:
    samples = [take(0, (0, 0), (0, 0)), take(10, (0, 10), (10, 10)), take(20, (0, 10), (10, 20))]
    ages = [age for _, age in measure_ages(samples, samples, "read_committed")]
    assert ages == [0, 9 * 60, 19 * 60]

    late = samples[1:]
    assert [age for _, age in measure_ages(late, late, "read_committed")] == [None, None]


def test_lag_is_of_the_partitions_with_a_commit() -> None:
    assert sum_lag(take(0, (4, 10), (None, 50)), "read_committed") == 6
    assert sum_lag(take(0, (None, 50)), "read_committed") is None


def test_thinning_keeps_the_ends_and_spreads_the_rest() -> None:
    samples = [make_sample(NOON + n * STEP) for n in range(1000)]
    kept = thin(samples, 100)
    assert len(kept) <= 100
    assert (kept[0], kept[-1]) == (samples[0], samples[-1])
    gaps = {b.taken_at - a.taken_at for a, b in pairwise(kept)}
    assert max(gaps) <= 12 * STEP
    assert thin(samples[:7], 100) == samples[:7]


def test_what_is_left_is_the_retention_without_the_age() -> None:
    ages = ((NOON, 0.0), (NOON + STEP, 50.0), (NOON + 2 * STEP, None), (NOON + 3 * STEP, 70.0))
    left = [seconds for _, seconds in measure_left(ages, timedelta(seconds=60))]
    assert left == [60, 10, None, 0]

    samples = [take(0, (0, 0)), take(10, (0, 10)), take(20, (0, 20))]
    drawn = read_history(samples, "read_committed", timedelta(hours=1), NOON)
    assert drawn.left is not None
    assert "until retention deletes" in drawn.left.caption
    assert read_history(samples, "read_committed", None, NOON).left is None
