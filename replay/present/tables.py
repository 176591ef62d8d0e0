"""Archives for the terminal, drawn from the JSON documents."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType

from backlogctl.formats import (
    format_bytes,
    format_count,
    format_duration,
    format_moment,
    format_plural,
)
from backlogctl.replay.present.layout import Facts, Table, Text, make_line, tell
from backlogctl.replay.present.terminal import render_warnings

Document = Mapping[str, Any]
_STAGES = {
    "put_back": "put back",
    "under_way": "about to be put back",
    "waiting": "waiting",
    "waived": "waived",
}


def render_archives(archives: Sequence[Document]) -> RenderableType:
    """`archive list`: one line an archive."""
    if not archives:
        return Text("no archives: nothing was offloaded yet", style="dim")
    table = Table(
        *("=archive", "stream", "=made", "#messages", "#bytes"),
        *("#put back", "#waiting", "=expires"),
    )
    for one in archives:
        table.add(
            one["id"],
            one["stream"],
            f"{format_moment(one['made_at'])[:16]}Z",
            format_count(one["messages"]),
            format_bytes(one["bytes"]),
            format_count(one["put_back"]),
            Text(format_count(one["waiting"]), style="bold yellow" if one["waiting"] else ""),
            _say_expiry(one),
        )
    return table


def render_archive(document: Document) -> RenderableType:
    """`archive show`."""
    facts = Facts()
    facts.add("archive", Text(document["id"], style="bold"))
    facts.add("of", f"topic {document['topic']}, stream {document['stream']}")
    facts.add("made", format_moment(document["made_at"]))
    facts.add("in", document["location"])
    held = f"{format_plural(document['messages'], 'message')}, {format_bytes(document['bytes'])}"
    facts.add("holds" if document["purged_at"] is None else "held", held)
    for stage, words in _STAGES.items():
        if document[stage] or stage in ("put_back", "waiting"):
            facts.add(words, format_plural(document[stage], "message"))
    if document["purged_at"] is not None:
        facts.add("purged", f"{format_moment(document['purged_at'])} by {document['purged_by']}")
    else:
        facts.add("expires", _say_expiry(document))
    if document["needed_by"]:
        facts.add("needed by", f"gaps {', '.join(document['needed_by'])}")
    return Group(facts, _draw_ranges(document), *_draw_gaps(document))


def render_check(document: Document) -> RenderableType:
    """`archive verify`."""
    if document["good"]:
        told = (
            f"archive {document['id']} is whole: {format_plural(document['files'], 'file')} with "
            f"{format_plural(document['messages'], 'message')}, each as it was written"
        )
        return tell(told, "green")
    lines = [tell(f"archive {document['id']} is not what was written", "bold red")]
    for kind in ("missing", "corrupt", "unexpected"):
        lines += [tell(f"{kind}: {path}", hang=2) for path in document[kind]]
    lines.append(
        tell(
            f"bring these files back from a copy, in {document['location']}; nothing is sent from "
            "this archive as it is",
            "cyan",
        )
    )
    return Group(*lines)


def _draw_ranges(document: Document) -> RenderableType:
    table = Table("#partition", "#offsets", "#messages", "#no message", "=from", "=to")
    for item in document["ranges"]:
        empty = item["start"] == item["end"]
        table.add(
            str(item["partition"]),
            "none" if empty else f"{item['start']:,}–{item['end'] - 1:,}",
            format_count(item["messages"]),
            format_count(item["holes"]),
            format_moment(item["first_time"]) if item["first_time"] else "unknown",
            format_moment(item["last_time"]) if item["last_time"] else "unknown",
        )
    return table


def _draw_gaps(document: Document) -> list[RenderableType]:
    if not document["gaps"]:
        return []
    table = Table("=gap", "#partition", "#offsets", "#messages", "=state")
    for gap in document["gaps"]:
        at_most = "" if gap["exact"] else "≤ "
        table.add(
            gap["id"],
            str(gap["partition"]),
            f"{gap['start']:,}–{gap['end'] - 1:,}",
            f"{at_most}{format_count(gap['messages'])}",
            _STAGES[gap["stage"]],
        )
    return [table]


def _say_expiry(one: Document) -> str:
    if one["purged_at"] is not None:
        return "purged"
    if one["expires_at"] is None:
        return "not while needed"
    return f"{format_moment(one['expires_at'])[:16]}Z"


# What an audit found, for people: worst first, each with what to do about it.

_STYLES = {"lost": "bold red", "suspect": "yellow", "unknown": "magenta", "noted": "dim"}
_ENDS = {
    "clean": ("nothing was found; what that means:", "green"),
    "suspect": ("messages may be missing", "yellow"),
    "unknown": ("cannot tell whether messages are missing", "magenta"),
}
_INDENT = 10
_SHOWN = 5


def render_audit(document: Mapping[str, Any]) -> RenderableType:
    """Of the document of `audit`."""
    parts: list[RenderableType] = [
        tell(f"audit {document['audit']} of stream {document['stream']}", "bold")
    ]
    facts = Facts()
    for name, value in document["figures"].items():
        facts.add(name.replace("_", " "), "unknown" if value is None else format_count(value))
    facts.add("took", format_duration(document["seconds"]))
    parts.append(facts)
    parts += [part for finding in document["findings"] for part in _draw_finding(finding)]
    parts.append(Text())
    if document["verdict"] == "lost":
        parts.append(tell(f"{format_plural(document['missing'], 'message')} lost", "bold red"))
    else:
        parts.append(tell(*_ENDS[document["verdict"]]))
    parts.append(tell(document["claims"], "dim"))
    if gaps := document["gaps"]:
        named = ", ".join(gaps[:_SHOWN]) + (", ..." if len(gaps) > _SHOWN else "")
        parts.append(tell(f"on record as {format_plural(len(gaps), 'gap')}: {named}"))
    parts += [make_line(Text(command, "bold")) for command in document["next_commands"]]
    return Group(*parts)


def _draw_finding(finding: Mapping[str, Any]) -> Iterator[RenderableType]:
    level = Text(f"  {finding['level']:<{_INDENT - 2}}", style=_STYLES[finding["level"]])
    yield Text.assemble(level, finding["found"], hang=_INDENT)
    if finding["mend"]:
        yield tell(f"{' ' * _INDENT}{finding['mend']} ({finding['page']})", "dim", hang=_INDENT)
    for command in finding["commands"]:
        yield make_line(Text(f"{' ' * _INDENT}{command}", "bold"))


# What the doctor found, for people: worst first, each with what mends it.

_DOCTOR_STYLES = {"loses": "bold red", "stops": "bold red", "unknown": "magenta", "warns": "yellow"}
_DOCTOR_ENDS = {
    0: ("nothing here loses messages or stops a recovery", "green"),
    1: ("something will lose messages or stop a recovery", "bold red"),
    2: ("cannot tell: something could not be read", "magenta"),
}


def render_examinations(document: Mapping[str, Any]) -> RenderableType:
    """Of the document of `doctor`."""
    parts: list[RenderableType] = []
    for one in document["examinations"]:
        findings = one["findings"]
        count = format_plural(len(findings), "finding") if findings else "nothing found"
        name = f"outbox {one['name']}" if one["about"] == "outbox" else one["name"]
        parts.append(tell(f"{name or 'the tool'}: {count}", "bold"))
        parts += [part for finding in findings for part in _doctor_draw_finding(finding)]
        parts.append(Text())
    return Group(*parts, tell(*_DOCTOR_ENDS[document["result"]]))


def _doctor_draw_finding(finding: Mapping[str, Any]) -> Iterator[RenderableType]:
    level = Text(f"  {finding['level']:<{_INDENT - 2}}", style=_DOCTOR_STYLES[finding["level"]])
    yield Text.assemble(level, (finding["subject"], "bold"), hang=_INDENT)
    yield _indent(finding["found"])
    yield _indent(f"{finding['why']} ({finding['page']})", "dim")
    if finding["mend"]:
        yield _indent(f"→ {finding['mend']}")
    for command in finding["commands"]:
        yield make_line(Text(" " * _INDENT + command, style="cyan"))


def _indent(text: str, style: str = "") -> RenderableType:
    return tell(" " * _INDENT + text, style, hang=_INDENT)


# The groups of a cluster, for a person who chooses some of them.


def render_groups(document: Mapping[str, Any]) -> RenderableType:
    """`init --bootstrap`: those that can be chosen with their numbers, the others with the reason.

    The numbers are those of the choice.
    """
    groups: Sequence[Mapping[str, Any]] = document["groups"]
    table = Table("#no.", "=group", "=topic", "#partitions", "#members", "#lag")
    good = [one for one in groups if not one["why_not"]]
    for number, group in enumerate(good, 1):
        for place, topic in enumerate(group["topics"]):
            members = "unknown" if group["members"] is None else str(group["members"])
            first = (str(number), show_name(group["group"]), members)
            head, name, count = first if place == 0 else ("", "", "")
            gone = topic["partitions"] is None
            table.add(
                head,
                name,
                topic["topic"],
                "gone" if gone else str(topic["partitions"]),
                count,
                "unknown" if topic["lag"] is None else format_count(topic["lag"]),
            )
    parts: list[RenderableType] = [table] if good else []
    parts += [
        tell(f"{show_name(one['group'])}: {one['why_not']}", "dim", hang=2)
        for one in groups
        if one["why_not"]
    ]
    return Group(*parts, *render_warnings(document["unknown"]))


def show_name(name: str) -> str:
    """A group's name on one line; quoted where spaces or signs in it would not be seen."""
    plain = name.isprintable() and name == name.strip() and name
    return name if plain else json.dumps(name)
