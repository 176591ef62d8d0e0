"""The clock, deadlines and off-peak windows. Everything inside is aware and in UTC."""

from __future__ import annotations

import re
import time as monotonic_clock
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta
from zoneinfo import ZoneInfo

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def utc_now() -> datetime:
    return datetime.now(UTC)


def parse_duration(text: str) -> timedelta:
    """Reads `30s`, `10m`, `6h`, `1h30m`, `30d`.

    Raises:
        ValueError: for anything else.
    """
    parts = re.findall(r"(\d+)(ms|[smhd])", text.strip())
    if not parts or "".join(number + unit for number, unit in parts) != text.strip():
        raise ValueError(f"{text!r} is not a duration such as 30s, 10m, 6h or 30d")
    try:
        return timedelta(seconds=sum(int(number) * _UNITS[unit] for number, unit in parts))
    except OverflowError:
        raise ValueError(f"{text!r} is longer than any duration that can be counted") from None


def parse_time(text: str, zone: ZoneInfo) -> datetime:
    """Reads an ISO 8601 time; one without a zone is wall clock time in `zone`.

    Raises:
        ValueError: when it is not ISO 8601.
    """
    at = datetime.fromisoformat(text.strip())
    return (at if at.tzinfo else at.replace(tzinfo=zone)).astimezone(UTC)


def format_time(at: datetime) -> str:
    """ISO 8601 in UTC, to the microsecond: `2026-11-21T01:02:03.000004Z`."""
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def read_millis(milliseconds: int | None) -> datetime | None:
    """A time in Kafka's milliseconds since 1970; None for what is none: producers write any number,
    some in microseconds."""
    if milliseconds is None or milliseconds < 0:
        return None
    try:
        return datetime.fromtimestamp(milliseconds / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return None


def read_time(text: str) -> datetime:
    """What `format_time` wrote."""
    return datetime.fromisoformat(text).astimezone(UTC)


def find_doubled_times(zone: ZoneInfo, until: datetime) -> tuple[tuple[datetime, datetime], ...]:
    """Times `[begin, end)` since 1970, oldest first, in which the zone's wall clock says each time
    twice: as long before it is set back as after."""
    found = []
    at, day, second = datetime(1970, 1, 1, tzinfo=UTC), timedelta(days=1), timedelta(seconds=1)
    while at < until:
        low, high = at, at + day
        shift = _find_shift(zone, low) - _find_shift(zone, high)
        while shift > timedelta(0) and high - low > second:
            middle = low + (high - low) / 2
            is_before = _find_shift(zone, middle) == _find_shift(zone, at)
            low, high = (middle, high) if is_before else (low, middle)
        if shift > timedelta(0):
            turn = high.replace(microsecond=0)
            found.append((turn - shift, turn + shift))
        at += day
    return tuple(found)


def _find_shift(zone: ZoneInfo, at: datetime) -> timedelta:
    return at.astimezone(zone).utcoffset() or timedelta(0)


class Deadline:
    """One limit passed down through many calls, so that timeouts do not add up."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._end = monotonic_clock.monotonic() + seconds

    def remaining(self, at_most: float | None = None) -> float:
        """Seconds left, never negative, never more than `at_most`."""
        left = max(0.0, self._end - monotonic_clock.monotonic())
        return left if at_most is None else min(left, at_most)

    @property
    def expired(self) -> bool:
        return self.remaining() <= 0

    def part(self, at_most: float) -> Deadline:
        """A shorter one for one try; errors tell the seconds of the whole."""
        one = Deadline(self.remaining(at_most))
        one.seconds = self.seconds
        return one


def format_clock(moment: time) -> str:
    """`00:30`, or `00:30:15` where it has seconds."""
    return moment.isoformat("seconds" if moment.second else "minutes")


@dataclass(frozen=True, slots=True)
class OffPeakWindow:
    """Wall clock hours `[start, end)` of a time zone; may cross midnight.

    On the days when a local hour is missing or doubled the window is what the wall clock says: a
    doubled hour inside it counts twice, a missing one not at all.
    """

    start: time
    end: time
    zone: ZoneInfo

    def contains(self, at: datetime) -> bool:
        """Whether the wall clock of the zone is inside the window at `at`."""
        wall = at.astimezone(self.zone).time()
        if self.start == self.end:
            return True
        if self.start < self.end:
            return self.start <= wall < self.end
        return wall >= self.start or wall < self.end

    def next_opening(self, at: datetime) -> datetime:
        """The first moment at or after `at` that lies in the window, in UTC.

        Where the zone's offset changes, and the window has seconds, it may be less than a minute
        later.
        """
        if self.contains(at):
            return at.astimezone(UTC)
        # Minute steps in UTC follow the wall clock over any change of the zone's offset.
        moment = at.astimezone(UTC).replace(second=self.start.second, microsecond=0)
        if moment < at:
            moment += timedelta(minutes=1)
        for _ in range(3 * 24 * 60):
            if self.contains(moment):
                return moment
            moment += timedelta(minutes=1)
        raise ValueError("the window does not open within three days")

    def last_opening(self, at: datetime) -> datetime:
        """The last moment at or before `at` at which the window opened, in UTC, to the minute.

        Where it is always open, a day before.
        """
        moment = at.astimezone(UTC).replace(second=self.start.second, microsecond=0)
        if moment > at:
            moment -= timedelta(minutes=1)
        for _ in range(24 * 60):
            before = moment - timedelta(minutes=1)
            if self.contains(moment) and not self.contains(before):
                return moment
            moment = before
        return at.astimezone(UTC) - timedelta(days=1)

    def __str__(self) -> str:
        return f"{format_clock(self.start)}–{format_clock(self.end)} {self.zone.key}"
