"""Off-peak windows follow the wall clock of their zone; durations and times read back."""

from __future__ import annotations

from datetime import UTC, datetime, time, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backlogctl.clock import (
    Deadline,
    OffPeakWindow,
    format_time,
    parse_duration,
    parse_time,
    read_time,
)

BERLIN = ZoneInfo("Europe/Berlin")
ZONES = st.sampled_from(
    ["UTC", "Europe/Berlin", "America/New_York", "Asia/Shanghai", "Australia/Lord_Howe"]
).map(ZoneInfo)
MINUTES = st.times().map(lambda at: at.replace(second=0, microsecond=0))
EPOCH = datetime(2020, 1, 1, tzinfo=UTC)
MOMENTS = st.timedeltas(timedelta(0), timedelta(days=15 * 365)).map(lambda after: EPOCH + after)
MINUTE = timedelta(minutes=1)


def count_minutes(window: OffPeakWindow, start: datetime, end: datetime) -> int:
    total = int((end - start) / MINUTE)
    return sum(window.contains(start + MINUTE * n) for n in range(total))


@given(MINUTES, MINUTES, ZONES, MOMENTS)
def test_fault_40_a_window_and_its_complement_share_no_moment(
    start: time, end: time, zone: ZoneInfo, at: datetime
) -> None:
    if start == end:
        assert OffPeakWindow(start, end, zone).contains(at)
        return
    inside = OffPeakWindow(start, end, zone).contains(at)
    assert inside != OffPeakWindow(end, start, zone).contains(at)


@given(MINUTES, MINUTES, ZONES, MOMENTS)
def test_fault_40_only_the_wall_clock_counts(
    start: time, end: time, zone: ZoneInfo, at: datetime
) -> None:
    wall = at.astimezone(zone).replace(tzinfo=None)
    opened = wall.replace(hour=start.hour, minute=start.minute, second=0, microsecond=0)
    if opened > wall:
        opened -= timedelta(days=1)
    length = (datetime.combine(opened, end) - datetime.combine(opened, start)) % timedelta(
        days=1
    ) or timedelta(days=1)
    assert OffPeakWindow(start, end, zone).contains(at) == (wall - opened < length)


@settings(max_examples=40, deadline=None)
@given(MINUTES, MINUTES, ZONES, MOMENTS)
def test_fault_40_the_next_opening_is_inside_and_none_comes_before(
    start: time, end: time, zone: ZoneInfo, at: datetime
) -> None:
    window = OffPeakWindow(start, end, zone)
    try:
        opening = window.next_opening(at)
    except ValueError:
        pytest.fail("a window of a minute or more opens within three days")
    assert opening >= at
    assert opening.tzinfo is UTC
    assert window.contains(opening)
    if opening > at:
        assert count_minutes(window, at, opening) == 0


@given(st.times(), st.times(), ZONES, MOMENTS)
def test_fault_40_a_window_may_have_seconds(
    start: time, end: time, zone: ZoneInfo, at: datetime
) -> None:
    start, end = start.replace(microsecond=0), end.replace(microsecond=0)
    window = OffPeakWindow(start, end, zone)
    try:
        opening = window.next_opening(at)
    except ValueError:
        pytest.fail("it opens within three days")
    assert opening >= at
    assert window.contains(opening)
    offsets = {moment.astimezone(zone).utcoffset() for moment in (at, opening)}
    if opening > at and len(offsets) == 1:
        assert not window.contains(opening - timedelta(microseconds=1))
        assert opening.astimezone(zone).time() == start


def test_what_has_seconds_shows_them() -> None:
    assert str(OffPeakWindow(time(0, 30), time(6, 0, 15), BERLIN)) == "00:30–06:00:15 Europe/Berlin"


def test_fault_40_a_window_crosses_midnight() -> None:
    window = OffPeakWindow(time(22, 30), time(6), BERLIN)
    day = datetime(2026, 11, 21, tzinfo=BERLIN)
    assert not window.contains(day.replace(hour=22, minute=29))
    assert window.contains(day.replace(hour=22, minute=30))
    assert window.contains(day.replace(hour=23, minute=59))
    assert window.contains(day)
    assert window.contains(day.replace(hour=5, minute=59))
    assert not window.contains(day.replace(hour=6))


def test_fault_40_a_doubled_hour_counts_twice() -> None:
    # Berlin, 25 October 2026: 02:00 to 03:00 comes twice, from 00:00 and from 01:00 UTC.
    window = OffPeakWindow(time(2), time(3), BERLIN)
    start = datetime(2026, 10, 24, 12, tzinfo=UTC)
    assert count_minutes(window, start, start + timedelta(days=1)) == 120
    assert window.contains(datetime(2026, 10, 25, 0, 30, tzinfo=UTC))
    assert window.contains(datetime(2026, 10, 25, 1, 30, tzinfo=UTC))
    assert not window.contains(datetime(2026, 10, 25, 2, 0, tzinfo=UTC))


def test_fault_40_a_window_that_ends_in_the_doubled_hour_opens_again() -> None:
    window = OffPeakWindow(time(1), time(2, 30), BERLIN)
    closed = datetime(2026, 10, 25, 0, 30, tzinfo=UTC)  # 02:30, the first time
    assert not window.contains(closed)
    assert window.next_opening(closed) == datetime(2026, 10, 25, 1, 0, tzinfo=UTC)


def test_fault_40_a_missing_hour_does_not_count() -> None:
    # Berlin, 29 March 2026: 02:00 to 03:00 does not exist; 01:00 UTC is 03:00.
    start = datetime(2026, 3, 28, 12, tzinfo=UTC)
    missing = OffPeakWindow(time(2), time(3), BERLIN)
    assert count_minutes(missing, start, start + timedelta(days=1)) == 0
    across = OffPeakWindow(time(1, 30), time(3, 30), BERLIN)
    assert count_minutes(across, start, start + timedelta(days=1)) == 60


def test_fault_40_a_window_that_is_missing_today_opens_tomorrow() -> None:
    window = OffPeakWindow(time(2), time(3), BERLIN)
    # The last 02:xx before the change is on the 28th, 01:00 UTC; the next on the 30th, 00:00 UTC.
    after = datetime(2026, 3, 28, 12, tzinfo=UTC)
    assert window.next_opening(after) == datetime(2026, 3, 30, 0, 0, tzinfo=UTC)


@given(st.integers(0, 10**6), st.sampled_from(["ms", "s", "m", "h", "d"]))
def test_durations_read_as_their_unit_says(number: int, unit: str) -> None:
    word = {"ms": "milliseconds", "s": "seconds", "m": "minutes", "h": "hours", "d": "days"}[unit]
    expected = timedelta(**{word: number})
    assert abs(parse_duration(f"{number}{unit}") - expected) <= timedelta(microseconds=1)


def test_durations_add_up_and_nothing_else_is_one() -> None:
    assert parse_duration("1h30m") == timedelta(minutes=90)
    for text in ("", "10", "h", "-5m", "1.5h", "5 m", "5min"):
        with pytest.raises(ValueError, match="not a duration"):
            parse_duration(text)
    for text in ("9" * 20 + "d", "9" * 400 + "ms"):
        with pytest.raises(ValueError, match="longer than any duration"):
            parse_duration(text)


@given(MOMENTS, ZONES)
def test_times_read_back_and_are_utc(at: datetime, zone: ZoneInfo) -> None:
    assert read_time(format_time(at.astimezone(zone))) == at
    assert parse_time(format_time(at), zone) == at


def test_a_time_without_a_zone_is_of_the_zone_given() -> None:
    expected = datetime(2026, 11, 21, 0, 30, tzinfo=UTC)
    assert parse_time("2026-11-21T01:30:00", BERLIN) == expected
    assert parse_time("2026-11-21T01:30:00+01:00", ZoneInfo("UTC")) == expected


def test_a_deadline_never_has_less_than_nothing_left() -> None:
    assert Deadline(-1).remaining() == 0
    assert Deadline(-1).expired
    assert Deadline(100).remaining(at_most=5) == 5
    assert not Deadline(100).expired


@settings(max_examples=40, deadline=None)
@given(MINUTES, MINUTES, ZONES, MOMENTS)
def test_the_last_opening_is_one_and_no_other_came_since(
    start: time, end: time, zone: ZoneInfo, at: datetime
) -> None:
    window = OffPeakWindow(start, end, zone)
    opening = window.last_opening(at)
    if start == end:
        assert opening == at - timedelta(days=1)
        return
    assert at - timedelta(days=1) <= opening <= at
    if opening > at - timedelta(days=1):
        assert window.contains(opening)
        assert not window.contains(opening - MINUTE)
    moments = [opening + MINUTE * n for n in range(1, int((at - opening) / MINUTE) + 1)]
    assert not any(window.contains(m) and not window.contains(m - MINUTE) for m in moments)


def test_the_night_that_is_open_began_when_its_window_opened() -> None:
    window = OffPeakWindow(time(22, 30), time(6, 0), BERLIN)
    night = datetime(2026, 11, 20, 21, 30, tzinfo=UTC)
    for hours in (0.0, 0.25, 7.4, 20.0):
        assert window.last_opening(night + timedelta(hours=hours)) == night
