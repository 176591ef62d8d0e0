"""Draws lines over time. Numbers and times are those people read; the upright axis is from zero."""

from __future__ import annotations

import hashlib
import io
import math
import warnings
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from threading import Lock
from typing import TYPE_CHECKING, Any

from backlog.extras import explain_import
from monitoring.plots.labels import Label, keep_apart, place_labels
from monitoring.plots.scales import Unit, choose_ticks, label_ticks
from monitoring.plots.svg import ALARM, GRID, INK, LINES, adopt_svg, clean_text
from monitoring.plots.values import Mark, Series, Threshold

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# matplotlib's settings are the process's.
_LOCK = Lock()

# In the SVG's units, of which a wide figure has 720 and a narrow one 340.
_WIDE, _NARROW = 720, 340
_FONT = 11.0
_CHARACTER = 0.58 * _FONT  # generous: the page's font is not known here
_ROW = 1.45 * _FONT
_PLOT_WIDE, _PLOT_NARROW = 190, 150
# Left and right there is room for half a time of the day.
_BOTTOM, _TOP, _LEFT, _RIGHT = 36, 10, 34, 26
_LONGEST_NAME = 40
# A limit further above the lines than this is written as text: it would flatten them.
_IN_SIGHT = 4.0

_SETTINGS: Any = {
    "svg.hashsalt": "backlogctl",
    "svg.fonttype": "none",
    "text.parse_math": False,
    "text.usetex": False,
    "font.size": _FONT,
    "timezone": "UTC",
    "path.simplify": True,
    "axes.unicode_minus": True,
}


def draw_lines(
    series: Sequence[Series],
    *,
    marks: Sequence[Mark] = (),
    threshold: Threshold | None = None,
    y: Unit,
    title: str,
    wide: bool = True,
    name: str = "",
) -> str:
    """An `<svg>` element for inside a page, as wide as the page allows.

    The same arguments make the same text. Colours are the page's: `--plot-ink`, `--plot-grid`,
    `--plot-alarm`, `--plot-1` to `--plot-6`; without them they are those for white paper.

    Args:
        y: what the lines count: messages, seconds, messages a second, or bytes.
        title: what it shows, for those who do not see it; nothing is written above the lines.
        wide: for 500 pixels and more; a narrow one can be read on 320.
        name: distinguishes figures of the same content in one page.
    """
    drawn = [s for s in series if any(_is_number(value) for _, value in s.points)]
    ordered = sorted(marks, key=lambda mark: mark.at)
    with _LOCK, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a sign that its font lacks: the page's font draws it
        try:
            text = _draw(drawn, ordered, threshold, y, wide) if drawn else _draw_nothing(wide)
        except ImportError as error:
            if (missing := explain_import(error)) is None:
                raise
            return f"<p>No curve is drawn: {missing.hint}</p>"
    told = repr((series, marks, threshold, y, title, wide, name)).encode("utf-8", "replace")
    prefix = f"p{hashlib.sha256(told).hexdigest()[:10]}-"
    return adopt_svg(text, prefix=prefix, title=clean_text(title))


def _draw(
    series: Sequence[Series],
    marks: Sequence[Mark],
    threshold: Threshold | None,
    y: Unit,
    wide: bool,
) -> str:
    import matplotlib as mpl

    first, last = _find_span(series, marks)
    numbers = (_at_least_zero(value) for each in series for _, value in each.points)
    top = max(value for value in numbers if not math.isnan(value))
    limit = threshold.value if threshold else 0.0
    shown = threshold is not None and limit <= max(top, 1e-9) * _IN_SIGHT
    ticks = choose_ticks(max(top, limit * 1.02) if shown else top, y, 4 if wide else 3)
    names = label_ticks(ticks, y)

    width = _WIDE if wide else _NARROW
    left = max(_LEFT, 12 + max(len(name) for name in names) * _CHARACTER)
    room = width - left - _RIGHT
    seconds = (last - first).total_seconds()
    labels = place_labels(
        [((m.at - first).total_seconds() / seconds * room, _shorten(m.label)) for m in marks],
        right=room + _RIGHT,
        character=_CHARACTER,
        rows=4 if wide else 3,
        near=3.0,
    )
    label_room = (max(label.row for label in labels) + 1) * _ROW + 4 if labels else 0
    keys = _name_lines(series, threshold, shown=shown, y=y)
    key_rows = _break_keys(keys, width - left)
    height = _TOP + len(key_rows) * _ROW + label_room + (_PLOT_WIDE if wide else _PLOT_NARROW)
    with mpl.rc_context(_SETTINGS):
        figure = _make_figure(width, height + _BOTTOM)
        plot = height - _TOP - len(key_rows) * _ROW - label_room
        whole = height + _BOTTOM
        axes = figure.add_axes((left / width, _BOTTOM / whole, room / width, plot / whole))
        span: Any = (first, last)
        axes.set_xlim(span)
        axes.set_ylim(0, ticks[-1])
        axes.set_yticks(ticks, names)
        _style_axes(axes)
        _date_axis(axes, first, last, room, wide=wide)
        for number, each in enumerate(series):
            _draw_line(axes, each, LINES[number % len(LINES)], fill=len(series) == 1)
        if threshold and shown:
            axes.axhline(limit, color=ALARM, linewidth=1.2, dashes=(5, 3), zorder=2.5)
        _draw_marks(axes, labels, room, plot)
        _draw_keys(figure, key_rows, left, whole)
        return _save(figure)


def _draw_nothing(wide: bool) -> str:
    import matplotlib as mpl

    width, height = (_WIDE, 120) if wide else (_NARROW, 100)
    with mpl.rc_context(_SETTINGS):
        figure = _make_figure(width, height)
        from matplotlib.lines import Line2D

        line = Line2D([0.02, 0.98], [0.2, 0.2], color=GRID, linewidth=1)
        line.set_transform(figure.transFigure)
        figure.add_artist(line)
        figure.text(0.5, 0.5, "no data yet", color=INK, ha="center", va="center")
        return _save(figure)


def _make_figure(width: float, height: float) -> Figure:
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width / 72, height / 72))
    FigureCanvasSVG(figure)
    figure.patch.set_visible(False)
    return figure


def _save(figure: Figure) -> str:
    out = io.StringIO()
    figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    return out.getvalue()


def _style_axes(axes: Axes) -> None:
    axes.patch.set_visible(False)
    for side in ("left", "right", "top"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(GRID)
    axes.grid(True, axis="y", color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(axis="y", length=0, colors=INK, pad=6)
    axes.tick_params(axis="x", length=4, color=GRID, labelcolor=INK)


def _date_axis(axes: Axes, first: datetime, last: datetime, room: float, *, wide: bool) -> None:
    """Times below the plot; those that would cover the one before them are left out."""
    import matplotlib.dates

    dates: Any = matplotlib.dates
    locator = dates.AutoDateLocator(tz=UTC, minticks=3, maxticks=8 if wide else 4)
    formatter = dates.ConciseDateFormatter(
        locator,
        tz=UTC,
        formats=["%Y", "%b", "%d %b", "%H:%M", "%H:%M", "%H:%M:%S.%f"],
        zero_formats=["", "%Y", "%b", "%d %b", "%H:%M", "%H:%M:%S"],
        offset_formats=["UTC", "%Y UTC", "%Y UTC", *["%Y-%m-%d UTC"] * 3],
    )
    begin, end = dates.date2num(first), dates.date2num(last)
    ticks = [tick for tick in locator.tick_values(first, last) if begin <= tick <= end]
    names = formatter.format_ticks(ticks)
    shown = keep_apart(
        [((t - begin) / (end - begin) * room, name) for t, name in zip(ticks, names, strict=True)],
        _CHARACTER,
    )
    axes.set_xticks(ticks, [name if n in shown else "" for n, name in enumerate(names)])
    formatted: Any = axes.xaxis.get_major_formatter()
    formatted.set_offset_string(formatter.get_offset())
    axes.xaxis.get_offset_text().set_color(INK)


def _draw_line(axes: Axes, series: Series, colour: str, *, fill: bool) -> None:
    times: Any = [at for at, _ in series.points]
    values: Any = [_at_least_zero(value) for _, value in series.points]
    if fill:
        axes.fill_between(times, values, color=colour, alpha=0.12, linewidth=0)
    axes.plot(times, values, color=colour, linewidth=1.8, solid_joinstyle="round", clip_on=False)
    alone = list(_find_alone(values))
    if alone:
        axes.plot(
            [times[at] for at in alone],
            [values[at] for at in alone],
            color=colour,
            linestyle="",
            marker="o",
            markersize=4,
            clip_on=False,
        )


def _find_alone(values: Sequence[float]) -> Iterator[int]:
    """Points with no neighbour: no line would show them."""
    framed = [math.nan, *values, math.nan]
    for at, value in enumerate(values):
        if not math.isnan(value) and math.isnan(framed[at]) and math.isnan(framed[at + 2]):
            yield at


def _draw_marks(axes: Axes, labels: Sequence[Label], room: float, plot: float) -> None:
    from matplotlib.lines import Line2D

    for label in labels:
        x = label.x / room
        foot = 1 + (4 + label.row * _ROW) / plot
        line = Line2D([x, x], [0, foot], color=INK, linewidth=0.8, dashes=(1.5, 2), clip_on=False)
        line.set_transform(axes.transAxes)
        axes.add_artist(line)
        axes.text(
            (label.left + (2 if label.left < label.x else 0)) / room,
            foot + 2 / plot,
            label.text,
            color=INK,
            fontsize=_FONT,
            transform=axes.transAxes,
            va="bottom",
        )


def _name_lines(
    series: Sequence[Series], threshold: Threshold | None, *, shown: bool, y: Unit
) -> list[tuple[str, str, str]]:
    """(text, colour, kind) of what stands above the plot; one line alone needs no name."""
    keys = [
        (_shorten(each.name), LINES[number % len(LINES)], "-")
        for number, each in enumerate(series)
        if len(series) > 1
    ]
    if threshold:
        value = label_ticks([threshold.value], y)[0]
        where = "" if shown else ", above what is drawn"
        told = f"{_shorten(threshold.label)}: {value}{where}"
        keys.append((told, ALARM, "--" if shown else ""))
    return keys


def _break_keys(
    keys: Sequence[tuple[str, str, str]], room: float
) -> list[list[tuple[float, str, str, str]]]:
    """Rows of keys, each with where it begins."""
    rows: list[list[tuple[float, str, str, str]]] = []
    at = math.inf
    for text, colour, kind in keys:
        width = (len(text) + 2) * _CHARACTER + 22
        if at + width > room and at > 0:
            rows.append([])
            at = 0.0
        rows[-1].append((at, text, colour, kind))
        at += width
    return rows


def _draw_keys(
    figure: Figure,
    rows: Sequence[Sequence[tuple[float, str, str, str]]],
    left: float,
    height: float,
) -> None:
    from matplotlib.lines import Line2D

    width = figure.get_figwidth() * 72
    for row, keys in enumerate(rows):
        middle = 1 - (_TOP / 2 + (row + 0.5) * _ROW) / height
        for at, text, colour, kind in keys:
            begin = left + at
            if kind:
                ends = [begin / width, (begin + 16) / width]
                line = Line2D(ends, [middle, middle], color=colour, linewidth=2)
                line.set_dashes((4, 2) if kind == "--" else (1, 0))
                line.set_transform(figure.transFigure)
                figure.add_artist(line)
                begin += 22
            ink = INK if kind else ALARM
            figure.text(begin / width, middle, text, color=ink, va="center_baseline")


def _find_span(series: Sequence[Series], marks: Sequence[Mark]) -> tuple[datetime, datetime]:
    """From the first to the last moment; a single one is given a minute."""
    times = [at for each in series for at, _ in each.points] + [mark.at for mark in marks]
    first, last = min(times), max(times)
    if last - first < timedelta(milliseconds=10):
        first, last = first - timedelta(seconds=30), last + timedelta(seconds=30)
    return first.astimezone(UTC), last.astimezone(UTC)


def _shorten(text: str) -> str:
    clean = clean_text(text)
    return clean if len(clean) <= _LONGEST_NAME else f"{clean[: _LONGEST_NAME - 1]}…"


def _is_number(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


def _at_least_zero(value: float | None) -> float:
    return max(0.0, value) if value is not None and math.isfinite(value) else math.nan
