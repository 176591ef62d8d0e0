"""Rows are placed on offsets: random traffic, by the product's pure functions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.accuracy.oracle import list_lost
from tests.accuracy.pure import Placed, place
from tests.accuracy.scenarios import SCENARIOS, Shape
from tests.accuracy.traffic import Traffic, simulate
from tests.accuracy.watching import Sampling, watch

SMALL = Shape(900)
seeds = st.integers(0, 2**32 - 1)


def place_by(traffic: Traffic, sampling: Sampling) -> Placed:
    return place(traffic, watch(traffic, sampling, "topic", "topic-id").bookmarks, "topic-id")


@pytest.mark.parametrize(
    ("name", "sampling"),
    [
        ("tight", Sampling.ALWAYS),
        ("tight", Sampling.TEN_MINUTES),
        ("tight", Sampling.AFTERWARDS),
        ("one", Sampling.ALWAYS),
        ("one", Sampling.AFTERWARDS),
        ("control", Sampling.ALWAYS),
        ("control", Sampling.TEN_MINUTES),
    ],
)
@given(seed=seeds)
def test_in_order_exactly_the_lost_rows_are_taken(name: str, sampling: Sampling, seed: int) -> None:
    traffic = simulate(SCENARIOS[name], SMALL, seed)
    assert place_by(traffic, sampling).likely == list_lost(traffic)


@pytest.mark.parametrize("name", ["loose", "long"])
@given(seed=seeds)
def test_out_of_order_only_such_rows_are_missed_and_what_is_doubled_shows(
    name: str, seed: int
) -> None:
    """A row that is held up may be missed itself; the bookmark of one is off by its places, and
    then the partition has more rows than it lost offsets."""
    traffic = simulate(SCENARIOS[name], SMALL, seed)
    likely, lost = place_by(traffic, Sampling.ALWAYS).likely, list_lost(traffic)
    held_up = traffic.events.sent - traffic.events.created > 1_000_000
    assert len(lost - likely) <= held_up.sum()
    for number, (start, end) in traffic.list_lost().items():
        here = {event for event in likely if traffic.events.partition[event] == number}
        if len(here) <= end - start:
            assert len(here - lost) <= held_up.sum()


@given(seed=seeds)
def test_rows_that_are_gone_are_never_said_to_be_exact(seed: int) -> None:
    """Where counting may be wrong, the plan has rows that it lists."""
    traffic = simulate(SCENARIOS["deleted"], SMALL, seed)
    placed = place_by(traffic, Sampling.AFTERWARDS)
    if placed.likely != list_lost(traffic):
        assert placed.listed
