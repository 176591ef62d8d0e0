"""Partitions judged all at once are judged as one by one."""

from __future__ import annotations

from dataclasses import fields
from datetime import timedelta
from typing import Any

import numpy as np
import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from backlogctl.monitoring.groups.windows import JudgingTerms, PartitionSeries, judge_busy
from backlogctl.monitoring.verdict.judge import PartitionView, Point, judge_partition
from backlogctl.monitoring.verdict.status import PartitionStatus, Retention, Verdict

DAY = 86400.0


def make_series(
    columns: list[list[tuple[int, int, int, int]]], ages: list[float]
) -> PartitionSeries:
    """Of each partition's (low, committed, end, high), oldest first."""
    low, committed, end, high = np.array(columns, np.int64).transpose(2, 1, 0)
    return PartitionSeries(ages, range(len(columns)), low, committed, end, high)


def judge_one(
    column: list[tuple[int, int, int, int]], ages: list[float], terms: JudgingTerms, number: int
) -> PartitionStatus:
    points = [
        Point(age, low, committed, end, high)
        for age, (low, committed, end, high) in zip(ages, column, strict=True)
    ]
    time = None if terms.retention is None else timedelta(seconds=terms.retention)
    view = PartitionView(
        partition=number,
        points=points,
        members=terms.members,
        lost=0,
        retention=Retention(time),
        timeline=[(point.seconds, point.high) for point in points],
        window=terms.window,
        horizon=terms.horizon,
    )
    return judge_partition(view)


def assert_same(fast: PartitionStatus, slow: PartitionStatus) -> None:
    for one in fields(PartitionStatus):
        got, want = getattr(fast, one.name), getattr(slow, one.name)
        if one.name == "seconds_to_drain" and max(got or 1e9, want or 1e9) > 1e8:
            continue  # an even lag, but for rounding
        assert type(got) is type(want), one.name
        assert got == (pytest.approx(want, rel=1e-6, abs=1e-6) if type(want) is float else want), (
            one.name
        )


@st.composite
def draw_column(draw: st.DrawFn, count: int) -> list[tuple[int, int, int, int]]:
    """A partition in so many samples; most go on as in a healthy group."""
    odd = draw(st.integers(0, 5)) == 0
    least = draw(st.sampled_from([0, 0, 1, 3, 500]))
    high, committed, low = draw(st.integers(0, 1000)), 0, 0
    column = []
    for number in range(count):
        high += draw(st.sampled_from([0, 10, 100, 1000]))
        lag = draw(st.integers(least, least + draw(st.sampled_from([0, 3, 200]))))
        moves = not odd or draw(st.booleans())
        if number == 0 or moves:
            committed = max(0, high - lag) if odd else max(committed, high - lag)
        if odd:
            low = max(low, draw(st.sampled_from([0, 0, low, committed, high])))
            committed += draw(st.sampled_from([0, 0, 0, 5000, -committed]))
        stable = committed if odd and draw(st.booleans()) else high
        column.append((low, committed, stable if committed <= stable else high, high))
    return column


@given(st.data())
def test_all_at_once_is_as_one_by_one(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 12))
    gaps = data.draw(st.lists(st.sampled_from([1.0, 25.0, 30.0, 400.0]), min_size=12, max_size=12))
    step = data.draw(st.sampled_from([0.0, 60.0]))
    ages = [-sum(gap + step for gap in gaps[number : count - 1]) for number in range(count)]
    columns = data.draw(st.lists(draw_column(count), min_size=1, max_size=4))
    retention = data.draw(st.sampled_from([None, 60.0, 3600.0, DAY, 1.5 * DAY, 7 * DAY]))
    terms = JudgingTerms(data.draw(st.sampled_from([True, False, None])), retention, 600.0, DAY)
    found = judge_busy(make_series(columns, ages), terms)
    event(f"{bool(found)}")
    for number, status in found.items():
        assert_same(status, judge_one(columns[number], ages, terms, number))
        assert status.verdict in (Verdict.OK, Verdict.LAGGING)


def test_what_a_busy_cluster_is_made_of_is_judged_at_once() -> None:
    ages = [-30.0 * number for number in range(24, -1, -1)]
    terms = JudgingTerms(members=True, retention=7 * DAY, window=600.0, horizon=DAY)
    steady = [(0, 100 * n - 3, 100 * n, 100 * n) for n in range(1, 26)]
    uneven = [(0, 100 * n - n % 7, 100 * n, 100 * n) for n in range(1, 26)]
    found = judge_busy(make_series([steady, uneven], ages), terms)
    assert [found[number].verdict for number in (0, 1)] == [Verdict.OK] * 2
    early = judge_busy(make_series([steady[:5]], ages[-5:]), terms)
    assert early[0].verdict is Verdict.LAGGING


def test_what_is_not_plain_is_left() -> None:
    ages = [-30.0 * number for number in range(24, -1, -1)]
    short = JudgingTerms(members=True, retention=3600.0, window=600.0, horizon=DAY)
    steady = [(0, 100 * n - 30, 100 * n, 100 * n) for n in range(1, 26)]
    stalled = [(0, 97, 100 * n, 100 * n) for n in range(1, 26)]
    slower = [(0, 90 * n, 100 * n, 100 * n) for n in range(1, 26)]
    assert judge_busy(make_series([steady, stalled, slower], ages), short) == {}
    long: Any = JudgingTerms(members=True, retention=7 * DAY, window=600.0, horizon=DAY)
    assert set(judge_busy(make_series([steady, stalled, slower], ages), long)) == {0}
