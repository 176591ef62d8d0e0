"""When the oldest unread messages were written that no pass saw come."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backlogctl.errors import ClusterUnreachable
from backlogctl.monitoring.groups import dating
from backlogctl.monitoring.groups.dating import (
    LONGEST,
    PLACES_A_PASS,
    ROUNDS,
    OffsetDates,
    UndatedOffset,
)
from backlogctl.monitoring.groups.layouts import NONE, ClusterLayout, TopicLayout
from backlogctl.monitoring.verdict.status import Verdict
from tests.monitoring.group_world import START, Topic, World, make_world

DAY = 86400.0
WEEK = str(int(7 * DAY * 1000))
NOW = START


class Log:
    """A topic that was written once a minute for ten days, and whose leader counts requests."""

    def __init__(self, partitions: int = 1) -> None:
        ones = np.ones(partitions, np.int32)
        self.layout = ClusterLayout(1, {"orders": TopicLayout("one", ones, ones, ones)})
        self.high = 14400
        self.asked: list[Mapping[tuple[str, int], int]] = []

    def find(
        self, layout: ClusterLayout, times: Mapping[tuple[str, int], int]
    ) -> Mapping[tuple[str, int], int]:
        self.asked.append(times)
        first = {place: -int((NOW - at / 1000) // -60) for place, at in times.items()}
        return {
            place: max(0, self.high - minutes) if minutes > 0 else NONE
            for place, minutes in first.items()
        }

    def make(self, minutes: int, retention: float | None, partition: int = 0) -> UndatedOffset:
        return UndatedOffset("orders", "one", partition, self.high - minutes, self.high, retention)


@given(st.integers(1, 14000), st.sampled_from([DAY, 7 * DAY, 30 * DAY, None]))
def test_an_offset_is_dated_in_one_pass(minutes: int, retention: float | None) -> None:
    log = Log()
    dates = OffsetDates(log.find, lambda: NOW)
    one = log.make(minutes, retention)
    dates.look(log.layout, [one])
    age, true = dates.measure_age(one), minutes * 60.0
    assert age is not None
    if retention is not None and true > retention:
        assert age == pytest.approx(retention, rel=0.02), "at any moment"
    else:
        sharp = true / 15 if retention is None else min(true / 15, retention / 128)
        assert abs(age - true) <= max(sharp, 10) + 60
    assert len(log.asked) <= ROUNDS


def test_what_was_found_is_not_asked_again() -> None:
    log, now = Log(), NOW
    dates = OffsetDates(log.find, lambda: now)
    one = log.make(5000, 7 * DAY)
    dates.look(log.layout, [one])
    first = len(log.asked)
    now += 3600
    dates.look(log.layout, [one])
    assert len(log.asked) == first
    age = dates.measure_age(one)
    assert age == pytest.approx(5000 * 60 + 3600, rel=0.02)
    dates.look(log.layout, [])
    assert dates.measure_age(one) is None, "it is forgotten"


def test_one_pass_asks_about_so_many_and_the_next_about_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dating, "SECONDS_A_PASS", 60.0)  # a busy machine takes its time
    log = Log(PLACES_A_PASS + 44)
    dates = OffsetDates(log.find, lambda: NOW)
    every = [log.make(3000, 7 * DAY, number) for number in range(PLACES_A_PASS + 44)]
    dates.look(log.layout, every)
    assert max(len(times) for times in log.asked) == PLACES_A_PASS
    assert sum(dates.measure_age(one) is None for one in every) == 44
    log.asked.clear()
    dates.look(log.layout, every)
    assert max(len(times) for times in log.asked) == 44
    assert all(dates.measure_age(one) is not None for one in every)


def test_what_is_older_than_anybody_asks_has_no_time() -> None:
    log = Log()
    dates = OffsetDates(lambda _, times: dict.fromkeys(times, 14000), lambda: NOW)
    for retention in (None, 3 * LONGEST):
        one = log.make(14400, retention)
        dates.look(log.layout, [one])
        assert dates.measure_age(one) is None


def test_without_an_answer_there_is_no_time() -> None:
    def fail(*_: object) -> Mapping[tuple[str, int], int]:
        raise ClusterUnreachable("away")

    def leave_out(*_: object) -> Mapping[tuple[str, int], int]:
        return {}

    log = Log()
    for find in (fail, leave_out):
        dates = OffsetDates(find, lambda: NOW)
        dates.look(log.layout, [log.make(100, DAY)])
        assert dates.measure_age(log.make(100, DAY)) is None


def make_stalled() -> World:
    """A group of which 100 messages are unread since the beginning; retention is a week."""
    world = make_world([900], Topic([0], [1000]))
    world.cluster.retention = WEEK
    world.cluster.written = lambda _, __, offset: START - 3600 * (offset < 900)
    return world


def test_a_group_that_stands_for_days_is_seen_losing_before_retention_gets_there() -> None:
    world = make_stalled()
    for _ in range(3 * 48):  # three days
        world.look(1, 1800)
    status = world.status(30)
    assert status.verdict is Verdict.STALL
    assert status.lag_seconds == pytest.approx(3 * DAY, rel=0.05)
    for _ in range(3 * 48 + 24):  # six and a half
        world.look(1, 1800)
    status = world.status(30)
    assert status.verdict is Verdict.LOSING
    assert status.seconds_to_loss == pytest.approx(DAY / 2, abs=7 * DAY / 100)


def test_a_group_that_stood_before_the_process_began_is_dated_at_once() -> None:
    world = make_stalled()
    world.now += 6.5 * DAY
    status = world.status()
    assert status.lag_seconds == pytest.approx(6.5 * DAY, rel=0.02)
    assert status.verdict is Verdict.LAGGING
    status = world.status(30)
    assert (status.verdict, status.expected_loss) == (Verdict.LOSING, 100)
    world.restart()
    assert world.status().lag_seconds == pytest.approx(6.5 * DAY, rel=0.02)


def test_what_came_while_it_was_watched_is_not_asked_about() -> None:
    world = make_world([10], Topic([0], [10]))
    world.cluster.retention = WEEK
    world.look(3)
    world.cluster.topics["orders"].high = [20]
    world.look(40)
    assert world.cluster.dated == []
    assert timedelta(seconds=world.status().lag_seconds or 0) > timedelta(minutes=19)
