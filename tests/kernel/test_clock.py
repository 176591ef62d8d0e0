"""Off-peak windows, durations, polling, progress lines, and names that can be seen and pasted."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
from datetime import UTC, datetime, time, timedelta
from io import StringIO
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from backlogctl.clock import (
    Deadline,
    OffPeakWindow,
    find_doubled_times,
    format_time,
    parse_duration,
    parse_time,
    read_time,
    utc_now,
)
from backlogctl.errors import LedgerError
from backlogctl.formats import Ticker
from backlogctl.replay.present.layout import Text
from backlogctl_delivery.metrics import FRESH_SECONDS, KEPT_SECONDS, Poll
from backlogctl_delivery.visible import (
    VisibleFormatter,
    escape_name,
    escape_text,
    join_lines,
    join_words,
    quote_word,
    show_value,
)
from tests.kit.kafka import wait_until

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
    opening = window.next_opening(at)
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
    opening = window.next_opening(at)
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


FIGURES = ("figures",)


class World:
    """A database that answers, fails or hangs, and a clock that is turned by hand."""

    def __init__(self, wait: float = 60.0) -> None:
        self.now = 0.0
        self.asked = 0
        self.error: Exception | None = None
        self.open = threading.Event()
        self.open.set()
        self.source = Poll("the ledger", self.collect, wait=wait, clock=lambda: self.now)

    def collect(self) -> tuple[str, ...]:
        self.asked += 1
        assert self.open.wait(120)
        if self.error is not None:
            raise self.error
        return FIGURES

    def hang(self) -> None:
        self.open.clear()


def test_it_is_asked_again_when_the_answer_is_not_fresh() -> None:
    world = World()
    for turned, asked in ((0.0, 1), (FRESH_SECONDS, 1), (0.1, 2)):
        world.now += turned
        assert world.source.read() is FIGURES
        assert world.asked == asked


def test_a_failure_is_kept_too() -> None:
    world = World()
    assert world.source.answers()
    world.now += FRESH_SECONDS + 0.1
    world.error = LedgerError("it is away", subject="ledger")
    assert [world.source.read() for _ in range(3)] == [None] * 3
    assert world.asked == 2
    world.error = RuntimeError("a bug")
    world.now += FRESH_SECONDS + 0.1
    assert not world.source.answers()
    world.error = None
    world.now += FRESH_SECONDS + 0.1
    assert world.source.answers()


def test_of_one_that_hangs_the_figures_are_shown_for_a_minute_and_it_is_asked_once() -> None:
    world = World(wait=0.01)
    wait_until(world.source.answers, 60)
    world.hang()
    for turned, shown in ((KEPT_SECONDS - 1, FIGURES), (2.0, None), (3600.0, None)):
        world.now += turned
        assert world.source.read() is shown
    # Who asks is a thread of its own, and may not have begun.
    wait_until(lambda: world.asked >= 2, 60)
    assert world.source.read() is None
    assert world.asked == 2
    world.open.set()
    wait_until(world.source.answers, 60)
    assert world.asked == 2


class Clock:
    """Waits of a ticker: `ticks` of them pass at once, then it waits until it is stopped."""

    def __init__(self, ticks: int) -> None:
        self.left = ticks
        self.asked: list[float] = []
        self.over = threading.Event()

    def wait(self, stopped: threading.Event, seconds: float) -> bool:
        self.asked.append(seconds)
        if self.left:
            self.left -= 1
            return stopped.is_set()
        self.over.set()
        return stopped.wait(60)


def test_a_ticker_ticks_each_ten_seconds_and_its_thread_ends() -> None:
    clock, told = Clock(3), list[str]()
    with Ticker(lambda: told.append("tick"), wait=clock.wait):
        assert clock.over.wait(60)
        assert "progress" in {thread.name for thread in threading.enumerate()}
    assert told == ["tick"] * 3
    assert clock.asked == [10.0] * 4
    assert "progress" not in {thread.name for thread in threading.enumerate()}


def test_a_tick_that_fails_is_dropped_and_the_next_one_comes() -> None:
    clock, told = Clock(3), list[int]()

    def tick() -> None:
        told.append(len(told))
        raise RuntimeError("nothing to tell")

    with Ticker(tick, wait=clock.wait):
        assert clock.over.wait(60)
    assert told == [0, 1, 2]


def test_nothing_is_told_of_what_takes_less() -> None:
    clock, told = Clock(0), list[str]()
    ticker = Ticker(lambda: told.append("tick"), wait=clock.wait)
    ticker.start()
    ticker.stop()
    ticker.stop()
    assert not told


NAMES = st.text(st.characters(codec="utf-8"), max_size=12)
TRICKY = st.text(st.sampled_from("\\xu1b0\x1b\nn'$"), max_size=8)


def unquote(words: str, locale: str) -> bytes:
    """What bash makes of the words."""
    script = f"printf '%s\\0' {words}"
    done = subprocess.run(
        ["bash", "-c", script], env={"LC_ALL": locale}, capture_output=True, check=True
    )
    return done.stdout


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("order-service", "order-service"),
        ("日本\u3000語 é", "日本\u3000語 é"),
        (r"DOMAIN\users", r"DOMAIN\users"),
        ("a\x1b[2J", r"a\x1b[2J"),
        (r"a\x1b[2J", r"a\\x1b[2J"),
        ("a\nb\tc\rd\0", r"a\nb\tc\rd\x00"),
        ("\x9b\u202e\u2066\u2028\u200b\ufeff", r"\u009b\u202e\u2066\u2028\u200b\ufeff"),
        ("\U000e0041", r"\U000e0041"),
    ],
)
def test_a_name_as_it_is_shown(name: str, shown: str) -> None:
    assert escape_name(name) == shown


@given(st.lists(NAMES | TRICKY, min_size=2, max_size=2, unique=True))
def test_two_names_never_look_the_same(names: list[str]) -> None:
    assert escape_name(names[0]) != escape_name(names[1])


@settings(max_examples=40, deadline=None)
@given(st.lists((NAMES | TRICKY).filter(lambda name: "\0" not in name), min_size=1, max_size=20))
def test_a_shell_reads_a_printed_command_back(names: list[str]) -> None:
    words = join_words(names)
    assert escape_text(words) == words
    wanted = b"".join(name.encode() + b"\0" for name in names)
    assert unquote(words, "C") == unquote(words, "C.UTF-8") == wanted


def test_what_no_shell_can_pass_names_nothing_else() -> None:
    assert unquote(quote_word("a\0b"), "C") == rb"a\x00b" + b"\0"


def test_only_lines_of_ours_are_apart() -> None:
    tail = join_lines(["Traceback:", "\tat Main"])
    assert escape_text(f"it ended:\n  {tail}") == "it ended:\n  Traceback:\n          at Main"
    assert escape_text("group a\nerror: b") == r"group a\nerror: b"


def test_the_terminal_and_templates_get_nothing_else() -> None:
    console = Console(file=StringIO(), width=200)
    for text in (Text("\x1b[1m[b]x\n"), Text.assemble("\x1b[1m", ("[b]x\n", "red")), Text()):
        console.print(text if text.plain else text.append("\x1b[1m[b]x\n"))
    assert isinstance(console.file, StringIO)
    assert console.file.getvalue().splitlines() == [r"\x1b[1m[b]x\n"] * 3
    assert show_value("\u202e") == r"\u202e"
    assert show_value(3) == 3


def test_a_log_line_stays_one_line_and_a_traceback_its_own() -> None:
    stream = StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(VisibleFormatter())
    try:
        raise ValueError("of \x1b[2Jx")
    except ValueError:
        seen = sys.exc_info()
    record = logging.LogRecord("x", 30, __file__, 1, "group %s", ("a\nb\x07",), seen)
    handler.emit(record)
    lines = stream.getvalue().splitlines()
    assert lines[:2] == [r"group a\nb\x07", "Traceback (most recent call last):"]
    assert lines[-1] == r"ValueError: of \x1b[2Jx"


def test_fault_95_a_clock_that_is_set_back_says_each_time_twice() -> None:
    def list_doubled(name: str) -> list[str]:
        found = find_doubled_times(ZoneInfo(name), datetime(2027, 1, 1, tzinfo=UTC))
        return [f"{begin:%Y-%m-%dT%H:%M}/{end:%H:%M}" for begin, end in found]

    assert list_doubled("UTC") == []
    assert list_doubled("Europe/Berlin")[-1] == "2026-10-25T00:00/02:00"
    assert list_doubled("Australia/Lord_Howe")[-1] == "2026-04-04T14:30/15:30"
    for begin, end in find_doubled_times(ZoneInfo("America/New_York"), utc_now()):
        said = [
            (begin + i * (end - begin) / 2).astimezone(ZoneInfo("America/New_York")).time()
            for i in range(2)
        ]
        assert said[0] == said[1]
