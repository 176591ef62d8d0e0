"""A plot of what `audit counts` counted: rows, messages and handled rows over event time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from backlog.numbers import format_duration
from monitoring.plots import Mark, Series, draw_lines

_TIERS = (
    ("rows", "rows"),
    ("messages", "messages"),
    ("archived", "in an archive"),
    ("handled", "handled"),
)
_DIFFERENCES = (("rows_without_message", "without message"), ("not_handled", "not handled"))
_MARKED = 3


def draw_counts(windows: Sequence[Mapping[str, Any]], *, wide: bool = True) -> str:
    """An `<svg>` element of `tables["windows"]`; the worst windows are marked.

    Windows at the ends that are narrower than the others are left out: their counts would look
    like a fall.
    """
    spans = [(_read(one["start"]), _read(one["end"]), one) for one in windows]
    width = max((end - start for start, end, _ in spans), default=timedelta(0))
    full = [(start + width / 2, one) for start, end, one in spans if end - start == width]
    series = [
        Series(name, [(at, one.get(key)) for at, one in full])
        for key, name in _TIERS
        # Few streams have an archive, and what is on record of earlier audits has no such count.
        if any(one.get(key) if key == "archived" else one[key] is not None for _, one in full)
    ]
    title = (
        f"rows, messages and handled rows in windows of {format_duration(width.total_seconds())}"
    )
    return draw_lines(series, marks=list(_mark_worst(full)), y="messages", title=title, wide=wide)


def _mark_worst(full: Sequence[tuple[datetime, Mapping[str, Any]]]) -> Iterator[Mark]:
    for key, name in _DIFFERENCES:
        ranked = sorted(
            ((one[key] or 0, at) for at, one in full), key=lambda one: (-one[0], one[1])
        )
        for count, at in ranked[:_MARKED]:
            if count:
                yield Mark(at, f"{count:,} {name}")


def _read(text: str) -> datetime:
    return datetime.fromisoformat(text)
