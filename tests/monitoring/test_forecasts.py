"""The race of a group against retention, beside one run message by message."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backlogctl.monitoring.verdict.forecasts import date_by_size, date_by_time, forecast_loss

HORIZON = 1e6


def run_by_hand(
    expiry: list[tuple[float, float]], end: int, pace: float
) -> tuple[float | None, int]:
    """Each message on its own: deleted before the group is through with it, or read."""
    clock, lost, first = 0.0, 0, None
    for (begin, begin_at), (stop, stop_at) in pairwise(expiry):
        for offset in range(int(begin), int(stop)):
            share = (offset + 1 - begin) / (stop - begin)
            deleted_at = begin_at + share * (stop_at - begin_at)
            done_at = clock + 1 / pace if pace else float("inf")
            if deleted_at < done_at:
                first = deleted_at if first is None else first
                lost += offset < end
            else:
                clock = done_at
    return first, lost


@st.composite
def expiries(draw: st.DrawFn) -> list[tuple[float, float]]:
    offset, at = 0, draw(st.floats(0, 50))
    points = [(0.0, at)]
    for _ in range(draw(st.integers(1, 4))):
        offset += draw(st.integers(1, 400))
        at += draw(st.floats(0.01, 300))
        points.append((float(offset), at))
    return points


@given(expiries(), st.one_of(st.just(0.0), st.floats(0.05, 50)), st.floats(0, 1))
def test_a_race_ends_as_one_run_message_by_message(
    expiry: list[tuple[float, float]], pace: float, share: float
) -> None:
    end = int(expiry[-1][0] * share)
    first, lost = run_by_hand(expiry, end, pace)
    forecast = forecast_loss(expiry, end, pace, HORIZON)
    if first is None or forecast.seconds is None:
        assert lost <= 2
        assert forecast.lost <= 2
    else:
        # A message is a step by hand, and a point of a line here.
        steepest = max((b[1] - a[1]) / (b[0] - a[0]) for a, b in pairwise(expiry))
        margin = 3 * (steepest + (1 / pace if pace else 0))
        slower = (
            [abs(1 / pace - (b[1] - a[1]) / (b[0] - a[0])) for a, b in pairwise(expiry)]
            if pace
            else []
        )
        if all(each > 0.01 * steepest for each in slower):
            assert lost == pytest.approx(forecast.lost, abs=4 + 0.02 * end)
        assert forecast.seconds <= first + margin


@given(expiries(), st.floats(1.001, 3))
def test_the_pace_that_is_needed_loses_nothing_and_less_loses(
    expiry: list[tuple[float, float]], more: float
) -> None:
    end = int(expiry[-1][0])
    needed = forecast_loss(expiry, end, 0.0, HORIZON).needed_per_second
    if expiry[0][1] > 0:
        assert forecast_loss(expiry, end, needed * more, HORIZON).seconds is None
        assert forecast_loss(expiry, end, needed / more, HORIZON).seconds is not None


@given(expiries(), st.floats(0, 50), st.floats(0, 50))
def test_a_faster_group_loses_no_more_and_no_sooner(
    expiry: list[tuple[float, float]], one: float, other: float
) -> None:
    slow, fast = sorted((one, other))
    end = int(expiry[-1][0])
    lazy, quick = (forecast_loss(expiry, end, pace, HORIZON) for pace in (slow, fast))
    assert quick.lost <= lazy.lost + 1
    if quick.seconds is not None:
        assert lazy.seconds is not None
        assert lazy.seconds <= quick.seconds + 1e-6


def test_time_is_dated_by_the_message_and_goes_on_beyond_the_end() -> None:
    timeline = [(-100.0, 0), (-50.0, 500), (0.0, 1000)]
    expiry = date_by_time(timeline, 250, 1000, 120.0, produced_per_second=10.0, horizon=30.0)
    assert expiry == ((250.0, 45.0), (500.0, 70.0), (1000.0, 120.0), (1300.0, 150.0))
    # The message's own time is what retention goes by.
    older = date_by_time(timeline, 250, 1000, 120.0, oldest_seconds=110.0, horizon=30.0)
    assert older[0] == (250.0, 10.0)
    assert date_by_time([(-5.0, 600), (0.0, 1000)], 250, 1000, 120.0, horizon=30.0) == ()


def test_size_reaches_what_more_bytes_follow_than_are_kept() -> None:
    # 100 bytes each, 50,000 kept: 500 offsets behind the end; 10 offsets a second are written.
    expiry = date_by_size(700, 1000, 50_000, 100.0, produced_per_second=10.0, horizon=100.0)
    assert expiry == ((700.0, 20.0), (2000.0, 150.0))
    assert forecast_loss(expiry, 1000, 0.0, 100.0).seconds == pytest.approx(20.0)
    # Over the limit already: gone with the next check.
    over = date_by_size(300, 1000, 50_000, 100.0, produced_per_second=0.0, horizon=100.0)
    forecast = forecast_loss(over, 1000, 5.0, 100.0)
    assert (forecast.seconds, forecast.lost) == (0.0, 200)
    assert date_by_size(600, 1000, 50_000, 100.0, produced_per_second=0.0, horizon=9.0) == ()


def test_a_group_at_half_the_pace_is_caught_where_both_lines_meet() -> None:
    # Written 1,000 s ago till now at 10/s, kept 1,500 s, read at 5/s from now on.
    expiry = ((0.0, 500.0), (10_000.0, 1500.0))
    forecast = forecast_loss(expiry, 10_000, 5.0, HORIZON)
    # 5 t = 10 (t - 500): t = 1000; from there 5 of 10 are lost for the last 5,000 offsets.
    assert forecast.seconds == pytest.approx(1000.0)
    assert forecast.lost == 2500
    assert forecast.needed_per_second == pytest.approx(10_000 / 1500)
