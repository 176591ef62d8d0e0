"""Samples and commit marks."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from itertools import pairwise

import pytest

from backlogctl.ledger import CommitMark, Ledger
from tests.kernel.ledger.makers import NOON, make_sample

HORIZON = timedelta(hours=24)


def test_sample_comes_back_as_it_went_in(ledger: Ledger) -> None:
    first, second = make_sample(NOON, 5, None, 7), make_sample(NOON + timedelta(seconds=30), 6)
    other = make_sample(NOON, 1, stream="invoices")
    for sample in (second, first, other):
        ledger.samples.add(sample)
    assert ledger.samples.history("orders") == (first, second)
    assert ledger.samples.history("orders", since=second.taken_at) == (second,)
    assert ledger.samples.latest("orders") == second
    assert ledger.samples.latest("nothing") is None


def test_times_are_kept_in_utc_and_naive_ones_refused(ledger: Ledger) -> None:
    shanghai = NOON.astimezone(timezone(timedelta(hours=8)))
    ledger.samples.add(make_sample(shanghai))
    kept = ledger.samples.latest("orders")
    assert kept is not None
    assert kept.taken_at == NOON
    assert kept.taken_at.tzinfo is UTC
    with pytest.raises(Exception, match="time zone"):
        ledger.samples.add(make_sample(datetime(2026, 11, 21)))  # noqa: DTZ001 - what is tested


def test_marks_keep_the_highest_and_the_last_commit(ledger: Ledger) -> None:
    def at(minute: int) -> datetime:
        return NOON + timedelta(minutes=minute)

    ledger.samples.add(make_sample(at(0), 10, 3))
    ledger.samples.add(make_sample(at(1), 50, None))
    ledger.samples.add(make_sample(at(2), 20, None))  # rewound
    ledger.samples.add(make_sample(at(0), 15, None))  # late
    ledger.samples.add(make_sample(at(3), None, None))  # vanished
    group = "orders-service"
    assert ledger.samples.committed_marks("orders") == (
        CommitMark("orders", group, "topic-id", 0, 50, 20, at(2)),
        CommitMark("orders", group, "topic-id", 1, 3, 3, at(0)),
    )
    ledger.samples.add(make_sample(at(4), 1, topic_id="z-recreated"))
    assert [mark.topic_id for mark in ledger.samples.committed_marks("orders")] == [
        "topic-id",
        "topic-id",
        "z-recreated",
    ]


def test_thinning_keeps_less_with_age_and_always_the_newest(ledger: Ledger) -> None:
    for minute in range(0, 30 * 60, 4):
        ledger.samples.add(make_sample(NOON - timedelta(minutes=minute), minute))
    ledger.samples.add(make_sample(NOON - timedelta(days=9), 1, stream="asleep"))
    assert ledger.samples.thin(NOON, HORIZON) > 0
    ages = [NOON - sample.taken_at for sample in ledger.samples.history("orders")]
    hour = timedelta(hours=1)
    assert len([age for age in ages if age <= hour]) == 16
    # One in 5 minutes, of samples 4 minutes apart.
    assert len([age for age in ages if hour < age <= HORIZON]) in (276, 277)
    assert len([age for age in ages if age > HORIZON]) in (6, 7)
    assert ledger.samples.latest("asleep") is not None
    assert ledger.samples.thin(NOON, HORIZON) == 0
    assert ledger.samples.committed_marks("orders")[0].max_committed == 1000


def test_samples_older_than_the_horizon_still_date_a_loss(ledger: Ledger) -> None:
    for days in (3, 7, 34, 36):
        ledger.samples.add(make_sample(NOON - timedelta(days=days)))
        ledger.samples.add(make_sample(NOON - timedelta(days=days) + timedelta(minutes=9)))
    ledger.samples.add(make_sample(NOON))
    assert ledger.samples.thin(NOON, HORIZON) == 2 + 3
    ages = [(NOON - sample.taken_at).days for sample in ledger.samples.history("orders")]
    assert ages == [34, 7, 3, 0]
    ledger.samples.add(make_sample(NOON - timedelta(days=50)))
    assert ledger.samples.thin(NOON, timedelta(days=60)) == 0


def test_fault_22_a_commit_beyond_the_end_raises_no_mark(ledger: Ledger) -> None:
    ledger.samples.add(make_sample(NOON, 10, 5000))
    ledger.samples.add(make_sample(NOON + timedelta(minutes=1), 5000, 5000))
    marks = ledger.samples.committed_marks("orders")
    assert [mark.max_committed for mark in marks] == [10, 1000]
    assert [mark.last_committed for mark in marks] == [5000, 5000]


def test_thinning_again_and_again_does_not_eat_the_timeline(ledger: Ledger) -> None:
    for minute in range(0, 10 * 60, 4):
        ledger.samples.add(make_sample(NOON + timedelta(minutes=minute)))
        if minute % 20 == 0:
            ledger.samples.thin(NOON + timedelta(minutes=minute), HORIZON)
    end = NOON + timedelta(hours=10)
    ledger.samples.thin(end, HORIZON)
    times = [sample.taken_at for sample in ledger.samples.history("orders")]
    assert max(b - a for a, b in pairwise(times)) <= timedelta(minutes=64)
