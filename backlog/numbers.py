"""Numbers, sizes and times as people read them."""

from __future__ import annotations

from datetime import UTC, datetime


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
