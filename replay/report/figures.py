"""The figures of a report, as inline SVG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from backlog.clock import read_time
from monitoring.plots import Mark, Series, draw_lines

# What a figure of the lag has to mark; every step would be too much there.
_LINES = 6
_MARKED = ("planned", "approved", "run began", "verified", "cancelled", "failed", "loss detected")


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure: what it shows, and its `<svg>`."""

    caption: str
    svg: str


def draw_figures(document: Mapping[str, Any]) -> dict[str, list[Figure]]:
    """Figures by the section that they belong to: lag and work."""
    return {"lag": _draw_lag(document), "work": list(_draw_work(document))}


def _draw_lag(document: Mapping[str, Any]) -> list[Figure]:
    points = _read(document["lag"], "lag")
    if len(points) < 2:
        return []
    first, last = points[0][0], points[-1][0]
    marks = [
        Mark(read_time(line["at"]), line["what"])
        for line in document["timeline"]["lines"]
        if line["what"] in _MARKED and first <= read_time(line["at"]) <= last
    ]
    caption = f"Unread offsets of topic {document['topic']} for group {document['group']}"
    svg = draw_lines([Series("unread", points)], marks=marks, y="messages", title=caption)
    return [Figure(caption, svg)]


def _draw_work(document: Mapping[str, Any]) -> Sequence[Figure]:
    figures: list[Figure] = []
    marks = [
        Mark(read_time(step["started_at"]), step["step"].replace("_", " "))
        for step in document["steps"]
    ]
    if down := document["burndown"]:
        lines = [
            Series("left in all", _read(down, "left")),
            Series("in the topic", _read(down, "source_lag")),
            Series("in the temporary topic", _read(down, "temporary_lag")),
        ]
        caption = "What was left to handle, step by step"
        svg = draw_lines(lines, marks=marks, y="messages", title=caption)
        figures.append(Figure(caption, svg))
    injection = document["injection"]
    if injection["points"]:
        total = [Series("put back", _read(injection["points"], "total"))]
        caption = "Messages put back, step by step"
        svg = draw_lines(total, marks=marks, y="messages", title=caption)
        figures.append(Figure(caption, svg))
    if disks := [one for one in document["disks"] if len(one["points"]) > 1]:
        used = [Series(one["of"], _read(one["points"], "used")) for one in disks]
        caption = "Used space, step by step"
        svg = draw_lines(used[:_LINES], marks=marks, y="bytes", title=caption)
        figures.append(Figure(caption, svg))
    if injection["rates"]:
        rates = [Series("rate", _read(injection["rates"], "messages_per_second"))]
        caption = "Messages put back a second"
        svg = draw_lines(rates, y="rate", title=caption)
        figures.append(Figure(caption, svg))
    return figures


def _read(rows: Sequence[Mapping[str, Any]], name: str) -> list[tuple[datetime, float | None]]:
    return [(read_time(row["at"]), row[name]) for row in rows]
