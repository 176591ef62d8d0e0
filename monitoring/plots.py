"""Line plots as inline SVG, for the page and the incident report.

Numbers and times are those people read; the upright axis is from zero. Colours are the page's
(`--plot-ink`, `--plot-1`, ...); without them they are those for white paper.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from html import escape
from itertools import pairwise
from typing import Literal

from backlogctl.formats import format_bytes, format_count, format_duration
from backlogctl_delivery.visible import escape_text

Unit = Literal["messages", "seconds", "rate", "bytes"]

# Legible on white paper, and apart from each other for those who see no red or green.
_INK, _GRID = "var(--plot-ink, #454c59)", "var(--plot-grid, #dde1e7)"
_ALARM = "var(--plot-alarm, #b3261e)"
_LINES = tuple(
    f"var(--plot-{number}, {colour})"
    for number, colour in enumerate(
        ("#1f5fa8", "#c05a00", "#0d7f6f", "#8a4fa0", "#7a6a1f", "#566270"), 1
    )
)
_FONT = 11
_CHARACTER = 0.58 * _FONT  # generous: the page's font is not known here
_ROW = 16
_BOTTOM, _TOP, _RIGHT = 36, 10, 26
_LONGEST_NAME = 40
# A limit further above the lines than this is written as text: it would flatten them.
_IN_SIGHT = 4.0
_DAY = 86400
_SECONDS = (1, 2, 3, 5, 10, 15, 30, 60, 120, 180, 300, 600, 900, 1800)
_HOURS = (3600, 7200, 10800, 21600, 43200)
_DAYS = tuple(_DAY * days for days in (1, 2, 4, 7, *(14 * 2**n for n in range(10))))
_TIME_WIDTH = 10 * _CHARACTER  # of `12:00:30` and a gap


@dataclass(frozen=True, slots=True)
class Series:
    """One line. Points are in the order of time; None breaks the line."""

    name: str
    points: Sequence[tuple[datetime, float | None]]


@dataclass(frozen=True, slots=True)
class Mark:
    at: datetime
    label: str


@dataclass(frozen=True, slots=True)
class Threshold:
    value: float
    label: str


@dataclass(frozen=True, slots=True)
class Label:
    """A text at `x`; it spans `[left, left + width)` in `row`, 0 being the lowest."""

    x: float
    text: str
    width: float
    left: float = 0.0
    row: int = 0


@dataclass(frozen=True, slots=True)
class _Frame:
    """The plot inside of the SVG, in its units."""

    left: float
    top: float
    width: float
    height: float
    first: datetime
    seconds: float
    highest: float

    @property
    def bottom(self) -> float:
        return self.top + self.height

    def x(self, at: datetime) -> float:
        return self.left + (at - self.first).total_seconds() / self.seconds * self.width

    def y(self, value: float) -> float:
        return self.bottom - value / self.highest * self.height


def draw_lines(
    series: Sequence[Series],
    *,
    marks: Sequence[Mark] = (),
    threshold: Threshold | None = None,
    y: Unit,
    title: str,
    wide: bool = True,
) -> str:
    """An `<svg>` element for inside a page, as wide as the page allows.

    Args:
        y: what the lines count: messages, seconds, messages a second, or bytes.
        title: what it shows, for those who do not see it; nothing is written above the lines.
        wide: for 500 pixels and more; a narrow one can be read on 320.
    """
    drawn = [s for s in series if any(_to_number(value) is not None for _, value in s.points)]
    width = 720 if wide else 340
    if not drawn:
        parts = [_text(width / 2, 55, "no data yet", anchor="middle")]
        return _wrap(parts, width, 110, title)
    ordered = sorted(marks, key=lambda mark: mark.at)
    first, seconds = _find_span(drawn, ordered)
    top = max(
        number for each in drawn for _, v in each.points if (number := _to_number(v)) is not None
    )
    limit = threshold.value if threshold else 0.0
    shown = threshold is not None and limit <= max(top, 1e-9) * _IN_SIGHT
    ticks = choose_ticks(max(top, limit * 1.02) if shown else top, y, 4 if wide else 3)
    names = label_ticks(ticks, y)
    left = max(34, 12 + max(map(len, names)) * _CHARACTER)
    room = width - left - _RIGHT
    labels = place_labels(
        [((m.at - first).total_seconds() / seconds * room, _shorten(m.label)) for m in ordered],
        right=room + _RIGHT,
        character=_CHARACTER,
        rows=4 if wide else 3,
        near=3.0,
    )
    keys = _break_keys(_list_keys(drawn, threshold, is_drawn=shown, unit=y), width - left)
    above = _TOP + len(keys) * _ROW
    above += (max(label.row for label in labels) + 1) * _ROW + 4 if labels else 0
    plot = _Frame(left, above, room, 190 if wide else 150, first, seconds, ticks[-1])
    parts = [*_draw_axes(plot, ticks, names), *_draw_times(plot)]
    for number, each in enumerate(drawn):
        parts += _draw_series(plot, each, _LINES[number % len(_LINES)], fill=len(drawn) == 1)
    if shown:
        parts.append(_line(left, plot.y(limit), left + room, plot.y(limit), _ALARM, dashes="5 3"))
    parts += [part for label in labels for part in _draw_mark(plot, label)]
    parts += _draw_keys(keys, left)
    return _wrap(parts, width, plot.bottom + _BOTTOM, title)


def _wrap(parts: Iterable[str], width: float, height: float, title: str) -> str:
    name = _clean(title)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height:g}" role="img" '
        f'aria-label="{name}" style="font-family: inherit; font-size: {_FONT}px"><title>{name}'
        f"</title>{''.join(parts)}</svg>"
    )


def _line(
    x: float, y: float, to_x: float, to_y: float, colour: str, *, width: float = 1, dashes: str = ""
) -> str:
    dashed = f"; stroke-dasharray: {dashes}" if dashes else ""
    return (
        f'<path d="M{x:.1f} {y:.1f}L{to_x:.1f} {to_y:.1f}" '
        f'style="stroke: {colour}; stroke-width: {width:g}{dashed}"/>'
    )


def _text(x: float, y: float, text: str, *, anchor: str = "start", colour: str = _INK) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" style="fill: {colour}; text-anchor: {anchor}">'
        f"{_clean(text)}</text>"
    )


def _clean(text: str) -> str:
    """Without what XML cannot hold, what turns its direction, and markup."""
    return escape(escape_text(text))


def _shorten(text: str) -> str:
    clean = escape_text(text)
    return clean if len(clean) <= _LONGEST_NAME else f"{clean[: _LONGEST_NAME - 1]}…"


def _draw_axes(plot: _Frame, ticks: Sequence[float], names: Sequence[str]) -> Iterator[str]:
    for tick, name in zip(ticks, names, strict=True):
        yield _line(plot.left, plot.y(tick), plot.left + plot.width, plot.y(tick), _GRID)
        yield _text(plot.left - 6, plot.y(tick) + 4, name, anchor="end")


def _draw_times(plot: _Frame) -> Iterator[str]:
    """Times below the plot, so few that none covers another, and the last day at its end."""
    least = plot.seconds / max(2, plot.width // _TIME_WIDTH)
    step = next((s for s in (*_SECONDS, *_HOURS, *_DAYS) if s >= least), _DAYS[-1])
    begin = plot.first.timestamp()
    for number in range(math.ceil(begin / step), math.floor((begin + plot.seconds) / step) + 1):
        at = datetime.fromtimestamp(number * step, UTC)
        x = plot.x(at)
        yield _line(x, plot.bottom, x, plot.bottom + 4, _GRID)
        midnight = step >= _DAY or at.hour == at.minute == at.second == 0
        name = f"{at:%d %b}" if midnight else f"{at:%H:%M}" if step >= 60 else f"{at:%H:%M:%S}"
        yield _text(x, plot.bottom + 16, name, anchor="middle")
    last = plot.first + timedelta(seconds=plot.seconds)
    right = plot.left + plot.width + _RIGHT
    yield _text(right, plot.bottom + 31, f"{last:%Y-%m-%d} UTC", anchor="end")


def _draw_series(plot: _Frame, series: Series, colour: str, *, fill: bool) -> Iterator[str]:
    """A line for each run of points; a dot where no neighbour makes it one."""
    for run in _split(plot, series.points):
        path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in run)
        if len(run) == 1:
            (x, y), *_ = run
            yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2" style="fill: {colour}"/>'
            continue
        if fill:
            foot = f"L{run[-1][0]:.1f} {plot.bottom:.1f}L{run[0][0]:.1f} {plot.bottom:.1f}Z"
            yield f'<path d="{path}{foot}" style="fill: {colour}; opacity: 0.12"/>'
        yield (
            f'<path d="{path}" style="fill: none; stroke: {colour}; stroke-width: 1.8; '
            'stroke-linejoin: round"/>'
        )


def _split(
    plot: _Frame, points: Sequence[tuple[datetime, float | None]]
) -> Iterator[list[tuple[float, float]]]:
    run: list[tuple[float, float]] = []
    for at, value in points:
        number = _to_number(value)
        if number is not None:
            run.append((plot.x(at), plot.y(number)))
        elif run:
            yield run
            run = []
    if run:
        yield run


def _draw_mark(plot: _Frame, label: Label) -> Iterator[str]:
    x, head = plot.left + label.x, plot.top - 4 - label.row * _ROW
    yield _line(x, plot.bottom, x, head, _INK, width=0.8, dashes="1.5 2")
    yield _text(plot.left + label.left, head - 3, label.text)


def _list_keys(
    series: Sequence[Series], threshold: Threshold | None, *, is_drawn: bool, unit: Unit
) -> Iterator[tuple[str, str, str]]:
    """(text, colour, dashes) of what stands above the plot; one line alone needs no name."""
    for number, each in enumerate(series if len(series) > 1 else ()):
        yield _shorten(each.name), _LINES[number % len(_LINES)], "1 0"
    if threshold:
        value = label_ticks([threshold.value], unit)[0]
        where = "" if is_drawn else ", above what is drawn"
        yield f"{_shorten(threshold.label)}: {value}{where}", _ALARM, "4 2" if is_drawn else ""


def _break_keys(
    keys: Iterable[tuple[str, str, str]], room: float
) -> list[list[tuple[float, str, str, str]]]:
    """Rows of keys, each with where it begins."""
    rows: list[list[tuple[float, str, str, str]]] = []
    at = math.inf
    for text, colour, dashes in keys:
        width = (len(text) + 2) * _CHARACTER + 22
        if at + width > room and at > 0:
            rows.append([])
            at = 0.0
        rows[-1].append((at, text, colour, dashes))
        at += width
    return rows


def _draw_keys(rows: Sequence[Sequence[tuple[float, str, str, str]]], left: float) -> Iterator[str]:
    for row, keys in enumerate(rows):
        middle = _TOP / 2 + (row + 0.5) * _ROW
        for at, text, colour, dashes in keys:
            begin = left + at
            if dashes:
                yield _line(begin, middle, begin + 16, middle, colour, width=2, dashes=dashes)
                begin += 22
            yield _text(begin, middle + 4, text, colour=_INK if dashes else _ALARM)


def _find_span(series: Sequence[Series], marks: Sequence[Mark]) -> tuple[datetime, float]:
    """The first moment, and the seconds to the last; a single moment is given a minute."""
    times = [at for each in series for at, _ in each.points] + [mark.at for mark in marks]
    first, seconds = min(times).astimezone(UTC), (max(times) - min(times)).total_seconds()
    return (first, seconds) if seconds >= 2 else (first - timedelta(seconds=30), seconds + 60)


def _to_number(value: float | None) -> float | None:
    """Never below zero; None for what is no number."""
    return max(0.0, value) if value is not None and math.isfinite(value) else None


def choose_ticks(top: float, unit: Unit, most: int) -> list[float]:
    """Ticks from zero to at or above `top`, at most `most` steps, at values that people say."""
    wanted = max(top, 1.0 if unit in ("messages", "bytes") or not top else 1e-6)
    step = _choose_step(wanted / most, unit)
    return [step * number for number in range(math.ceil(wanted / step - 1e-9) + 1)]


def _choose_step(least: float, unit: Unit) -> float:
    if unit == "seconds" and least > 1:
        days = _DAY * _round_up(least / _DAY)
        return float(next((s for s in (*_SECONDS, *_HOURS, _DAY) if s >= least), days))
    return max(1.0 if unit in ("messages", "bytes") else 0.0, _round_up(least))


def _round_up(least: float) -> float:
    size = 10.0 ** math.floor(math.log10(least))
    return next(size * step for step in (1, 2, 5, 10) if size * step >= least * (1 - 1e-9))


def label_ticks(ticks: Sequence[float], unit: Unit) -> list[str]:
    """`0`, `250,000`, `1.2 M`; `30 s`, `3 h 10 min`; `1,500/s`; `1.5 GB`."""
    return [_label(value, unit) if value else "0" for value in ticks]


def _label(value: float, unit: Unit) -> str:
    if unit == "seconds":
        return f"{value:g} s" if value < 10 else format_duration(value)
    if unit == "bytes":
        return format_bytes(round(value)).replace(".0 ", " ")
    number = f"{value:g}" if value < 10 else format_count(round(value)).replace(".0 ", " ")
    return f"{number}/s" if unit == "rate" else number


def place_labels(
    wanted: Sequence[tuple[float, str]], *, right: float, character: float, rows: int, near: float
) -> list[Label]:
    """Places labels so that none covers another or another's line.

    A label stands above the plot, at its line. Labels to the left stand higher than those to the
    right that they reach over; those that find no room are put together as `first … last`.

    Args:
        wanted: where each moment is, from left to right, and its text.
        right: where the room ends.
        character: the width of a character.
        rows: how many rows there are.
        near: moments that are as close as this are one.
    """
    groups = [[item] for item in wanted]
    while True:
        placed = _stack([_make_label(group, right, character) for group in groups])
        distances = [b[0][0] - a[-1][0] for a, b in pairwise(groups)]
        full = any(label.row >= rows for label in placed) or _is_crossed(placed)
        if not distances or (not full and min(distances) > near):
            return placed
        closest = distances.index(min(distances))
        groups[closest : closest + 2] = [groups[closest] + groups[closest + 1]]


def _make_label(group: list[tuple[float, str]], right: float, character: float) -> Label:
    first, last = group[0][1], group[-1][1]
    text = first if len(group) == 1 else f"{first} … {last}"
    width, x = (len(text) + 1) * character, group[0][0]
    return Label(x, text, width, left=max(0.0, min(x, right - width)))


def _stack(labels: Sequence[Label]) -> list[Label]:
    placed: list[Label] = []
    for label in reversed(labels):
        below = [
            other.row
            for other in placed
            if label.left < other.left + other.width
            and min(other.left, other.x) < label.left + label.width
        ]
        placed.append(replace(label, row=max(below, default=-1) + 1))
    return placed[::-1]


def _is_crossed(placed: Sequence[Label]) -> bool:
    """Whether the line to a high label goes through a low one that had to move to the left."""
    return any(
        low.row < high.row and low.left < high.x < low.left + low.width
        for high in placed
        for low in placed
    )
