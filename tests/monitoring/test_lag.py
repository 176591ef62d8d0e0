"""Lag, loss and what time is left."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from backlogctl.monitoring.offsets.gaps import find_gaps
from backlogctl.monitoring.offsets.history import READ_SLACK, bound_times, date_loss, estimate_time
from backlogctl.monitoring.offsets.lag import count_lag, read_retention, read_size_limit
from backlogctl.monitoring.verdict.status import Retention
from backlogctl.monitoring.watch.look import StreamContext, assess_stream
from backlogctl.values import Cause, GapState, PartitionSample, Sample, TimeBounds
from tests.kernel.ledger.makers import make_gap
from tests.monitoring.test_gaps import START, sample

# Offsets to times by stored samples.

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


FIELDS = {
    "stream",
    "group",
    "verdict",
    "partitions",
    "lag",
    "lost",
    "seconds_to_drain",
    "seconds_to_loss",
}
PARTITION_FIELDS = {"partition", "log_start", "committed", "end", "lag", "lag_seconds", "lost"}


def build_status(*arguments: Any, **named: Any) -> dict[str, Any]:
    return assess_stream(*arguments, **named).to_json()


def test_fault_24_lag_is_counted_as_the_group_reads() -> None:
    part = PartitionSample(0, low=5, committed=10, lso=20, high=50)
    assert count_lag(part, "read_committed") == 10
    assert count_lag(part, "read_uncommitted") == 40


def test_what_retention_removed_is_loss_and_not_lag() -> None:
    status = build_status(sample(0, 20, 10, 50), "read_committed")
    assert (status["lag"], status["lost"], status["verdict"]) == (30, 10, "lost")


def test_a_recorded_gap_is_counted_once_until_it_is_verified() -> None:
    now = sample(0, 20, 10, 50)
    (gap,) = find_gaps([], now).gaps
    assert build_status(now, "read_committed", gaps=[gap])["lost"] == 10
    verified = replace(gap, state=GapState.VERIFIED)
    assert build_status(now, "read_committed", gaps=[verified])["lost"] == 0
    passed = sample(30, 20, 45, 50)
    assert build_status(passed, "read_committed", gaps=[gap])["lost"] == 10
    assert gap.cause is Cause.EXPIRED


def test_a_gap_of_another_group_is_not_this_groups_loss() -> None:
    now = sample(0, 20, 30, 50)
    (gap,) = find_gaps([], sample(0, 20, 10, 50)).gaps
    assert build_status(now, "read_committed", gaps=[gap])["lost"] == 10
    other = replace(gap, group="the-old-name")
    assert build_status(now, "read_committed", gaps=[other])["lost"] == 0


def test_fault_21_a_total_is_unknown_while_a_written_partition_is() -> None:
    known, unknown = PartitionSample(0, 0, 50, 50, 50), PartitionSample(1, 0, None, 50, 50)
    now = replace(sample(0, 0, 50, 50), partitions=(known, unknown))
    status = build_status(now, "read_committed")
    assert (status["verdict"], status["lag"], status["lost"]) == ("unknown", None, None)
    assert status["seconds_to_drain"] is None
    # Above zero it is "at least" that much.
    behind = replace(now, partitions=(replace(known, low=20, committed=10), unknown))
    status = build_status(behind, "read_committed")
    assert (status["lag"], status["lost"]) == (30, 10)
    idle = replace(now, partitions=(known, replace(unknown, lso=0, high=0)))
    assert build_status(idle, "read_committed")["lag"] == 0


@pytest.mark.parametrize("committed", [None, 0])
def test_fault_27_an_idle_partition_gives_no_nan_and_no_stall(committed: int | None) -> None:
    history = [sample(n, 0, committed, 0) for n in range(3)]
    status = build_status(sample(3, 0, committed, 0), "read_committed", history)
    assert status["verdict"] == "ok"
    assert "NaN" not in json.dumps(status)
    assert "Infinity" not in json.dumps(status)


def test_a_single_sample_tells_what_it_can() -> None:
    status = build_status(sample(0, 0, 10, 50), "read_committed")
    assert set(status) >= FIELDS
    assert set(status["partitions"][0]) >= PARTITION_FIELDS
    assert (status["verdict"], status["lag"], status["lost"]) == ("lagging", 40, 0)
    assert status["seconds_to_drain"] is None
    assert status["partitions"][0]["lag_seconds"] is None


def test_fault_21_without_a_commit_lag_and_loss_are_unknown() -> None:
    status = build_status(sample(0, 0, None, 50), "read_committed")
    assert (status["verdict"], status["lag"], status["lost"]) == ("unknown", None, None)


def test_fault_22_a_commit_beyond_the_end_shows() -> None:
    """How much is unread is not known then: an end may be a wrong answer."""
    status = build_status(sample(0, 0, 60, 50), "read_committed")
    assert (status["verdict"], status["lag"]) == ("beyond_end", None)


def test_a_tail_without_data_is_no_lag() -> None:
    status = build_status(sample(0, 0, 49, 50), "read_committed", around=StreamContext(tails={0}))
    assert (status["lag"], status["verdict"]) == (0, "ok")


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"retention.ms": "3600000"}, timedelta(hours=1)),
        ({"retention.ms": "-1"}, None),
        ({"retention.ms": "3600000", "cleanup.policy": "compact"}, None),
        ({}, None),
    ],
)
def test_retention_is_read_from_the_topic(
    config: dict[str, str], expected: timedelta | None
) -> None:
    assert read_retention(config) == expected
    assert read_retention({"retention.ms": str(2**63 - 1)}) is not None


def test_the_size_limit_is_read_from_the_topic() -> None:
    assert read_size_limit({"retention.bytes": "1000"}) == 1000
    assert read_size_limit({"retention.bytes": "-1"}) is None
    assert read_size_limit({"retention.bytes": "9", "cleanup.policy": "compact"}) is None
    assert Retention().bytes is None
