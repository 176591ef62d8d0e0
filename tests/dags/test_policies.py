"""The DAGs' names and schedules, from the streams' windows."""

from __future__ import annotations

from datetime import date, datetime, time, timedelta
from itertools import pairwise
from pathlib import Path
from zoneinfo import ZoneInfo

import pendulum
import pytest
from airflow.timetables.interval import CronDataIntervalTimetable
from hypothesis import given
from hypothesis import strategies as st

from backlogctl.config import OffPeak
from backlogctl.config.root import Outline, StreamOutline, read_outline
from backlogctl.dags.policies import find_cron, find_zone

BERLIN, SHANGHAI = "Europe/Berlin", "Asia/Shanghai"
TIMES = st.times().map(lambda at: at.replace(second=0, microsecond=0))


def make(*windows: str | None, zone: str = BERLIN, rebuilds: bool = True) -> Outline:
    """One stream for each window, `22:30-06:00` or with its zone behind."""
    return Outline(Path("backlog.yaml"), tuple(_make_stream(w, zone, rebuilds) for w in windows))


def _make_stream(window: str | None, zone: str, rebuilds: bool) -> StreamOutline:
    if window is None:
        return StreamOutline("any-time", rebuilds, None)
    hours, _, own = window.partition(" ")
    start, end = hours.split("-")
    off_peak = OffPeak.model_validate({"from": start, "to": end, "timezone": own or zone})
    return StreamOutline("orders", rebuilds, off_peak)


@pytest.mark.parametrize(
    ("windows", "cron"),
    [
        ([], "30 0 * * *"),
        ([None, None], "30 0 * * *"),
        (["22:30-06:00"], "30 22 * * *"),
        (["00:30-06:00"], "30 0 * * *"),
        # Both are open from one on.
        (["22:30-06:00", "01:00-05:00"], "0 1 * * *"),
        (["01:00-05:00", "22:30-06:00"], "0 1 * * *"),
        # Two of three.
        (["20:00-21:00", "01:00-05:00", "02:00-03:00"], "0 2 * * *"),
        # Across midnight and before it.
        (["23:00-01:00", "23:30-00:30", "04:00-05:00"], "30 23 * * *"),
        # Never two at once: the first of the day.
        (["03:00-04:00", "01:00-02:00"], "0 1 * * *"),
        # One ends where the other begins.
        (["01:00-02:00", "02:00-03:00"], "0 1 * * *"),
        (["00:00-23:59", "23:59-00:00"], "0 0 * * *"),
    ],
)
def test_it_runs_when_most_windows_are_open(windows: list[str | None], cron: str) -> None:
    zone = BERLIN if any(windows) else "UTC"
    assert find_cron(make(*windows), zone) == cron


@given(st.lists(st.tuples(TIMES, TIMES).filter(lambda w: w[0] != w[1]), min_size=1, max_size=5))
def test_no_other_minute_has_more_of_them_open(windows: list[tuple[time, time]]) -> None:
    outline = make(*(f"{start:%H:%M}-{end:%H:%M}" for start, end in windows))
    minute, hour, *rest = find_cron(outline, BERLIN).split()
    assert rest == ["*", "*", "*"]

    def count_open(at: time) -> int:
        day = datetime.combine(date(2026, 1, 15), at, ZoneInfo(BERLIN))
        found = [stream.off_peak for stream in outline.streams]
        return sum(window.window().contains(day) for window in found if window)

    best = count_open(time(int(hour), int(minute)))
    # More are open only where one opens.
    assert best == max(count_open(start) for start, _ in windows) >= 1


def test_streams_of_another_zone_or_without_a_source_do_not_count() -> None:
    outline = make("22:30-06:00", f"03:00-04:00 {SHANGHAI}", f"02:00-04:00 {SHANGHAI}", None)
    assert find_cron(outline, BERLIN) == "30 22 * * *"
    assert find_cron(outline, SHANGHAI) == "0 3 * * *"
    assert find_cron(outline, "UTC") == "30 0 * * *"
    silent = make("22:30-06:00", rebuilds=False)
    assert find_zone(silent) == "UTC"
    assert find_cron(silent, BERLIN) == "30 0 * * *"


def test_the_zone_is_that_of_most_streams_that_can_be_rebuilt() -> None:
    assert find_zone(make()) == "UTC"
    assert find_zone(make(None, None)) == "UTC"
    assert find_zone(make("22:30-06:00", f"01:00-02:00 {SHANGHAI}")) == BERLIN, "the first of two"
    assert find_zone(make("22:30-06:00", *[f"01:00-02:00 {SHANGHAI}"] * 2)) == SHANGHAI
    assert find_zone(make("22:30-06:00", None, None)) == BERLIN, "any time is no zone"


@pytest.mark.parametrize("day", ["2026-03-28", "2026-10-24"])
def test_fault_40_a_missing_or_doubled_hour_costs_no_night(day: str) -> None:
    """In Berlin 02:30 is missing on 29 March 2026, and there twice on 25 October."""
    timetable = CronDataIntervalTimetable(find_cron(make("02:30-05:00"), BERLIN), timezone=BERLIN)
    at = pendulum.instance(datetime.fromisoformat(day).replace(hour=12, tzinfo=ZoneInfo(BERLIN)))
    nights = [at := timetable._get_next(at) for _ in range(3)]
    days = [date.fromisoformat(day), *(night.in_timezone(BERLIN).date() for night in nights)]
    assert all(later - earlier == timedelta(days=1) for earlier, later in pairwise(days))


def test_a_bad_file_still_has_its_night(tmp_path: Path) -> None:
    for content in ("", "{", "streams: {orders: {source: {}, off_peak: {timezone: Mars}}}"):
        file = tmp_path / "backlog.yaml"
        file.write_text(content)
        outline = read_outline(file, {})
        assert find_zone(outline) == "UTC"
        assert find_cron(outline, "UTC") == "30 0 * * *"
    assert find_zone(read_outline(tmp_path / "nowhere.yaml", {})) == "UTC"
