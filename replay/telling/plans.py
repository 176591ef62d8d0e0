"""A plan for a terminal."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table as Grid

from backlog.errors import Refused
from backlog.values import Recovery
from replay.telling.documents import UNKNOWN
from replay.telling.terminal import (
    add_line,
    add_row,
    draw_warnings,
    make_grid,
    make_table,
    style_word,
)
from replay.telling.texts import Text
from replay.telling.value import Count, Table, Telling

_WIDTH = 98
_SHOWN = 12
_STYLES = {"good": "bold green", "bad": "bold red", "warn": "yellow", "strong": "bold"}


def draw_plan(recovery: Recovery, told: Telling) -> RenderableType:
    """What will be done, why, and what to know before."""
    parts: list[RenderableType] = [Text(told.summary, style="bold")]
    if told.own_counts:
        parts.append(_draw_counts(told.own_counts))
    if told.tables:
        parts.append(_draw_table(told.tables[0]))
    parts += [_draw_facts(told), Text(), _draw_answered(recovery, told)]
    parts += [Text(f"{told.verdict}: {why}") for why in told.reasons]
    if told.warnings:
        parts += [Text(), *draw_warnings(told.warnings)]
    head = draw_head(recovery, told.verdict)
    return Panel(Group(*parts), title=head, title_align="left", border_style="cyan", width=_WIDTH)


def draw_unread(recovery: Recovery, refused: Refused) -> RenderableType:
    """What is known of a recovery whose plan this program cannot read, and why it cannot."""
    grid = make_grid()
    add_line(grid, "topic", f"{recovery.topic}, read by group {recovery.group}")
    _add_approver(grid, recovery)
    parts: list[RenderableType] = [
        Text(refused.message, style="bold red"),
        Text(refused.hint),
        Text(),
        grid,
    ]
    head = draw_head(recovery, UNKNOWN)
    return Panel(Group(*parts), title=head, title_align="left", border_style="cyan", width=_WIDTH)


def draw_head(recovery: Recovery, verdict: str) -> Text:
    """`r-20261121-0001  expand orders  running  wins`."""
    return Text.assemble(
        (recovery.id, "bold"),
        f"  {recovery.kind} {recovery.stream}  ",
        style_word(str(recovery.state)),
        "  ",
        style_word(verdict.replace("_", " ")),
    )


def _draw_counts(counts: tuple[Count, ...]) -> RenderableType:
    grid = Grid.grid(padding=(0, 2))
    grid.add_column(justify="right", no_wrap=True)
    grid.add_column()
    for count in counts:
        style = "bold" if count.strong else ""
        grid.add_row(Text(str(count), style=style), Text(count.words, style=style))
    return grid


def _draw_table(table: Table) -> RenderableType:
    drawn = make_table(*(f"#{name}" for name in table.columns))
    rows, rest = table.top(_SHOWN)
    for row in rows:
        cells: list[str | Text] = list(row.cells)
        cells[row.toned] = Text(row.cells[row.toned], style=_STYLES.get(row.tone, ""))
        add_row(drawn, *cells)
    return Group(drawn, Text(rest, style="dim")) if rest else drawn


def _draw_facts(told: Telling) -> RenderableType:
    grid = make_grid()
    for fact in told.facts:
        add_line(grid, fact.name, Text(fact.text, style=_STYLES.get(fact.tone, "")))
    return grid


def _draw_answered(recovery: Recovery, told: Telling) -> RenderableType:
    """What an approver answers for."""
    grid = make_grid()
    for action in told.actions:
        for number, sentence in enumerate(action.sentences):
            add_line(grid, "" if number else action.verb, sentence)
    add_line(grid, "other groups", told.say_others("none reads the topic"))
    _add_approver(grid, recovery)
    return grid


def _add_approver(grid: Grid, recovery: Recovery) -> None:
    """Who approved, and what."""
    if recovery.approved_by:
        add_line(grid, "approved by", f"{recovery.approved_by} ({recovery.approved_identity})")
    add_line(grid, "plan hash", f"{recovery.plan_hash[:16]}…")
