"""Numbers and tables for people; every table is drawn from the JSON document of its verb.

Names, reasons and errors come from elsewhere: they are put into `Text`, never into markup.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console, Group, RenderableType

from backlog.numbers import format_count, format_duration, format_moment, format_plural
from backlog.values import Event
from replay.telling.document import list_event_lines
from replay.telling.layout import Facts, Table, Text, make_line, print_line, tell
from replay.telling.standing import list_lines

Document = Mapping[str, Any]

_STYLES = {
    "exact": "bold green",
    "covering": "bold green",
    "within": "green",
    "chosen": "green",
    "archives": "green",
    "verified": "bold green",
    "ok": "green",
    "healthy": "green",
    "approved": "green",
    "injected": "green",
    "lost": "bold red",
    "failed": "bold red",
    "open": "bold red",
    "surplus": "bold red",
    "loses": "bold red",
    "wins": "bold green",
    "cancelled": "dim",
    "rejected": "dim",
    "waived": "dim",
    "losing": "bold red",
    "stop": "bold red",
    "stall": "bold red",
    "rewind": "bold red",
    "beyond_end": "bold red",
    "unknown": "magenta",
}


def style_word(word: str) -> Text:
    """A state or verdict in its colour."""
    return Text(word, style=_STYLES.get(word, "yellow"))


def draw_status(document: Document) -> RenderableType:
    """`status`: one block a stream."""
    blocks: list[RenderableType] = []
    for stream in document["streams"]:
        blocks.extend(_draw_stream(stream))
    return Group(*blocks) if blocks else tell("no streams in the configuration", "yellow")


def _draw_stream(stream: Document) -> list[RenderableType]:
    head = Text(str(stream["stream"]), style="bold")
    head.append(f"  read by {stream['group']}  ", style="dim")
    head.append_text(style_word(str(stream["verdict"])))
    if stream.get("error"):
        return [
            head,
            tell(f"  {stream['error']['message']}", "red", hang=2),
            *_draw_standings(stream),
        ]
    blocks: list[RenderableType] = [head]
    if stream.get("sentence"):
        blocks.append(tell(str(stream["sentence"]), "bold"))
    if stream.get("share"):
        blocks.append(_draw_share(stream["share"]["partitions"]))
    else:
        blocks.append(_draw_lags(stream["partitions"]))
    blocks += draw_members(stream.get("members"))
    blocks += draw_warnings(stream.get("warnings", ()))
    blocks += [tell(f"→ {way}", hang=2) for way in stream.get("ways", ())]
    blocks += _draw_standings(stream)
    for command in stream.get("next_commands", ()):
        blocks.append(_draw_next(str(command)))
    if stream.get("page"):
        blocks.append(Text.assemble(("page: ", "dim"), str(stream["page"])))
    return [*blocks, Text()]


def _draw_share(rows: Sequence[Document]) -> Table:
    """A share group's partitions: it has no committed offsets."""
    table = Table("#part.", "#start offset", "#not acknowledged, at most")
    for row in rows:
        cells = (row["start"], row["lag"])
        told = ("unknown" if cell is None else format_count(cell) for cell in cells)
        table.add(str(row["partition"]), *told)
    return table


def draw_members(group: Document | None) -> list[RenderableType]:
    """Who is in the group; nothing where that was not asked."""
    if group is None:
        return []
    if group["error"]:
        return [tell(f"members: unknown: {group['error']['message']}", "magenta", hang=2)]
    if not group["members"]:
        return [Text("members: none", style="dim")]
    table = Table("member", "=host", "partitions", "=last commit")
    for one in group["members"]:
        others = f" and {', '.join(one['other_topics'])}" if one["other_topics"] else ""
        table.add(
            one["client_id"] + (f" (static {one['instance']})" if one["instance"] else ""),
            one["host"],
            (", ".join(map(str, one["partitions"])) or "none") + others,
            "not seen" if one["last_commit"] is None else format_moment(one["last_commit"]),
        )
    lines: list[RenderableType] = [table]
    if group["unassigned"]:
        told = ", ".join(map(str, group["unassigned"]))
        lines += draw_warnings([f"nobody is assigned partition {told}"])
    if group["rebalancing_samples"]:
        lines += draw_warnings(
            [
                f"{group['rebalancing_samples']} of the {group['samples']} samples of the window "
                "saw the group rebalance"
            ]
        )
    return lines


def _draw_standings(stream: Document) -> list[RenderableType]:
    blocks: list[RenderableType] = []
    for standing in stream.get("standings", ()):
        blocks += [draw_standing(standing), *map(_draw_next, standing["next_commands"])]
    return blocks


def _draw_lags(rows: Sequence[Document]) -> Table:
    """What no partition has takes no room."""
    extra = {
        "drained in": "seconds_to_drain",
        "loss in": "seconds_to_loss",
        "kept for": "seconds_retained",
    }
    shown = {title: name for title, name in extra.items() if any(row[name] for row in rows)}
    table = Table(
        "#part.",
        "#log start",
        "#committed",
        "#end",
        "#lag",
        "#behind",
        "#lost at most",
        *(f"#{title}" for title in shown),
        "=",
    )
    for row in rows:
        lost = row["lost"]
        table.add(
            str(row["partition"]),
            f"{row['log_start']:,}",
            "none" if row["committed"] is None else f"{row['committed']:,}",
            f"{row['end']:,}",
            format_count(row["lag"]),
            format_duration(row["lag_seconds"]),
            Text(format_count(lost), style="bold red" if lost else ""),
            *(_color_duration(title, row[name]) for title, name in shown.items()),
            style_word(str(row["verdict"])),
        )
    return table


def _color_duration(title: str, seconds: float | None) -> Text:
    return Text(format_duration(seconds), style="bold red" if title == "loss in" else "")


def draw_gaps(document: Document) -> RenderableType:
    """`gaps`: one line a gap."""
    gaps: Sequence[Document] = document["gaps"]
    if not gaps:
        if document["warnings"]:
            # What may be lost is told below; it is no gap before that is known.
            return tell("no gaps on record; not all is known yet:", "yellow")
        return tell("no gaps: nothing is known to be lost", "green")
    by_stream: dict[str, list[Document]] = {}
    for gap in gaps:
        by_stream.setdefault(str(gap["stream"]), []).append(gap)
    blocks: list[RenderableType] = []
    for stream, found in by_stream.items():
        head = Text(stream, style="bold")
        head.append(f"  read by {found[0]['group']}", style="dim")
        blocks += [head, _draw_gaps_of(found)]
    live = [gap for gap in gaps if gap["state"] == "open"]
    total = sum(gap["count"] or 0 for gap in live)
    summary = Text(f"{len(live)} open, at most ")
    summary.append(format_count(total), style="bold red" if total else "bold")
    summary.append(f" {'message' if total == 1 else 'messages'} lost")
    kept = [
        gap for gap in gaps if gap.get("archive") and gap["state"] not in ("verified", "waived")
    ]
    if kept:
        waiting = format_plural(sum(gap["count"] or 0 for gap in kept), "message")
        summary.append(f"; at most {waiting} in archives, not put back yet")
    return Group(*blocks, summary)


def _draw_gaps_of(gaps: Sequence[Document]) -> Table:
    table = Table("=gap", "#part.", "#offsets", "#messages", "why, how sure", "=state")
    for gap in gaps:
        table.add(
            str(gap["id"]),
            str(gap["partition"]),
            _say_offsets(gap),
            "unknown" if gap["count"] is None else f"≤ {format_count(gap['count'])}",
            _say_cause(gap),
            style_word(str(gap["state"])),
        )
    return table


def _say_offsets(gap: Document) -> str:
    if gap["sequences"]:
        return "none"  # they never reached the topic
    if gap["count"] is None:
        return "unknown"
    return f"{gap['start']:,}–{gap['end'] - 1:,}"


def _say_cause(gap: Document) -> str:
    told = f"{gap['cause']}, {gap['certainty']}".replace("_", " ")
    if named := gap["sequences"]:
        told += f"; sequence {named['first']:,}–{named['last']:,} of {named['producer']}"
    return f"{told}; in archive {gap['archive']}" if gap.get("archive") else told


def draw_recoveries(document: Document) -> RenderableType:
    """`recoveries`: one line a recovery."""
    rows: Sequence[Document] = document["recoveries"]
    if not rows:
        return Text("no recoveries yet", style="dim")
    several = ["=kind"] if len({row["kind"] for row in rows}) > 1 else []
    table = Table(
        "=recovery",
        *several,
        "stream",
        "=state",
        "=verdict",
        "#messages",
        "#injected",
        "=planned",
    )
    for row in rows:
        table.add(
            row["id"],
            *([row["kind"]] if several else []),
            row["stream"],
            style_word(row["state"]),
            style_word(row["verdict"]),
            format_count(row["size"]),
            format_count(row["injected"] if row["injects"] else None),
            # The id holds the year.
            f"{format_moment(row['created_at'])[5:16]}Z",
        )
    return table


def draw_warnings(warnings: Sequence[str]) -> list[RenderableType]:
    """What to know, a sentence each."""
    return [tell(f"! {warning}", "yellow", hang=2) for warning in warnings]


def draw_events(events: Sequence[Event]) -> RenderableType:
    """A recovery's record: when, who, what; `--json` has every line and every detail."""
    table = Table("=when", "who", "what", "")
    for line in list_event_lines(events):
        table.add(format_moment(line.at)[5:], line.actor, line.action, line.detail)
    return table


def say_done(console: Console, name: str, state: str, rest: str) -> None:
    """One line about what was done: what it is, its state in colour, and the rest."""
    line = Text.assemble((name, "bold"), " ", style_word(state), rest)
    print_line(console, line)


def draw_standing(standing: Document) -> RenderableType:
    """How a recovery stands, and the next command."""
    grid = Facts()
    for name, told in list_lines(standing):
        grid.add(name, told)
    return Group(Text("how things stand", style="bold"), grid)


def print_next(console: Console, *commands: str) -> None:
    """Says which command comes next."""
    for command in commands:
        console.print(Group(_draw_next(command)), crop=False)


def _draw_next(command: str) -> Text:
    return make_line(Text.assemble(("next: ", "dim"), (command, "bold cyan")))
