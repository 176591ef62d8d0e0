"""Numbers, sizes and times as people read them."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from types import TracebackType
from typing import Self

from backlogctl_delivery.visible import escape_text


def format_count(count: int | None) -> str:
    """`1,000`, `1.2 M`, `3.4 G`; a dash for None."""
    if count is None:
        return "—"
    for limit, unit in ((10**9, "G"), (10**6, "M")):
        if abs(count) >= limit:
            return f"{count / limit:.1f} {unit}"
    return f"{count:,}"


def format_bytes(count: int | None) -> str:
    """`512 B`, `1.2 MB`, `3.4 GB`; a dash for None."""
    if count is None:
        return "—"
    for size, unit in ((10**12, "TB"), (10**9, "GB"), (10**6, "MB"), (10**3, "kB")):
        if abs(count) >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} B"


def format_plural(count: int, noun: str) -> str:
    """`1 message`, `2,000 messages`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def format_duration(seconds: float | None) -> str:
    """`45 s`, `3 min`, `3 h 10 min`, `2 d 4 h`; a dash for None."""
    if seconds is None:
        return "—"
    if seconds < 1:
        return "under 1 s" if seconds > 0 else "0 s"
    whole = round(seconds)
    for size, unit, smaller, smaller_unit in (
        (86400, "d", 3600, "h"),
        (3600, "h", 60, "min"),
        (60, "min", 1, "s"),
    ):
        if whole >= size:
            rest = whole % size // smaller
            show_rest = rest and not (unit == "min" and whole >= 600)
            tail = f" {rest} {smaller_unit}" if show_rest else ""
            return f"{whole // size} {unit}{tail}"
    return f"{whole} s"


def format_rate(rate: float | None) -> str:
    """`4.2/s`, `1,200/s`; a dash for None."""
    if rate is None:
        return "—"
    return f"{rate:.1f}/s" if 0 < rate < 10 else f"{format_count(round(rate))}/s"


def format_moment(moment: datetime | str | None) -> str:
    """`2026-11-21 01:02:03Z`; `…` for an open bound; a text that is no time as it is."""
    if not moment:
        return "…"
    try:
        at = datetime.fromisoformat(moment) if isinstance(moment, str) else moment
    except ValueError:
        return str(moment)
    at = at.astimezone(UTC)
    return f"{at:%Y-%m-%d %H:%M:%S}Z"


# Progress of long work as lines for people.

Say = Callable[[str], None]
"""Takes one line for people."""

TICK_SECONDS = 10.0
_END_SECONDS = 5.0


def print_line(line: str) -> None:
    sys.stderr.write(f"{escape_text(line)}\n")


class Ticker:
    """Calls `tick` each ten seconds, from a thread, until it is stopped.

    What `tick` raises is dropped: telling how far work is must not fail it.
    """

    def __init__(
        self,
        tick: Callable[[], None],
        *,
        wait: Callable[[threading.Event, float], bool] = threading.Event.wait,
    ) -> None:
        self._tick, self._wait = tick, wait
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begins to tick; the first tick comes after ten seconds."""
        if self._thread is None:
            self._stopped.clear()
            self._thread = threading.Thread(target=self._run, name="progress", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Ends the thread; a tick that hangs is not waited for long."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join(_END_SECONDS)
            self._thread = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def _run(self) -> None:
        while not self._wait(self._stopped, TICK_SECONDS):
            with suppress(Exception):
                self._tick()
