"""A plan for a terminal."""

from __future__ import annotations

from rich.console import Group, RenderableType

from backlog.values import Recovery
from replay.telling.document import RecoveryDocument
from replay.telling.documents import UNKNOWN
from replay.telling.layout import Facts, Framed, Table, Text, tell
from replay.telling.terminal import (
    draw_warnings,
    style_word,
)
from replay.telling.value import Count, Telling
from replay.telling.value import Table as PlanTable

_WIDTH = 98
_SHOWN = 12
_STYLES = {"good": "bold green", "bad": "bold red", "warn": "yellow", "strong": "bold"}


def draw_plan(recovery: Recovery, told: Telling) -> RenderableType:
    """What will be done, why, and what to know before."""
    parts: list[RenderableType] = [tell(told.summary, "bold")]
    if told.own_counts:
        parts.append(_draw_counts(told.own_counts))
    if told.tables:
        parts.append(_draw_table(told.tables[0]))
    parts += [_draw_facts(told), Text(), _draw_answered(recovery, told)]
    parts += [tell(f"{told.verdict}: {why}", hang=2) for why in told.reasons]
    if told.warnings:
        parts += [Text(), *draw_warnings(told.warnings)]
    return Framed(draw_head(recovery, told.verdict), parts, _WIDTH)


def draw_document_plan(document: RecoveryDocument) -> RenderableType:
    """The plan of a recovery; what is known of it where this program cannot read the plan."""
    recovery = document.recovery
    if document.plan is not None:
        return draw_plan(recovery, document.plan)
    grid = Facts()
    grid.add("topic", f"{recovery.topic}, read by group {recovery.group}")
    _add_approver(grid, recovery)
    parts: list[RenderableType] = [
        tell(document.problem, "bold red"),
        tell(document.hint),
        Text(),
        grid,
    ]
    return Framed(draw_head(recovery, UNKNOWN), parts, _WIDTH)


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
    grid = Facts(is_counted=True)
    for count in counts:
        style = "bold" if count.strong else ""
        grid.add(Text(str(count), style=style), Text(count.words, style=style))
    return grid


def _draw_table(table: PlanTable) -> RenderableType:
    drawn = Table(*(f"#{name}" for name in table.columns))
    rows, rest = table.top(_SHOWN)
    for row in rows:
        cells: list[str | Text] = list(row.cells)
        cells[row.toned] = Text(row.cells[row.toned], style=_STYLES.get(row.tone, ""))
        drawn.add(*cells)
    return Group(drawn, tell(rest, "dim")) if rest else drawn


def _draw_facts(told: Telling) -> RenderableType:
    grid = Facts()
    for fact in told.facts:
        grid.add(fact.name, Text(fact.text, style=_STYLES.get(fact.tone, "")))
    return grid


def _draw_answered(recovery: Recovery, told: Telling) -> RenderableType:
    """What an approver answers for."""
    grid = Facts()
    for action in told.actions:
        for number, sentence in enumerate(action.sentences):
            grid.add("" if number else action.verb, sentence)
    grid.add("other groups", told.say_others("none reads the topic"))
    _add_approver(grid, recovery)
    return grid


def _add_approver(grid: Facts, recovery: Recovery) -> None:
    """Who approved, and what."""
    if recovery.approved_by:
        grid.add("approved by", f"{recovery.approved_by} ({recovery.approved_identity})")
    grid.add("plan hash", recovery.plan_hash)
