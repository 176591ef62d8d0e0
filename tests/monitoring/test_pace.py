"""How fast a group read while it ran."""

from __future__ import annotations

from datetime import timedelta

import pytest

from backlog.values import PartitionSample, Sample
from monitoring.pace import measure_pace
from tests.backlog.ledger.makers import NOON


def take(seconds: float, *parts: tuple[int | None, int], topic_id: str = "topic-id") -> Sample:
    """A sample so many seconds after noon of (committed, high) of each partition."""
    partitions = tuple(
        PartitionSample(number, 0, committed, high, high)
        for number, (committed, high) in enumerate(parts)
    )
    at = NOON + timedelta(seconds=seconds)
    return Sample("orders", "main", "orders", "service", topic_id, at, partitions)


def test_a_running_group_is_measured_over_the_whole_window() -> None:
    pace = measure_pace(
        [
            take(0, (0, 100), (10, 500)),
            take(60, (60, 400), (70, 500)),
            take(120, (60, 700), (70, 500)),
        ],
        running=True,
    )
    assert (pace.consumed, pace.seconds) == (1.0, 120.0)
    assert pace.produced == {0: 5.0, 1: 0.0}
    assert pace.produced_per_second == 5.0


def test_the_time_after_a_crash_says_nothing_about_speed() -> None:
    samples = [take(0, (0, 900)), take(60, (0, 900)), take(120, (600, 900)), take(600, (600, 1500))]
    stopped = measure_pace(samples, running=False)
    assert (stopped.consumed, stopped.seconds) == (10.0, 60.0)
    assert stopped.produced == {0: 1.0}
    assert measure_pace(samples, running=True).consumed == 1.0


@pytest.mark.parametrize(
    "samples",
    [
        [],
        [take(0, (5, 10))],
        [take(0, (None, 10)), take(60, (None, 20))],
        [take(0, (5, 10), topic_id="gone"), take(60, (9, 20))],
        [take(-3600, (5, 10)), take(60, (9, 20))],
    ],
)
def test_fault_27_unknown_is_not_zero(samples: list[Sample]) -> None:
    for running in (True, False):
        assert measure_pace(samples, running).consumed is None


def test_a_group_that_stood_still_has_no_speed() -> None:
    samples = [take(0, (5, 10)), take(60, (5, 20))]
    assert measure_pace(samples, running=True).consumed == 0.0
    assert measure_pace(samples, running=False).consumed is None
    # An operator's rewind is no consumption.
    assert measure_pace([take(0, (9, 10)), take(60, (5, 20))], running=True).consumed == 0.0
