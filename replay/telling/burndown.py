"""How far a recovery is, for a terminal: what is left, how fast it goes, the steps."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import RenderableType

from backlog.numbers import (
    format_count,
    format_duration,
    format_moment,
    format_plural,
    format_rate,
)
from replay.telling.events import name_step
from replay.telling.layout import Facts, Framed, Table, Text
from replay.telling.terminal import Document

_WIDTH = 98
_BLOCKS = "▁▂▃▄▅▆▇█"
_BAR_CELLS = 36


def draw_progress(progress: Document, width: int = _WIDTH) -> RenderableType:
    """How far it is, from `describe_progress`: what is left, how fast it goes, the steps."""
    parts: list[RenderableType] = []
    if down := progress["burndown"]:
        parts.append(_draw_left(down, live=progress["live"]))
    if sent := progress["injection"]:
        grid = Facts()
        grid.add("put back", _draw_bar(sent["injected"], sent["staged"]))
        if rate := sent["injected_per_second"]:
            left = f", done in about {format_duration(sent['eta_seconds'])}"
            grid.add("", f"{format_rate(rate)}{left if sent['eta_seconds'] else ''}")
        parts.append(grid)
    parts.append(_draw_steps(progress["steps"]))
    title = Text("progress", style="bold")
    if progress["step"]:
        title = Text.assemble(("now: ", "bold"), (name_step(progress["step"]), "bold cyan"))
    return Framed(title, parts, width)


def _draw_left(down: Document, *, live: bool) -> RenderableType:
    total = down["handled"] + down["left"]
    grid = Facts()
    grid.add("handled", _draw_bar(down["handled"], total))
    if len(down["curve"]) > 1:
        curve = Text(_draw_curve(down["curve"]), style="cyan")
        curve.append(f"  {format_count(down['left'])} left", "bold")
        curve.append(f" after {format_duration(down['seconds'])}", "dim")
        grid.add("unread", curve)
    grid.add("topic", _draw_flow(down["source_lag"], "relayed", down, live=live))
    grid.add("temporary", _draw_flow(down["temporary_lag"], "handled", down, live=live))
    if live and down["consumers"] is not None:
        grid.add("running", format_plural(down["consumers"], "recovery consumer"))
    if live:
        eta = down["eta_seconds"]
        if not down["left"]:
            told = Text("drained", style="bold green")
        elif eta is None:
            told = Text("not yet known when it is drained", style="dim")
        elif eta < 1:
            told = Text("drained in a moment", style="bold green")
        else:
            told = Text.assemble("drained in about ", (format_duration(eta), "bold green"))
        grid.add("", told)
    return grid


def _draw_bar(done: int, total: int) -> Text:
    share = done / total if total else 1.0
    full = round(share * _BAR_CELLS)
    return Text.assemble(
        ("━" * full, "green"),
        ("━" * (_BAR_CELLS - full), "bright_black"),
        (f" {int(share * 100)} %", "bold"),
        f"  {format_count(done)} of {format_count(total)}",
    )


def _draw_flow(left: int, verb: str, down: Document, *, live: bool) -> Text:
    told = Text.assemble((format_count(left), "bold"), f" left, {format_count(down[verb])} {verb}")
    rate = down[f"{verb}_per_second"]
    if live and rate:
        told.append(f", {format_rate(rate)}", style="cyan")
    return told


def _draw_curve(values: Sequence[int]) -> str:
    top = max(values)
    if not top:
        return _BLOCKS[0] * len(values)
    # What is not yet zero is drawn higher than zero.
    return "".join(
        _BLOCKS[0 if not value else max(1, round(value / top * (len(_BLOCKS) - 1)))]
        for value in values
    )


def _draw_steps(steps: Sequence[Document]) -> RenderableType:
    if not steps:
        return Text("no step has begun", style="dim")
    table = Table("", "=step", "=began", "#took", "")
    marks = {"done": ("✓", "green"), "running": ("▶", "cyan"), "stopped": ("■", "yellow")}
    for step in steps:
        mark, style = marks[step["state"]]
        again = f"{step['attempts']} attempts" if step["attempts"] > 1 else ""
        table.add(
            Text(mark, style=style),
            Text(name_step(step["step"]), style="bold" if step["state"] == "running" else ""),
            format_moment(step["started_at"])[11:],
            format_duration(step["seconds"]),
            Text(again, style="dim"),
        )
    return table
