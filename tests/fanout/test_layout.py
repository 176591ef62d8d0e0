"""Layouts of an expansion: what holds for every backlog."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backlogctl.clock import Deadline
from backlogctl.fanout.keys import PLACES, Skew, measure_key_skew, sample_keys
from backlogctl.fanout.layout import (
    CANARY_AT_LEAST,
    Load,
    cut_canary,
    find_smallest_factor,
    is_won,
    plan_layout,
)
from backlogctl.fanout.retention import TimeToLoss, UnreadRange, find_time_to_loss, needs_hold
from backlogctl.kafka.peek import Peeked
from tests.kit.ledger import NOON

LAGS = st.dictionaries(st.integers(0, 50), st.integers(0, 10**9), min_size=1, max_size=20)
RATES = st.floats(0.01, 1e6)
LOADS = st.builds(
    Load,
    lag=LAGS,
    rate_per_consumer=RATES,
    produced_per_second=st.floats(0, 1e6),
    replicas=st.integers(1, 100),
    max_consumers=st.none() | st.integers(1, 1000),
    seconds_to_loss=st.none() | st.floats(0, 1e7),
)
FACTORS = st.integers(1, 1000)


@given(LOADS, FACTORS)
def test_no_consumer_is_idle_and_the_cap_holds(load: Load, factor: int) -> None:
    layout = plan_layout(load, factor)
    assert layout.partitions == load.partitions * factor
    assert 1 <= layout.consumers <= min(layout.partitions, load.replicas * factor)
    assert layout.consumers <= (load.max_consumers or layout.consumers)


@given(LOADS, FACTORS)
def test_a_larger_factor_is_never_slower(load: Load, factor: int) -> None:
    small, large = plan_layout(load, factor), plan_layout(load, min(1000, factor * 2))
    if small.seconds_expanded is not None:
        assert large.seconds_expanded is not None
        assert large.seconds_expanded <= small.seconds_expanded
    assert not small.wins or large.wins


@given(LOADS, FACTORS)
def test_a_factor_wins_from_the_smallest_on(load: Load, factor: int) -> None:
    layout = plan_layout(load, factor)
    if load.seconds_to_loss is None:
        assert (layout.wins, layout.smallest_factor) == (None, None)
        return
    smallest = find_smallest_factor(load)
    assert layout.wins == (smallest is not None and factor >= smallest)
    assert layout.wins == is_won(layout.seconds_expanded, load.seconds_to_loss)


@given(LOADS)
def test_without_cap_a_factor_of_one_changes_nothing(load: Load) -> None:
    layout = plan_layout(replace(load, max_consumers=None), 1)
    assert layout.seconds_expanded == layout.seconds_now


@given(LAGS, RATES)
def test_the_canary_is_split_to_the_message(lag: dict[int, int], rate: float) -> None:
    canary = cut_canary(lag, rate)
    backlog = sum(lag.values())
    assert sum(canary.partitions.values()) == canary.messages
    assert min(backlog, CANARY_AT_LEAST) <= canary.messages <= backlog
    assert canary.messages <= max(CANARY_AT_LEAST, backlog / 4)
    assert all(0 < count <= lag[p] for p, count in canary.partitions.items())
    for partition, behind in lag.items():
        exact = canary.messages * behind / backlog if backlog else 0
        assert abs(canary.partitions.get(partition, 0) - exact) < 1.000001


def test_figures_of_a_plain_case() -> None:
    load = Load({0: 600_000, 1: 300_000, 2: 0}, 100, 100, replicas=3, seconds_to_loss=1000)
    layout = plan_layout(load, 10)
    assert (layout.partitions, layout.consumers) == (30, 30)
    assert layout.seconds_now == 4500
    assert layout.seconds_expanded == pytest.approx(310.3, abs=0.1)
    assert (layout.smallest_factor, layout.wins) == (4, True)
    assert (layout.canary.messages, layout.canary.partitions) == (1000, {0: 667, 1: 333})
    assert plan_layout(load, 3).wins is False
    capped = plan_layout(replace(load, max_consumers=8), 10)
    assert (capped.partitions, capped.consumers, capped.smallest_factor) == (30, 8, None)
    # Ten consumers on three partitions are three and seven idle ones.
    assert plan_layout(replace(load, replicas=10), 10).consumers == 30
    # As fast as it is written is not fast enough.
    assert plan_layout(replace(load, produced_per_second=300), 1).seconds_now is None


def test_fault_27_nothing_behind_is_drained_at_once() -> None:
    layout = plan_layout(Load({0: 0, 1: 0}, 1.0, 1e6, replicas=1, seconds_to_loss=0.0), 10)
    assert (layout.seconds_now, layout.seconds_expanded) == (0.0, 0.0)
    assert (layout.canary.messages, layout.canary.partitions) == (0, {})


UNREAD = UnreadRange(0, log_start=0, start=500, end=1000, high=1000, bytes=1_000_000)


def test_the_earliest_loss_counts_by_time_or_by_size() -> None:
    young = replace(UNREAD, oldest_at=NOON - timedelta(hours=1), produced_per_second=10.0)
    old = replace(young, partition=1, oldest_at=NOON - timedelta(hours=5))
    day = timedelta(days=1)
    assert find_time_to_loss([young, old], day, None, NOON) == TimeToLoss(19 * 3600, "time", True)
    # 500 offsets of 1000 bytes are unread, 10 more come each second.
    assert find_time_to_loss([young, old], day, 600_000, NOON) == TimeToLoss(10.0, "size", True)
    assert find_time_to_loss([young], day, 400_000, NOON) == TimeToLoss(0.0, "size", True)
    read = replace(old, start=1000)
    assert find_time_to_loss([read], day, 1, NOON).seconds is None
    assert find_time_to_loss([young], None, None, NOON) == TimeToLoss(None, None, False)


def test_fault_27_an_idle_partition_is_no_loss_by_size() -> None:
    idle = replace(UNREAD, produced_per_second=0.0)
    assert find_time_to_loss([idle], None, 600_000, NOON) == TimeToLoss(None, None, True)
    never = replace(UNREAD, start=0, end=0, high=0, bytes=0)
    assert find_time_to_loss([never], None, 600_000, NOON).seconds is None


def test_retention_is_held_unless_there_is_time_to_spare() -> None:
    assert not needs_hold(TimeToLoss(None, None, limited=False), 100)
    assert needs_hold(TimeToLoss(None, None, limited=True), 100)
    assert needs_hold(TimeToLoss(799, "time", limited=True), 100)
    assert not needs_hold(TimeToLoss(800, "time", limited=True), 100)
    assert needs_hold(TimeToLoss(1e9, "time", limited=True), None)


# The share of one key, from a sample.


def test_a_key_counts_by_its_partitions_part_of_the_lag() -> None:
    keys: dict[int, Sequence[bytes | None]] = {
        0: [b"hot"] * 30 + [b"a", b"b"] * 5,
        1: [b"c", None] * 20,
    }
    found = measure_key_skew(keys, {0: 900, 1: 100})
    assert found.looked == 80
    assert round(found.share, 3) == 0.675  # three quarters of nine tenths


def test_messages_without_a_key_and_a_few_of_one_are_nobodys() -> None:
    assert measure_key_skew({0: [None] * 50 + [b"a"] * 9}, {0: 59}) == Skew(0.0, 59)
    assert measure_key_skew({0: [], 1: []}, {0: 5, 1: 0}) == Skew()


def test_it_looks_all_over_the_range() -> None:
    asked: list[int] = []

    def peek(starts: Mapping[int, int], limit: Deadline) -> Mapping[int, Iterable[Peeked]]:
        asked.append(starts[0])
        return {0: [Peeked(starts[0], b"k", None)]}

    assert sample_keys(peek, {0: (100, 1100)}) == {0: [b"k"] * PLACES}
    assert asked == [100, 300, 500, 700, 900]
