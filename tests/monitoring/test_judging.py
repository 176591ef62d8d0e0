"""One partition's verdict, case by case, and what holds for any window."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import fields, replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backlogctl.monitoring.verdict.judge import PartitionView, Point, judge_partition, measure_pace
from backlogctl.monitoring.verdict.status import Retention, Verdict, find_worst
from backlogctl.values import PartitionSample, Sample
from tests.kit.ledger import NOON

# How fast a group read while it ran.


def take(seconds: float, *parts: tuple[int | None, int], topic_id: str = "topic-id") -> Sample:
    """A sample so many seconds after noon of (committed, high) of each partition."""
    partitions = tuple(
        PartitionSample(number, 0, committed, high, high)
        for number, (committed, high) in enumerate(parts)
    )
    at = NOON + timedelta(seconds=seconds)
    return Sample("orders", "main", "orders", "service", topic_id, at, partitions)


def test_a_running_group_is_measured_over_the_whole_window() -> None:
    pace = measure_pace(
        [
            take(0, (0, 100), (10, 500)),
            take(60, (60, 400), (70, 500)),
            take(120, (60, 700), (70, 500)),
        ],
        running=True,
    )
    assert (pace.consumed, pace.seconds) == (1.0, 120.0)
    assert pace.produced == {0: 5.0, 1: 0.0}
    assert pace.produced_per_second == 5.0


def test_the_time_after_a_crash_says_nothing_about_speed() -> None:
    samples = [take(0, (0, 900)), take(60, (0, 900)), take(120, (600, 900)), take(600, (600, 1500))]
    stopped = measure_pace(samples, running=False)
    assert (stopped.consumed, stopped.seconds) == (10.0, 60.0)
    assert stopped.produced == {0: 1.0}
    assert measure_pace(samples, running=True).consumed == 1.0


@pytest.mark.parametrize(
    "samples",
    [
        [],
        [take(0, (5, 10))],
        [take(0, (None, 10)), take(60, (None, 20))],
        [take(0, (5, 10), topic_id="gone"), take(60, (9, 20))],
        [take(-3600, (5, 10)), take(60, (9, 20))],
    ],
)
def test_fault_27_unknown_is_not_zero(samples: list[Sample]) -> None:
    for running in (True, False):
        assert measure_pace(samples, running).consumed is None


def test_a_group_that_stood_still_has_no_speed() -> None:
    samples = [take(0, (5, 10)), take(60, (5, 20))]
    assert measure_pace(samples, running=True).consumed == 0.0
    assert measure_pace(samples, running=False).consumed is None
    # An operator's rewind is no consumption.
    assert measure_pace([take(0, (9, 10)), take(60, (5, 20))], running=True).consumed == 0.0


MINUTE = 60.0
DAY = Retention(time=timedelta(days=1))


def make_points(
    commits: list[int | None], ends: list[int], *, low: int = 0, step: float = MINUTE
) -> list[Point]:
    last = len(commits) - 1
    return [
        Point((number - last) * step, low, committed, end, end)
        for number, (committed, end) in enumerate(zip(commits, ends, strict=True))
    ]


def judge(commits: list[int | None], ends: list[int], **known: object) -> Verdict:
    view = PartitionView(0, make_points(commits, ends), members=True)
    return judge_partition(replace(view, **known)).verdict  # type: ignore[arg-type]


FULL = 11  # points a minute apart: ten minutes, the window


HOUR = Retention(time=timedelta(hours=1))
STILL = [100] * FULL
GROWING = list(range(0, 1100, 100))
RISING = list(range(200, 1300, 100))
BATCHES = [n * 1000 - (n % 3) * 300 - 100 for n in range(FULL)]
SEEN: dict[str, tuple[Sequence[int], list[int], dict[str, object], Verdict]] = {
    "ok_no_lag": (GROWING, GROWING, {}, Verdict.OK),
    "ok_falls": (range(0, 1540, 140), [5000 + end for end in GROWING], {}, Verdict.OK),
    "ok_was_gone_within_the_window": ([100, *[200] * 10], [100, *[300] * 10], {}, Verdict.OK),
    "warn_never_fell_and_grew": (range(0, 550, 50), RISING, {}, Verdict.WARN),
    "ok_as_fast_at_a_distance": (range(0, 550, 50), list(range(100, 650, 50)), {}, Verdict.OK),
    "stall_ends_grow": (STILL, RISING, {}, Verdict.STALL),
    "stall_ends_stand": (STILL, [200] * FULL, {}, Verdict.STALL),
    "stop_without_members": (STILL, RISING, {"members": False}, Verdict.STOP),
    "stall_members_unknown": (STILL, RISING, {"members": None}, Verdict.STALL),
    "rewind": ([1000, 1000, 200, *range(250, 650, 50)], [1000] * FULL, {}, Verdict.REWIND),
    "ok_rewind_recovered": (
        [1000, 1000, 200, 600, *[1050] * 7],
        [*[1000] * 4, *[1050] * 7],
        {},
        Verdict.OK,
    ),
    "ok_read_again_to_the_end": ([1000, 200, 1000], [1000] * 3, {}, Verdict.OK),
    "lagging_one_sample": ([100], [200], {}, Verdict.LAGGING),
    "lagging_two_samples": ([100, 100], [200, 300], {}, Verdict.LAGGING),
    "lagging_half_a_window": ([100] * 6, [200] * 6, {}, Verdict.LAGGING),
    # Commits come in batches: over this window it read a tenth less than was written.
    "ok_a_little_slower": (
        BATCHES,
        [n * 1000 for n in range(FULL)],
        {"retention": HOUR},
        Verdict.OK,
    ),
    # One new message after ten quiet minutes, kept for less than the horizon.
    "ok_new_message": (STILL, [*[100] * 10, 101], {"retention": HOUR}, Verdict.OK),
    "ok_new_message_a_minute_ago": (STILL, [*[100] * 9, 101, 101], {"retention": HOUR}, Verdict.OK),
    # Nor one of which only a part of a window was seen: its next commit may come.
    "ok_next_commit_may_come": ([100, 100], [100, 2000], {"retention": HOUR}, Verdict.OK),
    "lagging_next_commit_may_come": (
        [100, 100],
        [1000, 2000],
        {"retention": HOUR},
        Verdict.LAGGING,
    ),
}


@pytest.mark.parametrize(("commits", "ends", "known", "verdict"), SEEN.values(), ids=SEEN)
def test_the_verdict_of_a_window(
    commits: Sequence[int], ends: list[int], known: dict[str, object], verdict: Verdict
) -> None:
    assert judge(list(commits), ends, **known) is verdict


def test_losing_is_retention_that_passes_the_group_within_the_horizon() -> None:
    # 1,000 a minute are written, 500 read; kept for 30 min.
    commits: list[int | None] = list(range(0, 20_500, 500))
    ends = list(range(0, 41_000, 1000))
    keeps = Retention(time=timedelta(minutes=30))
    view = PartitionView(0, make_points(commits, ends), True, retention=keeps)
    judged = judge_partition(view)
    assert judged.verdict is Verdict.LOSING
    # At 20,000 of 40,000: written 20 min ago, so retention gets there in 10 min; it goes twice as
    # fast as the group, and so passes it in 20 min.
    assert judged.seconds_to_loss == pytest.approx(20 * MINUTE, rel=0.01)
    assert judged.seconds_retained == pytest.approx(10 * MINUTE, rel=0.01)
    assert judged.lag_seconds == pytest.approx(20 * MINUTE, rel=0.01)
    # In 20 min the group is at 30,000; until the rest is gone, 10 min later, it reads 5,000 of it.
    assert judged.expected_loss == pytest.approx(5_000, rel=0.02)
    # 20,000 unread have to be read in the 30 min that their newest is kept: as many as come in.
    assert judged.needed_per_second == pytest.approx(1000 / 60, rel=0.01)
    assert judged.loss_by == "time"
    assert judge_partition(replace(view, horizon=15 * MINUTE)).verdict is Verdict.WARN
    assert judge_partition(replace(view, retention=DAY, horizon=3600.0)).seconds_to_loss is None


def test_a_group_that_is_gone_loses_when_its_oldest_message_is_old() -> None:
    points = make_points([500, 500], [1000, 1000])
    keeps = Retention(time=timedelta(hours=2))
    view = PartitionView(0, points, False, retention=keeps, oldest_seconds=3600.0)
    judged = judge_partition(view)
    assert judged.verdict is Verdict.LOSING
    assert judged.seconds_to_loss == pytest.approx(3600.0)
    assert judged.expected_loss == 500
    # Who reads, and how fast, is not known from one sample of a group with members.
    one = judge_partition(replace(view, points=points[-1:], members=True))
    assert (one.verdict, one.seconds_to_loss) == (Verdict.LAGGING, None)
    assert one.seconds_retained == pytest.approx(3600.0)


def test_losing_by_size_is_told_from_bytes_and_the_rate_of_writing() -> None:
    # 100 bytes each, 10 a second; 300,000 bytes are kept: 3,000 offsets.
    ends = list(range(4000, 10_600, 600))
    still: list[int | None] = [9000] * FULL
    view = PartitionView(
        0,
        make_points(still, ends, low=5000),
        False,
        retention=Retention(bytes=300_000),
        bytes=500_000,
    )
    judged = judge_partition(view)
    assert (judged.verdict, judged.loss_by) == (Verdict.LOSING, "size")
    # 9,000 is 1,000 behind the end: gone when 2,000 more follow, in 200 s.
    assert judged.seconds_to_loss == pytest.approx(200.0)
    assert judged.expected_loss == 1000


def test_a_reader_that_never_joins_is_as_fast_as_it_commits() -> None:
    batches: list[int | None] = [*([1000] * 5), *([6000] * 5), 6000]
    ends = [1100 + 1000 * n for n in range(FULL)]
    view = PartitionView(0, make_points(batches, ends), members=False, retention=HOUR)
    judged = judge_partition(view)
    assert judged.verdict is Verdict.OK, "between two commits"
    # Nobody there, and nothing ever committed as far as is known: that is gone.
    gone = replace(view, points=make_points([1000] * 3, [2000] * 3), oldest_seconds=60.0)
    assert judge_partition(gone).verdict is Verdict.LOSING
    # Of one that nobody ever joined that is not known until the window has passed.
    unseen = replace(gone, assigns=True)
    judged = judge_partition(unseen)
    assert (judged.verdict, judged.seconds_to_loss) == (Verdict.LAGGING, None)
    assert judged.seconds_retained == pytest.approx(3_540.0)
    still = replace(unseen, points=make_points([1000] * FULL, [2000] * FULL))
    assert judge_partition(still).verdict is Verdict.LOSING


def test_fault_20_a_transaction_behind_an_old_control_record_is_no_stall() -> None:
    idle: list[int | None] = [499] * FULL
    ends = [*([500] * 10), 503]
    assert judge(idle, ends) is Verdict.OK
    view = PartitionView(0, make_points(idle, ends), True, empty_tail=(499, 500))
    judged = judge_partition(view)
    assert (judged.verdict, judged.lag, judged.committed) == (Verdict.OK, 3, 499)
    assert judged.lag_seconds == pytest.approx(MINUTE, rel=0.7), "the transaction's, no older"
    # One poison message that is read again and again is one.
    assert judge(idle, [500] * FULL) is Verdict.STALL
    assert judge(idle, [*([500] * 3), *([503] * 8)]) is Verdict.OK, "not the whole window yet"
    assert judge(idle, [503] * FULL) is Verdict.STALL


def test_the_age_is_the_messages_own_where_no_sample_reaches_back() -> None:
    view = PartitionView(0, make_points([5], [9]), True, oldest_seconds=7200.0)
    assert judge_partition(view).lag_seconds == 7200.0


def test_lost_stays_until_it_is_put_back_and_tells_what_comes_next() -> None:
    still: list[int | None] = [100] * FULL
    assert judge([500], [500], lost=7) is Verdict.LOST
    assert judge(still, [200] * FULL, lost=1) is Verdict.LOST
    assert judge([500], [500], lost=0) is Verdict.OK
    view = PartitionView(0, make_points(still, [200] * FULL), members=False, lost=1)
    assert judge_partition(view).course is Verdict.STOP, "and the group has stopped meanwhile"


def test_fault_22_a_commit_beyond_the_end_is_its_own_verdict() -> None:
    assert judge([600] * FULL, [500] * FULL) is Verdict.BEYOND_END


@pytest.mark.parametrize("members", [True, False, None])
def test_fault_27_partitions_with_nothing_to_read_are_ok(members: bool | None) -> None:
    assert judge([None] * FULL, [0] * FULL, members=members, retention=DAY) is Verdict.OK
    assert judge([0] * FULL, [0] * FULL, members=members, retention=DAY) is Verdict.OK
    idle: list[int | None] = [500] * FULL
    assert judge(idle, [500] * FULL, members=members, retention=DAY) is Verdict.OK
    # All of it expired, and was read.
    expired = PartitionView(0, make_points(idle, [500] * FULL, low=500), members, retention=DAY)
    assert judge_partition(expired).verdict is Verdict.OK


def test_fault_20_a_control_record_at_the_end_is_no_lag_for_ever() -> None:
    still: list[int | None] = [499] * FULL
    assert judge(still, [500] * FULL) is Verdict.STALL
    assert judge(still, [500] * FULL, tail_without_data=True) is Verdict.OK


def test_fault_21_without_a_commit_nothing_is_said() -> None:
    assert judge([None] * FULL, [500] * FULL) is Verdict.UNKNOWN
    judged = judge_partition(PartitionView(0, make_points([None], [500])))
    assert (judged.lag, judged.lost, judged.lag_seconds) == (None, None, None)


offsets = st.integers(0, 10_000)


@st.composite
def views(draw: st.DrawFn) -> PartitionView:
    count = draw(st.integers(1, 14))
    highs = sorted(draw(st.lists(offsets, min_size=count, max_size=count)))
    points = []
    for number, high in enumerate(highs):
        low = draw(st.integers(0, high))
        committed = draw(st.none() | st.integers(0, high + 5))
        end = draw(st.integers(low, high))
        points.append(Point((number - count + 1) * MINUTE, low, committed, end, high))
    return PartitionView(
        partition=0,
        points=points,
        members=draw(st.sampled_from([True, False, None])),
        lost=draw(st.none() | st.integers(0, 5)),
        tail_without_data=draw(st.booleans()),
        retention=Retention(
            draw(st.none() | st.builds(timedelta, seconds=st.integers(0, 10_000))),
            draw(st.none() | st.integers(0, 10**6)),
        ),
        oldest_seconds=draw(st.none() | st.floats(0, 10_000)),
        bytes=draw(st.none() | st.integers(0, 10**6)),
        window=draw(st.sampled_from([120.0, 600.0])),
    )


@given(views())
def test_any_window_gives_figures_that_are_numbers(view: PartitionView) -> None:
    judged = judge_partition(view)
    for field in fields(judged):
        value = getattr(judged, field.name)
        if isinstance(value, float):
            assert math.isfinite(value)
            assert value >= 0
    assert (judged.seconds_to_loss is None) == (judged.loss_by is None)
    if judged.verdict is Verdict.LOSING:
        assert judged.seconds_to_loss is not None
        assert judged.seconds_to_loss <= view.horizon
    if judged.seconds_to_loss is not None and judged.seconds_retained is not None:
        # A group that reads is never reached sooner than one that stands still.
        assert judged.seconds_to_loss >= judged.seconds_retained - 1e-6
    assert (judged.verdict is Verdict.LOST) == bool(view.lost)
    if not judged.lag and judged.lag is not None and not view.lost:
        assert judged.verdict in (Verdict.OK, Verdict.BEYOND_END)


@given(views(), st.integers(1, 10**12))
def test_where_a_log_begins_does_not_matter(view: PartitionView, by: int) -> None:
    moved = [
        replace(
            p,
            low=p.low + by,
            end=p.end + by,
            high=p.high + by,
            committed=None if p.committed is None else p.committed + by,
        )
        for p in view.points
    ]
    one, other = judge_partition(view), judge_partition(replace(view, points=moved))
    assert (one.lag, one.loss_by) == (other.lag, other.loss_by)
    if view.points[-1].high > 0:
        assert one.verdict is other.verdict


@given(views(), st.integers(1, 5))
def test_what_is_older_than_two_windows_does_not_matter(view: PartitionView, more: int) -> None:
    inside = [point for point in view.points if point.seconds >= -2 * view.window]
    old = [Point(-2 * view.window - n, 0, n, 9, 9) for n in range(more, 0, -1)]
    ends = [(point.seconds, point.high) for point in inside]
    one = replace(view, points=inside, timeline=ends)
    assert judge_partition(one) == judge_partition(replace(one, points=[*old, *inside]))


def test_verdicts_are_ordered_from_good_to_bad() -> None:
    assert find_worst([]) is Verdict.OK
    assert find_worst([Verdict.WARN, Verdict.LOST, Verdict.LOSING]) is Verdict.LOST
    assert find_worst([Verdict.LAGGING, Verdict.OK]) is Verdict.LAGGING


LAGS = [47, 44, 46, 43, 45, 42, 44, 41, 43, 40, 40]


@pytest.mark.parametrize(
    ("points", "lag", "drained"),
    [
        ([(1000 * n, 0, 20_000) for n in range(11)], 10_000, None),
        ([(1000 * n, 1000 * n, 20_000) for n in range(11)], 10_000, None),
        # 40 behind at 10 a second is the rhythm of commits, whichever way it wavers.
        ([(0, 600 * (n + 1) - lag, 600 * (n + 1)) for n, lag in enumerate(LAGS)], 40, None),
        ([(0, 1800 * n, 50_000 + 600 * n) for n in range(11)], 38_000, 38_000 / 20),
    ],
    ids=[
        "what_retention_deletes_is_not_drained",
        "a_commit_that_skips_what_expired_reads_none_of_it",
        "a_small_lag_that_stays_is_keeping_up",
        "drained_at_the_rates_of_reading_and_writing",
    ],
)
def test_when_a_lag_is_drained(
    points: list[tuple[int, int, int]], lag: int, drained: float | None
) -> None:
    seen = [
        Point(-600.0 + 60 * n, low, committed, end, end)
        for n, (low, committed, end) in enumerate(points)
    ]
    judged = judge_partition(PartitionView(0, seen, members=True))
    assert judged.lag == lag
    assert judged.seconds_to_drain == (drained and pytest.approx(drained))
    if lag == 40:
        assert judged.verdict is Verdict.OK
