"""What the templates call: numbers, times and words, and the tone of each verdict and state."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from backlogctl.formats import (
    format_bytes,
    format_count,
    format_duration,
    format_plural,
    format_rate,
)
from backlogctl.monitoring.verdict.status import Verdict
from backlogctl.replay.present.tones import find_tone

# A sample older than this many intervals is marked.
STALE_INTERVALS = 3

MEANINGS: Mapping[Verdict, str] = {
    Verdict.OK: "nothing unread, or what is unread gets less at times",
    Verdict.LAGGING: "something unread, and too few samples yet to tell more, or a job is due",
    Verdict.UNKNOWN: "written, and the group has no committed offset",
    Verdict.WARN: "the lag never fell in the window, or a recovery has stopped the consumers",
    Verdict.BLOCKED: "messages lie behind a transaction that has been open for too long",
    Verdict.STALL: "members and lag, and the commit did not move in the window",
    Verdict.STOP: "no members, lag, and no commit in the window",
    Verdict.REWIND: "the committed offset went back, and did not recover",
    Verdict.BEYOND_END: "the committed offset lies beyond the end of the log",
    Verdict.LOSING: "retention passes the committed offset within the horizon",
    Verdict.LOST: "messages are gone that the group never read",
}


def say_word(word: object) -> str:
    """`beyond_end` as people read it."""
    return str(word).replace("_", " ")


def say_moment(at: datetime | None) -> str:
    """`2026-11-21 01:02:03 UTC`; a dash for None."""
    return "—" if at is None else f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def say_ago(at: datetime, now: datetime) -> str:
    """`3 min ago`, `in 2 h`, `just now`."""
    seconds = (now - at).total_seconds()
    if abs(seconds) < 1:
        return "just now"
    told = format_duration(abs(seconds))
    return f"{told} ago" if seconds > 0 else f"in {told}"


def say_exactly(count: int | None) -> str:
    """All digits: `1,234,567`; a dash for None."""
    return "—" if count is None else f"{count:,}"


def is_stale(at: datetime, now: datetime, interval: timedelta) -> bool:
    """Whether what was seen then should have been seen again long ago."""
    return now - at > STALE_INTERVALS * interval + timedelta(seconds=5)


def list_filters(mask: Callable[[str], str]) -> dict[str, Callable[..., Any]]:
    """Jinja's filters. `masked` is for what others wrote: errors, reasons, details."""
    return {
        "count": format_count,
        "bytes": format_bytes,
        "duration": format_duration,
        "plural": format_plural,
        "exactly": say_exactly,
        "rate": format_rate,
        "moment": say_moment,
        "word": say_word,
        "tone": find_tone,
        "masked": lambda value: mask(str(value)),
    }
