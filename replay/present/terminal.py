"""Numbers and tables for people; every table is drawn from the JSON document of its verb.

Names, reasons and errors come from elsewhere: they are put into `Text`, never into markup.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import inf
from typing import Any

from rich.console import Group, RenderableType

from backlogctl.formats import (
    format_count,
    format_duration,
    format_moment,
    format_plural,
    format_rate,
)
from backlogctl.monitoring.verdict.commands import look_at_stream
from backlogctl.monitoring.verdict.status import Verdict, find_urgency
from backlogctl.replay.engine.values import PlanFigure, Telling
from backlogctl.replay.engine.values import Table as PlanTable
from backlogctl.replay.present.document import PlanView, list_event_lines
from backlogctl.replay.present.layout import (
    Facts,
    Framed,
    Table,
    Text,
    make_line,
)
from backlogctl.replay.present.progress import Share, find_share, name_step
from backlogctl.replay.present.status import UNKNOWN, list_lines
from backlogctl.replay.present.tones import STYLES, find_tone
from backlogctl.values import LedgerEvent, Recovery, RecoveryState

Document = Mapping[str, Any]
# More streams are shown the worst first, with these many names of those that are well.
SHOWN_WHOLE = 10
NAMED = 5


def style_word(word: str, urgency: object = None) -> Text:
    """A state or verdict in its colour."""
    return Text(word, style=STYLES[find_tone(word, urgency)])


def render_status(document: Document) -> RenderableType:
    """`status`: one block a stream; of many, the worst first, the next a line each, and the well
    ones in one."""
    blocks: list[RenderableType] = []
    if error := document.get("ledger_error"):
        told = f"{error['subject']}: {error['message']}: history, gaps, holds and recoveries are "
        blocks += render_warnings([f"{told}unknown; this is what the brokers say now"])
        blocks += [Text(f"hint: {error['hint']}", "cyan"), Text()] if error["hint"] else [Text()]
    streams: Sequence[Document] = document["streams"]
    well: list[str] = []
    if len(streams) > SHOWN_WHOLE:
        well = [str(one["stream"]) for one in streams if _is_well(one)]
        streams = sorted((one for one in streams if not _is_well(one)), key=_rank)
    # Nobody reads hundreds of tables; of the worst they are what to begin with.
    whole = streams if len(streams) <= SHOWN_WHOLE else streams[:SHOWN_WHOLE]
    for stream in whole:
        blocks.extend(_draw_stream(stream))
    for stream in streams[len(whole) :]:
        blocks.append(_draw_line(stream))
    if len(streams) > len(whole):
        blocks += render_next(look_at_stream(str(streams[len(whole)]["stream"])))
    if well:
        told = f"{format_plural(len(well), 'stream')}: {name_some(well)}"
        blocks.append(Text.assemble(style_word("ok"), f"  {told}", hang=2))
        blocks += render_next(look_at_stream(well[0]))
    return Group(*blocks) if blocks else Text("no streams in the configuration", "yellow")


def name_some(names: Sequence[str]) -> str:
    """The first of them."""
    return ", ".join(names[:NAMED]) + (", ..." if len(names) > NAMED else "")


def _is_well(stream: Document) -> bool:
    """Whether there is nothing to say of it."""
    told = (stream.get(name) for name in ("error", "warnings", "standings"))
    return stream["verdict"] == Verdict.OK and not any(told)


def _rank(stream: Document) -> tuple[float, ...]:
    """The worst first: by verdict, then the nearest loss, then what is lost, then the lag."""
    loss = stream.get("seconds_to_loss")
    return (
        -Verdict(stream["verdict"]).severity,
        inf if loss is None else loss,
        -(stream.get("lost") or 0),
        -(stream.get("lag") or 0),
    )


def _draw_line(stream: Document) -> Text:
    told = stream["error"]["message"] if stream.get("error") else stream.get("sentence", "")
    verdict = style_word(str(stream["verdict"]), stream.get("urgency"))
    return Text.assemble((str(stream["stream"]), "bold"), "  ", verdict, f"  {told}", hang=2)


def _draw_stream(stream: Document) -> list[RenderableType]:
    head = Text(str(stream["stream"]), style="bold")
    head.append(f"  read by {stream['group']}  ", style="dim")
    head.append_text(style_word(str(stream["verdict"]), stream.get("urgency")))
    if stream.get("error"):
        return [
            head,
            Text(f"  {stream['error']['message']}", "red", hang=2),
            *render_standings(stream.get("standings", ())),
        ]
    blocks: list[RenderableType] = [head]
    if stream.get("sentence"):
        blocks.append(Text(str(stream["sentence"]), "bold"))
    if stream.get("share"):
        blocks.append(_draw_share(stream["share"]["partitions"]))
    else:
        blocks.append(_draw_lags(stream["partitions"]))
    blocks += render_group_members(stream.get("members"))
    blocks += render_warnings(stream.get("warnings", ()))
    blocks += [Text(f"→ {way}", hang=2) for way in stream.get("ways", ())]
    # What comes next for them is among the stream's commands, in their order.
    blocks += map(render_recovery_status, stream.get("standings", ()))
    blocks += render_next(*stream.get("next_commands", ()))
    if stream.get("page"):
        blocks.append(Text.assemble(("page: ", "dim"), str(stream["page"])))
    return [*blocks, Text()]


def _draw_share(rows: Sequence[Document]) -> Table:
    """A share group's partitions: it has no committed offsets."""
    return Table(
        *("#part.", "#start offset", "#not acknowledged, at most"),
        rows=[
            (str(row["partition"]), _count_known(row["start"]), _count_known(row["lag"]))
            for row in rows
        ],
    )


def _count_known(count: int | None) -> str:
    return "unknown" if count is None else format_count(count)


def render_group_members(group: Document | None) -> list[RenderableType]:
    """Who is in the group; nothing where that was not asked."""
    if group is None:
        return []
    if group["error"]:
        return [Text(f"members: unknown: {group['error']['message']}", "magenta", hang=2)]
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
        lines += render_warnings([f"nobody is assigned partition {told}"])
    if group["rebalancing_samples"]:
        lines += render_warnings(
            [
                f"{group['rebalancing_samples']} of the {group['samples']} samples of the window "
                "saw the group rebalance"
            ]
        )
    return lines


def render_standings(standings: Iterable[Document]) -> list[RenderableType]:
    """How recoveries stand, and what comes next of each."""
    return [
        block
        for standing in standings
        for block in (render_recovery_status(standing), *render_next(*standing["next_commands"]))
    ]


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
            style_word(str(row["verdict"]), find_urgency(row["seconds_to_loss"])),
        )
    return table


def _color_duration(title: str, seconds: float | None) -> Text:
    tone = find_tone("losing", find_urgency(seconds)) if title == "loss in" else ""
    return Text(format_duration(seconds), style=STYLES[tone])


def render_gaps(document: Document) -> RenderableType:
    """`gaps`: one line a gap."""
    gaps: Sequence[Document] = document["gaps"]
    if not gaps:
        if document["warnings"]:
            # What may be lost is told below; it is no gap before that is known.
            return Text("no gaps on record; not all is known yet:", "yellow")
        return Text("no gaps: nothing is known to be lost", "green")
    by_stream: dict[str, list[Document]] = {}
    for gap in gaps:
        by_stream.setdefault(str(gap["stream"]), []).append(gap)
    blocks: list[RenderableType] = []
    for stream, found in by_stream.items():
        head = Text(stream, style="bold")
        head.append(f"  read by {found[0]['group']}", style="dim")
        blocks += [head, _draw_gaps_of(found)]
    return Group(*blocks, _sum_up(gaps))


def _sum_up(gaps: Sequence[Document]) -> Text:
    """`3 open, at most 3,208 messages lost; at most 12 messages in archives, not put back yet`."""
    live = [gap for gap in gaps if gap["state"] == "open"]
    unsettled = [gap for gap in gaps if gap["state"] not in ("open", "verified", "waived")]
    summary = Text("none open")
    if live:
        total = sum(gap["count"] or 0 for gap in live)
        summary = Text(f"{len(live)} open, at most ")
        summary.append(format_count(total), style="bold red" if total else "bold")
        summary.append(f" {'message' if total == 1 else 'messages'} lost")
    for where, found in (
        ("recoveries, not verified yet", [gap for gap in unsettled if not gap.get("archive")]),
        ("archives, not put back yet", [gap for gap in unsettled if gap.get("archive")]),
    ):
        if found:
            many = format_plural(sum(gap["count"] or 0 for gap in found), "message")
            summary.append(f"; at most {many} in {where}")
    return summary


def _draw_gaps_of(gaps: Sequence[Document]) -> Table:
    return Table(
        *("=gap", "#part.", "#offsets", "#messages", "why, how sure", "=state"),
        rows=[
            (
                str(gap["id"]),
                str(gap["partition"]),
                _say_offsets(gap),
                _say_count(gap),
                _say_cause(gap),
                style_word(str(gap["state"])),
            )
            for gap in gaps
        ],
    )


def _say_offsets(gap: Document) -> str:
    if gap["sequences"]:
        return "none"  # they never reached the topic
    if gap["count"] is None:
        return "unknown"
    return f"{gap['start']:,}–{gap['end'] - 1:,}"


def _say_count(gap: Document) -> str:
    if gap["count"] is None:
        return "unknown"
    about = "" if gap["likely"] is None else f", about {format_count(gap['likely'])}"
    return f"≤ {format_count(gap['count'])}{about}"


def _say_cause(gap: Document) -> str:
    told = f"{gap['cause']}, {gap['certainty']}".replace("_", " ")
    if gap.get("maybe_empty"):
        told += ", may be aborted messages or markers"
    if named := gap["sequences"]:
        told += f"; sequence {named['first']:,}–{named['last']:,} of {named['producer']}"
    return f"{told}; moved to archive {gap['archive']}" if gap.get("archive") else told


def render_recoveries(document: Document) -> RenderableType:
    """`recoveries`: one line a recovery."""
    rows: Sequence[Document] = document["recoveries"]
    if not rows:
        return Text("no recoveries yet", style="dim")
    several = ["=kind"] if len({row["kind"] for row in rows}) > 1 else []
    return Table(
        *("=recovery", *several, "stream", "=state", "=verdict", "#messages", "#injected"),
        "=planned",
        rows=[
            (
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
            for row in rows
        ],
    )


def render_warnings(warnings: Sequence[str]) -> list[RenderableType]:
    """What to know, a sentence each."""
    return [Text(f"! {warning}", "yellow", hang=2) for warning in warnings]


def render_events(events: Sequence[LedgerEvent]) -> RenderableType:
    """A recovery's record: when, who, what; `--json` has every line and every detail."""
    return Table(
        *("=when", "who", "what", ""),
        rows=[
            (format_moment(line.at)[5:], line.actor, line.action, line.detail)
            for line in list_event_lines(events)
        ],
    )


def render_done(name: str, state: str, rest: str) -> Text:
    """One line about what was done: what it is, its state in colour, and the rest."""
    return Text.assemble((name, "bold"), " ", style_word(state), rest)


def render_recovery_status(standing: Document) -> RenderableType:
    """How a recovery stands."""
    return Group(Text("how things stand", style="bold"), Facts(list_lines(standing)))


def render_next(*commands: str) -> list[Text]:
    """Which command comes next."""
    return [
        make_line(Text.assemble(("next: ", "dim"), (command, "bold cyan"))) for command in commands
    ]


_WIDTH = 98
_BLOCKS = "▁▂▃▄▅▆▇█"
_BAR_CELLS = 36


def render_progress(
    progress: Document, width: int = _WIDTH, state: RecoveryState = RecoveryState.RUNNING
) -> RenderableType:
    """How far it is, from `describe_progress`: what is left, how fast it goes, the steps."""
    parts: list[RenderableType] = []
    if share := find_share(state, progress):
        grid = Facts([(share.verb, _draw_bar(share))])
        if down := progress["burndown"]:
            _add_left(grid, down, live=progress["live"])
        elif share.rate:
            left = f", done in about {format_duration(share.eta)}" if share.eta else ""
            grid.add("", f"{format_rate(share.rate)}{left}")
        parts.append(grid)
    parts.append(_draw_steps(progress["steps"]))
    title = Text("progress", style="bold")
    if progress["step"]:
        title = Text.assemble(("now: ", "bold"), (name_step(progress["step"]), "bold cyan"))
    return Framed(title, parts, width)


def _add_left(grid: Facts, down: Document, *, live: bool) -> None:
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


def _draw_bar(share: Share) -> Text:
    full = round((share.done / share.total if share.total else 1.0) * _BAR_CELLS)
    return Text.assemble(
        ("━" * full, "green"),
        ("━" * (_BAR_CELLS - full), "bright_black"),
        (f" {share.percent} %", "bold"),
        f"  {format_count(share.done)} of {format_count(share.total)}",
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


_SHOWN = 12


def render_plan(recovery: Recovery, told: Telling) -> RenderableType:
    """What will be done, why, and what to know before."""
    parts: list[RenderableType] = [Text(told.summary, "bold")]
    if told.own_counts:
        parts.append(_draw_counts(told.own_counts))
    if told.tables:
        parts.append(_draw_table(told.tables[0]))
    parts += [_draw_facts(told), Text(), _draw_answered(recovery, told)]
    parts += [Text(f"{told.verdict}: {why}", hang=2) for why in told.reasons]
    if told.warnings:
        parts += [Text(), *render_warnings(told.warnings)]
    return Framed(render_head(recovery, told.verdict), parts, _WIDTH)


def render_plan_view(view: PlanView) -> RenderableType:
    """The plan of a recovery; what is known of it where this program cannot read the plan."""
    recovery = view.recovery
    if view.telling is not None:
        return render_plan(recovery, view.telling)
    assert view.refusal is not None
    grid = Facts([("topic", f"{recovery.topic}, read by group {recovery.group}")])
    _add_approver(grid, recovery)
    parts: list[RenderableType] = [
        *(Text(view.refusal.message, "bold red"), Text(view.refusal.hint)),
        *(Text(), grid),
    ]
    return Framed(render_head(recovery, UNKNOWN), parts, _WIDTH)


def render_head(recovery: Recovery, verdict: str) -> Text:
    """Its line above what is told of it."""
    state = str(recovery.state)
    return draw_title(recovery.id, recovery.kind, recovery.stream, state, verdict)


def draw_title(name: str, kind: str, stream: str, state: str, verdict: str) -> Text:
    """`r-20261121-0001  expand orders  running  wins`."""
    return Text.assemble(
        (name, "bold"),
        f"  {kind} {stream}  ",
        style_word(state),
        "  ",
        style_word(verdict.replace("_", " ")),
    )


def _draw_counts(counts: tuple[PlanFigure, ...]) -> RenderableType:
    pairs = [
        (Text(str(one), style), Text(one.words, style))
        for one in counts
        for style in ("bold" if one.strong else "",)
    ]
    return Facts(pairs, is_counted=True)


def _draw_table(table: PlanTable) -> RenderableType:
    drawn = Table(*(f"#{name}" for name in table.columns))
    rows, rest = table.top(_SHOWN)
    for row in rows:
        cells: list[str | Text] = list(row.cells)
        cells[row.toned] = Text(row.cells[row.toned], style=STYLES[row.tone])
        drawn.add(*cells)
    return Group(drawn, Text(rest, "dim")) if rest else drawn


def _draw_facts(told: Telling) -> RenderableType:
    return Facts((fact.name, Text(fact.text, STYLES[fact.tone])) for fact in told.facts)


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
