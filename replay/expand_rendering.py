"""Tables of an expansion: its plan, and the burn-down while it runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from backlog.numbers import format_count, format_duration, format_moment, format_plural
from replay.kinds import EXPAND
from replay.rendering import Document, add_row, draw_plan, draw_warnings, make_table, style_word

_WIDTH = 98
_SHOWN_PARTITIONS = 12
_BLOCKS = "▁▂▃▄▅▆▇█"
_BAR_CELLS = 36
_WORTH_TELLING = 1.5
_ORDERS = {
    "key": "messages of a key stay in order",
    "round_robin": "spread evenly, in no order",
}


def draw_recovery(document: Document) -> RenderableType:
    """`plan` and `show`, of either kind."""
    return draw_expand_plan(document) if document["kind"] == EXPAND else draw_plan(document)


def draw_expand_plan(document: Document) -> RenderableType:
    """What is behind, how long it takes, what will be done to whom, and what to know before."""
    summary = Text(format_plural(document["counts"]["lag"], "message"), style="bold")
    summary.append(f" of topic {document['topic']} unread by group {document['group']}", "default")
    parts: list[RenderableType] = [
        summary,
        _draw_behind(document["partitions"]),
        _draw_race(document),
        Text(),
        _draw_deeds(document),
    ]
    if document["warnings"]:
        parts += [Text(), *draw_warnings(document["warnings"])]
    return Panel(
        Group(*parts),
        title=draw_head(document),
        title_align="left",
        border_style="cyan",
        width=_WIDTH,
    )


def draw_head(document: Document) -> Text:
    """`r-20261121-0001  expand orders  running  wins`."""
    return Text.assemble(
        (str(document["id"]), "bold"),
        f"  {document['kind']} {document['stream']}  ",
        style_word(str(document["state"])),
        "  ",
        style_word(str(document["verdict"]).replace("_", " ")),
    )


def _draw_behind(partitions: Sequence[Document]) -> RenderableType:
    """The partitions that are farthest behind."""
    behind = sorted((row for row in partitions if row["lag"]), key=lambda row: -row["lag"])
    shown = sorted(behind[:_SHOWN_PARTITIONS], key=lambda row: int(row["partition"]))
    several = ["#lost"] if any(row["lost"] for row in shown) else []
    table = make_table("#partition", "#behind", "#relay from", "=oldest unread", *several)
    for row in shown:
        start = f"{row['start']:,}"
        lost = [Text(format_count(row["lost"]), "bold red" if row["lost"] else "")]
        add_row(
            table,
            str(row["partition"]),
            format_count(row["lag"]),
            start if row["committed"] is not None else Text(f"{start} (no commit)", "yellow"),
            format_moment(row["oldest_unread_at"])[5:] if row["oldest_unread_at"] else "unknown",
            *(lost if several else []),
        )
    if not (more := behind[_SHOWN_PARTITIONS:]):
        return table
    rest = sum(row["lag"] for row in more)
    told = f"and {format_plural(len(more), 'partition')} with {format_count(rest)} behind"
    return Group(table, Text(told, style="dim"))


def _draw_race(document: Document) -> RenderableType:
    """How long it takes, as it is and expanded, and how long there is."""
    grid = _make_grid()
    rate, written = document["rate_per_consumer"], document["produced_per_second"]
    now, expanded = document["seconds_to_drain_now"], document["seconds_to_drain_expanded"]
    replicas = format_plural(document["replicas"], "consumer")
    as_it_is = "never" if now is None else f"in {format_duration(now)}"
    _add(grid, "drained", Text.assemble((as_it_is, "bold"), f" as it is, by {replicas}"))
    faster = "never" if expanded is None else f"in {format_duration(expanded)}"
    consumers = format_plural(document["consumers"], "consumer")
    told = Text.assemble((faster, "bold green"), f" expanded, by {consumers}")
    if now and expanded and now / expanded >= _WORTH_TELLING:
        told.append(f": {now / expanded:.0f} times as fast")
    _add(grid, "", told)
    _add(grid, "retention", _tell_retention(document))
    speed = f"{_per_second(rate)} by each consumer ({document['rate_source']})"
    if written is not None:
        speed += f", {_per_second(written) if written else 'nothing'} written meanwhile"
    _add(grid, "speed", speed)
    temporary = document["temporary"]
    _add(
        grid,
        "spread",
        f"{document['factor']} × the partitions, {temporary['partitions']:,} in all; "
        f"{_ORDERS.get(document['order'], document['order'])}",
    )
    _add(grid, "disk", _tell_disk(document["disk"]))
    return grid


def _tell_retention(document: Document) -> Text:
    seconds = document["seconds_to_loss"]
    held = document["hold"]["needed"]
    if seconds is not None:
        style = "bold red" if document["wins"] is False else "bold"
        told = Text.assemble(
            "deletes the oldest unread message in ",
            (format_duration(seconds), style),
            f" (by {document['loss_by']})",
        )
    elif held:
        told = Text("is limited, and when it deletes what is unread is not known")
    else:
        told = Text("deletes nothing in sight")
    if held and document["raised"]:
        told.append("; it is raised meanwhile")
    return told


def _tell_disk(disk: Document) -> Text:
    style = "bold red" if disk["enough"] is False else ""
    return Text(str(disk["told"]), style=style)


def _draw_deeds(document: Document) -> RenderableType:
    """What an approver answers for."""
    grid = _make_grid()
    for name, words in (
        ("stopped", "stops"),
        ("raised", "raises"),
        ("created", "creates"),
        ("given_back", "gives back"),
    ):
        for number, sentence in enumerate(document[name]):
            _add(grid, "" if number else words, sentence)
    others = ", ".join(document["other_groups"])
    _add(
        grid,
        "leaves alone",
        f"{format_plural(len(document['other_groups']), 'other group')} on the topic: {others}"
        if others
        else "the topic's messages; no other group reads it",
    )
    if document["approved_by"]:
        who = f"{document['approved_by']} ({document['approved_identity']})"
        _add(grid, "approved by", who)
    _add(grid, "plan hash", f"{document['plan_hash'][:16]}…")
    return grid


def draw_burndown(progress: Document, width: int = _WIDTH) -> RenderableType:
    """How far it is, from `describe_progress`: what is left, how fast it goes, the steps."""
    parts: list[RenderableType] = []
    if down := progress["burndown"]:
        parts.append(_draw_left(down, live=progress["live"]))
    parts.append(_draw_steps(progress["steps"]))
    title = Text("progress", style="bold")
    if progress["step"]:
        title = Text.assemble(("now: ", "bold"), (_name_step(progress["step"]), "bold cyan"))
    return Panel(Group(*parts), title=title, title_align="left", border_style="cyan", width=width)


def _draw_left(down: Document, *, live: bool) -> RenderableType:
    total = down["handled"] + down["left"]
    share = down["handled"] / total if total else 1.0
    full = round(share * _BAR_CELLS)
    grid = _make_grid()
    _add(
        grid,
        "handled",
        Text.assemble(
            ("━" * full, "green"),
            ("━" * (_BAR_CELLS - full), "bright_black"),
            (f" {int(share * 100)} %", "bold"),
            f"  {format_count(down['handled'])} of {format_count(total)}",
        ),
    )
    if len(down["curve"]) > 1:
        curve = Text(_draw_curve(down["curve"]), style="cyan")
        curve.append(f"  {format_count(down['left'])} left", "bold")
        curve.append(f" after {format_duration(down['seconds'])}", "dim")
        _add(grid, "unread", curve)
    _add(grid, "topic", _tell_flow(down["source_lag"], "relayed", down, live=live))
    _add(grid, "temporary", _tell_flow(down["temporary_lag"], "handled", down, live=live))
    if live and down["consumers"] is not None:
        _add(grid, "running", format_plural(down["consumers"], "recovery consumer"))
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
        _add(grid, "", told)
    return grid


def _tell_flow(left: int, verb: str, down: Document, *, live: bool) -> Text:
    told = Text.assemble((format_count(left), "bold"), f" left, {format_count(down[verb])} {verb}")
    rate = down[f"{verb}_per_second"]
    if live and rate:
        told.append(f", {_per_second(rate)}", style="cyan")
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
    table = make_table("", "=step", "=began", "#took", "")
    marks = {"done": ("✓", "green"), "running": ("▶", "cyan"), "rolled back": ("↺", "yellow")}
    for step in steps:
        mark, style = marks[step["state"]]
        again = f"{step['attempts']} attempts" if step["attempts"] > 1 else ""
        undone = "rolled back" if step["state"] == "rolled back" else ""
        add_row(
            table,
            Text(mark, style=style),
            Text(_name_step(step["step"]), style="bold" if step["state"] == "running" else ""),
            format_moment(step["started_at"])[11:],
            format_duration(step["seconds"]),
            Text(", ".join(filter(None, (undone, again))), style="dim"),
        )
    return table


def _name_step(name: Any) -> str:
    return str(name).replace("_", " ")


def _per_second(rate: float) -> str:
    return f"{rate:.1f}/s" if rate < 10 else f"{format_count(round(rate))}/s"


def _make_grid() -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True, min_width=12)
    grid.add_column(overflow="fold")
    return grid


def _add(grid: Table, name: str, told: str | Text) -> None:
    grid.add_row(Text(name), Text(told) if isinstance(told, str) else told)
