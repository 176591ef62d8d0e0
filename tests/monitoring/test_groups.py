"""Passes over all groups of a cluster: figures, dates, and partitions judged all at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from datetime import timedelta
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from backlogctl.errors import ClusterUnreachable
from backlogctl.kafka.bulk import NONE, ClusterLayout, Offsets, TopicLayout
from backlogctl.monitoring.groups import dating
from backlogctl.monitoring.groups.dating import (
    LONGEST,
    PLACES_A_PASS,
    ROUNDS,
    OffsetDates,
    UndatedOffset,
)
from backlogctl.monitoring.groups.windows import (
    JudgingTerms,
    PartitionSeries,
    SampleTimes,
    judge_busy,
)
from backlogctl.monitoring.verdict.judge import PartitionView, Point, judge_partition
from backlogctl.monitoring.verdict.status import PartitionStatus, Retention, Verdict
from tests.monitoring.group_world import SCOPE, START, Topic, World, make_world


def test_log_starts_are_read_before_commits_and_ids_around_all() -> None:
    world = make_world([5], Topic([0], [9]))
    world.look()
    # A topic that was not known is asked for its log starts before its commits count.
    first = ["groups", "layout", "low", "commits", "layout", "low", "commits"]
    assert world.cluster.calls == [*first, "stable", "high", "layout"]
    world.cluster.calls.clear()
    world.look()
    assert world.cluster.calls == ["groups", "layout", "low", "commits", "stable", "high", "layout"]


def test_a_busy_group_behind_which_retention_moves_has_lost_nothing() -> None:
    world = make_world([100], Topic([100], [300]))
    world.cluster.busy = True
    for _ in range(5):
        assert world.status().lost == 0


def test_faults_21_and_27_unknown_and_idle_partitions() -> None:
    topic = Topic([0, 0, 0, 7], [10, 10, 0, 7])
    status = make_world([10, NONE, NONE, 7], topic).status(40)
    verdicts = [part.verdict for part in status.partitions]
    assert verdicts == [Verdict.OK, Verdict.UNKNOWN, Verdict.OK, Verdict.OK]
    assert [part.lag for part in status.partitions] == [0, None, None, 0]
    assert [part.lag_seconds for part in status.partitions] == [0, None, None, 0]
    assert status.verdict is Verdict.UNKNOWN
    assert status.lag is None, "zero would be only a part of it"


def test_fault_22_beyond_the_end() -> None:
    assert make_world([50], Topic([0], [10])).status().verdict is Verdict.BEYOND_END


@pytest.mark.parametrize(("state", "verdict"), [("stable", Verdict.STALL), ("empty", Verdict.STOP)])
def test_commits_that_do_not_move(state: str, verdict: Verdict) -> None:
    world = make_world([5, 10], Topic([0, 0], [10, 10]), state=state)
    assert world.status(3).verdict is Verdict.LAGGING
    status = world.status(25)
    assert [part.verdict for part in status.partitions] == [verdict, Verdict.OK]


def test_the_age_of_the_oldest_unread_reaches_back_beyond_the_window() -> None:
    world = make_world([10], Topic([0], [10]))
    world.look(4, 1800)
    world.cluster.topics["orders"].high = [20]
    world.look(1, 1800)
    status = world.status(60)  # half an hour later
    assert status.lag == 10
    age = status.lag_seconds
    assert age is not None
    assert 1800 <= age <= 3600 + 1800


def test_a_loss_in_sight_by_time() -> None:
    world = make_world([10], Topic([0], [10]))
    world.cluster.retention = "3600000"
    world.look(4)
    for _ in range(40):
        world.cluster.topics["orders"].high[0] += 100
        status = world.status()
    assert status.verdict is Verdict.LOSING
    assert status.seconds_to_loss is not None
    assert 0 < status.seconds_to_loss < 3600


def test_only_allowed_groups() -> None:
    scope = replace(SCOPE, allow=("pay-*", "ship-*"), deny=("*-test",))
    world = make_world([1], Topic([0], [1]), scope=scope)
    for name in ("pay-main", "pay-test", "ship-1", "other"):
        world.cluster.commits[name] = {"orders": [1]}
    assert [status.group for status in world.look().groups] == ["pay-main", "ship-1"]


def test_streams_are_left_out() -> None:
    world = make_world([1], Topic([0], [1]), scope=replace(SCOPE, streams={("service", "orders")}))
    world.cluster.commits["audit"] = {"orders": [1]}
    done = world.look()
    assert [status.group for status in done.groups] == ["audit"]
    assert list(done.topics) == ["orders"]


def test_what_is_over_the_limit_is_counted() -> None:
    world = make_world([1] * 4, Topic([0] * 4, [1] * 4), scope=replace(SCOPE, max_partitions=9))
    for name in "abc":
        world.cluster.commits[name] = {"orders": [1] * 4}
    done = world.look()
    assert ([status.group for status in done.groups], done.left_out) == (["a", "b"], 8)


def test_fault_15_a_recreated_topic_begins_anew() -> None:
    world = make_world([900], Topic([0], [1000]))
    world.look(30)
    world.cluster.topics["orders"] = Topic([0], [50], topic_id="two")
    world.cluster.commits["service"]["orders"] = [10]
    status = world.status(2)
    assert (status.verdict, status.lag) == (Verdict.LAGGING, 40), "no rewind, no stall"


def test_a_topic_recreated_while_it_is_read_is_left_out_once() -> None:
    world = make_world([5], Topic([0], [10]))
    world.look()
    read = world.cluster.read_ends

    def recreate(layout: ClusterLayout, *, stable: bool) -> Mapping[str, Offsets]:
        world.cluster.topics["orders"].topic_id = "two"
        return read(layout, stable=stable)

    world.cluster.read_ends = recreate  # type: ignore[method-assign]
    assert world.look().groups == ()
    assert len(world.look().groups) == 1


def test_fault_16_added_partitions() -> None:
    world = make_world([10], Topic([0], [10]))
    world.look(30)
    world.cluster.topics["orders"] = Topic([0, 0, 0], [10, 4, 0])
    status = world.status()
    assert [part.verdict for part in status.partitions] == ["ok", "unknown", "ok"]
    world.cluster.commits["service"]["orders"] = [10, 2, NONE]
    status = world.status()
    assert [part.lag for part in status.partitions] == [0, 2, None]
    assert status.partitions[1].verdict is Verdict.LAGGING


def test_a_group_that_is_gone_or_cannot_be_read_now() -> None:
    world = make_world([5], Topic([0], [10]))
    world.look(30)
    world.cluster.unreadable = {"service"}
    done = world.look()
    assert ([s.verdict for s in done.groups], done.unreadable) == ([Verdict.STALL], 1)
    world.look(21)
    (status,) = world.look().groups
    assert status.verdict is status.course is Verdict.UNKNOWN, "too long ago to be true"
    assert (status.lag, status.partitions[0].committed) == (None, 5)
    assert "could not be read for" in status.sentence
    world.cluster.unreadable = set()
    assert world.status(26).verdict is Verdict.STALL
    assert world.look().unreadable == 0
    world.cluster.commits = {}
    assert world.look().groups == ()
    world.cluster.commits = {"service": {"orders": [5]}}
    assert world.status().verdict is Verdict.LAGGING, "its past is forgotten"


def test_a_partition_without_a_leader_is_unknown() -> None:
    world = make_world([5, 10], Topic([0, 0], [10, 10]))
    world.look(3)
    world.cluster.topics["orders"].high = [NONE, 10]
    world.cluster.topics["orders"].low = [NONE, 0]
    status = world.status()
    assert [part.verdict for part in status.partitions] == [Verdict.UNKNOWN, Verdict.OK]
    assert (status.partitions[0].committed, status.partitions[0].end) == (5, 10), "as last seen"
    assert (status.verdict, status.course, status.lag) == (Verdict.UNKNOWN, Verdict.UNKNOWN, None)
    assert "its leader does not answer" in status.sentence
    world.cluster.topics["orders"] = Topic([0, 0], [10, 10])
    assert [part.lag for part in world.status().partitions] == [5, 0]


def test_fault_24_an_open_transaction_is_not_a_stall() -> None:
    world = make_world([10], Topic([0], [500], stable=[10]))
    status = world.status()
    assert (status.verdict, status.lag, status.held) == (Verdict.OK, 0, 0), "it may end in a moment"
    status = world.status(30)
    assert (status.verdict, status.lag, status.held) == (Verdict.BLOCKED, 0, 490)
    assert "490 messages lie behind an open transaction since" in status.sentence
    assert "by whom is not known" in status.sentence
    world.cluster.topics["orders"].stable = [500]
    status = world.status()
    assert (status.lag, status.verdict) == (490, Verdict.OK), "it had no chance to read it yet"
    behind = make_world([5], Topic([0], [500], stable=[10])).status()
    assert behind.lag == 495


def test_a_tail_without_data_is_no_lag_and_no_loss() -> None:
    world = make_world([9, 9], Topic([0, 0], [10, 10]))
    world.cluster.empty[("orders", 0)] = True
    assert world.status().lag == 2, "one that moves is not read"
    status = world.status(30)
    assert [part.lag for part in status.partitions] == [0, 1]
    assert [part.verdict for part in status.partitions] == [Verdict.OK, Verdict.STALL]
    assert world.cluster.tails == [("orders", 0, 9), ("orders", 1, 9)], "each is read once"
    # What held only a control record expires: nothing was lost.
    world.cluster.topics["orders"].low = [10, 10]
    status = world.status(2)
    assert [part.lost for part in status.partitions] == [0, 1]
    assert world.status(5).lost == 1


def test_a_transaction_after_a_quiet_time_is_no_stall() -> None:
    world = make_world([9], Topic([0], [10]))
    world.cluster.empty[("orders", 0)] = True
    assert world.status(30).verdict is Verdict.OK
    world.cluster.empty.clear()
    world.cluster.topics["orders"].high = [11]  # a message, and soon its marker
    status = world.status()
    assert status.verdict is Verdict.OK, "it came a moment ago"
    assert status.lag
    assert world.status(22).verdict is Verdict.STALL


def test_a_topic_that_one_answer_leaves_out_keeps_its_past() -> None:
    world = make_world([5], Topic([0], [10]))
    world.look(30)
    topic = world.cluster.topics.pop("orders")
    assert [status.verdict for status in world.look().groups] == [Verdict.STALL], "as it was"
    world.cluster.topics["orders"] = topic
    assert world.status().verdict is Verdict.STALL
    del world.cluster.topics["orders"]
    world.look()
    assert world.look().groups == ()
    world.cluster.topics["orders"] = topic
    assert world.status().verdict is Verdict.LAGGING


def test_retentions_that_cannot_be_read_again_stand() -> None:
    world = make_world([10], Topic([0], [10]))
    world.cluster.retention = "3600000"
    world.look()
    world.cluster.mute = True
    assert world.status(30).retention.time == timedelta(hours=1)
    world.cluster.mute = False
    world.cluster.retention = "7200000"
    assert world.status().retention.time == timedelta(hours=2)


def test_lost_messages_of_any_group() -> None:
    world = make_world([5, 9], Topic([8, 9], [10, 10]), state="empty")
    status = world.status()
    assert [part.lost for part in status.partitions] == [3, 0]
    assert [part.lag for part in status.partitions] == [2, 1]
    assert status.verdict is Verdict.LOST


def test_what_a_group_in_front_of_the_log_start_moves_past_is_not_lost() -> None:
    world = make_world([5], Topic([8], [10]))
    assert world.status().lost == 0, "its next commit may be on its way"
    world.look(1, 5)
    assert world.status().lost == 3, "it does not move"
    world.cluster.commits["service"]["orders"] = [7]
    assert world.status().lost == 0


@given(
    st.lists(st.floats(0.01, 400), min_size=1, max_size=300),
    st.integers(4, 30),
    st.floats(1, 60),
)
def test_moments_keep_the_newest_and_reach_back(gaps: list[float], count: int, step: float) -> None:
    moments = SampleTimes(count, step)
    now = 0.0
    written: dict[int, float] = {}
    for gap in gaps:
        now += gap
        written[moments.advance(now)] = now
    rows = moments.rows
    assert len(set(rows)) == len(rows) <= count
    times = [written[row] for row in rows]
    assert times == sorted(times)
    assert times[-1] == now
    assert [round(age + now, 6) for age in moments.list_ages(now)] == [round(t, 6) for t in times]
    assert all(b - a >= step - 1e-9 for a, b in pairwise(times[:-1]))
    # Nothing is thrown away before its time.
    assert len(rows) == count or times[0] == gaps[0]


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
