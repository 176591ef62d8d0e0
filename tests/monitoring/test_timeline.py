"""Offsets to times by stored samples."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

from backlog.values import Sample, TimeBounds
from monitoring.timeline import READ_SLACK, bound_times, date_loss, estimate_time
from tests.backlog.ledger.makers import make_gap
from tests.monitoring.test_gaps import START, sample

HIGHS = {0: 0, 60: 100, 120: 100, 180: 300}
SAMPLES = [sample(second, 0, 0, high) for second, high in HIGHS.items()]


def at(second: float) -> datetime:
    return START + timedelta(seconds=second)


def test_bounds_are_the_newest_sample_before_and_the_oldest_after() -> None:
    assert bound_times(SAMPLES, 0, 100, 200) == TimeBounds(at(120), at(180) + READ_SLACK)
    assert bound_times(SAMPLES, 0, 50, 100) == TimeBounds(at(0), at(60) + READ_SLACK)
    assert bound_times(SAMPLES, 0, 50, 101) == TimeBounds(at(0), at(180) + READ_SLACK)


def test_what_the_samples_do_not_reach_is_unknown() -> None:
    assert bound_times(SAMPLES[1:], 0, 50, 400) == TimeBounds(None, None)
    assert bound_times([], 0, 0, 1) == TimeBounds(None, None)
    assert bound_times(SAMPLES, 7, 0, 1) == TimeBounds(None, None)


def test_samples_of_an_earlier_topic_do_not_count() -> None:
    old: list[Sample] = [sample(-60, 0, 0, 40, topic_id="old")]
    assert bound_times([*old, *SAMPLES[1:]], 0, 50, 60) == TimeBounds(None, at(60) + READ_SLACK)


def test_a_time_in_between_is_estimated_by_place() -> None:
    assert estimate_time(SAMPLES, 0, 199) == at(150)
    assert estimate_time(SAMPLES, 0, 300) is None
    assert estimate_time(SAMPLES[1:], 0, 5) is None


def test_a_loss_is_dated_by_the_first_sample_that_missed_it() -> None:
    gap = replace(make_gap(10, 20, topic_id="id-1"), detected_at=at(100))
    samples = [sample(20, 10, 5, 30), sample(30, 11, 5, 30), sample(40, 25, 5, 30)]
    assert date_loss(samples, gap) == at(30)
    assert date_loss(samples[:1], gap) == at(100), "when it was found"
    assert date_loss(samples, replace(gap, topic_id="other")) == at(100)
    assert date_loss(samples, replace(gap, partition=1)) == at(100)
    assert date_loss(samples, replace(gap, start=None, end=None)) == at(100)
