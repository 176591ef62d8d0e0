"""What expired between two samples is told for as long as the samples last."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from backlog.values import PartitionSample, Sample
from monitoring.passed_over import list_possibly_expired
from tests.backlog.ledger.makers import NOON, make_gap, make_sample


def take(second: int, low: int, committed: int, topic_id: str = "topic-id") -> Sample:
    part = PartitionSample(0, low, committed, 10_000, 10_000)
    sample = make_sample(NOON + timedelta(seconds=second))
    return replace(sample, topic_id=topic_id, partitions=(part,))


def test_jumps_over_what_expired_add_up() -> None:
    history = [take(0, 0, 100), take(1, 138, 160), take(2, 138, 190), take(3, 250, 251)]
    (found,) = list_possibly_expired(history, [])
    assert (found.offsets, found.times, found.since) == (38 + 60, 2, NOON)
    assert "up to 98 offsets expired between samples in 2 places" in str(found)


def test_what_was_read_first_and_what_is_recorded_is_not_told() -> None:
    reading = [take(0, 0, 100), take(1, 90, 120), take(2, 120, 150)]
    assert list_possibly_expired(reading, []) == ()
    stopped = [take(0, 0, 100), take(1, 200, 100)]  # a gap is recorded for that
    assert list_possibly_expired(stopped, []) == ()
    jumped = [take(0, 0, 100), take(1, 138, 160)]
    assert list_possibly_expired(jumped, [make_gap(90, 140)]) == ()
    assert list_possibly_expired(jumped, [make_gap(90, 130)]) != ()
    again = [take(0, 0, 100), take(1, 138, 160, "made-anew")]
    assert list_possibly_expired(again, []) == ()


def test_samples_that_were_thinned_say_nothing_of_a_healthy_group() -> None:
    """Two seconds behind, and retention is half an hour: an hour later all of it has expired."""

    def look(second: int, retention: int = 1_800, rate: int = 10) -> Sample:
        part = PartitionSample(
            0, rate * (second - retention), rate * (second - 2), rate * second, rate * second
        )
        return replace(make_sample(NOON + timedelta(seconds=second)), partitions=(part,))

    assert list_possibly_expired([look(second) for second in range(9_000, 40_000, 3_600)], []) == ()
    for retention in (1_800, 240, 120):
        thinned = [look(second, retention) for second in range(9_000, 12_000, 300)]
        assert list_possibly_expired(thinned, []) == (), retention


def test_gaps_of_another_life_hide_nothing() -> None:
    jumped = [take(0, 0, 100), take(1, 138, 160)]
    assert list_possibly_expired(jumped, [make_gap(90, 140, topic_id="before")]) != ()
    assert list_possibly_expired([], []) == ()
