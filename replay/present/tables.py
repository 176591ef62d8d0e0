"""Lists and documents of the verbs for the terminal, drawn from the JSON documents."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from rich.console import Group, RenderableType

from backlogctl.formats import (
    format_bytes,
    format_count,
    format_duration,
    format_moment,
    format_plural,
)
from backlogctl.kafka.capabilities import Taken
from backlogctl.monitoring.doctor.checks import CheckLevel
from backlogctl.replay.present.layout import Facts, Table, Text, make_line
from backlogctl.replay.present.terminal import (
    SHOWN_WHOLE,
    name_some,
    render_next,
    render_warnings,
)
from backlogctl.replay.present.tones import STYLES, find_tone
from backlogctl_delivery.visible import escape_name

Document = Mapping[str, Any]


def render_rows(rows: Iterable[Document], columns: Sequence[str]) -> Table:
    """Documents of one sort, by some of their fields: `#field` and `=field` as in `Table`."""
    names = [column.lstrip("#=") for column in columns]
    return Table(
        *(column.removesuffix("_seconds").replace("_", " ") for column in columns),
        rows=[[_say_value(name, row[name]) for name in names] for row in rows],
    )


def render_fields(document: Document) -> Facts:
    """Every field of a document that says something."""
    return Facts(
        (name.removesuffix("_seconds").replace("_", " "), _say_value(name, value))
        for name, value in document.items()
        if value not in (None, [], ())
    )


def _say_value(name: str, value: Any) -> str:
    if value is None:
        return "—"
    if isinstance(value, list | tuple):
        return ", ".join(map(escape_name, value))
    if isinstance(value, datetime):
        return format_moment(value)
    return format_duration(value) if name.endswith("_seconds") else escape_name(str(value))


_WRONG = ("missing", "changed")
_STAGES = {
    "put_back": "put back",
    "under_way": "about to be put back",
    "waiting": "waiting",
    "waived": "waived",
}


def render_archives(archives: Sequence[Document]) -> RenderableType:
    """`archive list`: one line an archive, and what is wrong with its files."""
    if not archives:
        return Text("no archives: nothing was offloaded yet", style="dim")
    table = Table(
        *("=archive", "stream", "=made", "#messages", "#bytes"),
        *("#put back", "#waiting", "=expires"),
        rows=[
            (
                one["id"],
                one["stream"],
                f"{format_moment(one['made_at'])[:16]}Z",
                format_count(one["messages"]),
                format_bytes(one["bytes"]),
                format_count(one["put_back"]),
                Text(format_count(one["waiting"]), style="bold yellow" if one["waiting"] else ""),
                _say_expiry(one),
            )
            for one in archives
        ],
    )
    wrong = [(f"archive {one['id']}: ", told) for one in archives if (told := _say_files(one))]
    return Group(table, *(Text(name + told.plain, told.style, hang=2) for name, told in wrong))


def _say_files(archive: Document) -> Text | None:
    """What a listing of its files has found wrong; None where nothing is, or it was purged."""
    files = archive["files"]
    if files is None:
        return None
    if files["problem"]:
        return Text(f"whether its files are there is unknown: {files['problem']}", "yellow")
    told = [f"{kind} files: {name_some(files[kind])}" for kind in _WRONG if files[kind]]
    where = f", looked for in {archive['location']} from here"
    return Text("; ".join(told) + where, "bold red") if told else None


def render_archive(document: Document) -> RenderableType:
    """`archive show`."""
    facts = Facts()
    facts.add("archive", Text(document["id"], style="bold"))
    facts.add("of", f"topic {document['topic']}, stream {document['stream']}")
    facts.add("made", format_moment(document["made_at"]))
    facts.add("in", document["location"])
    held = f"{format_plural(document['messages'], 'message')}, {format_bytes(document['bytes'])}"
    facts.add("holds" if document["purged_at"] is None else "held", held)
    if document["files"] is not None:
        facts.add("files", _say_files(document) or "all there, with their sizes")
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
        return Text(told, "green")
    lines = [Text(f"archive {document['id']} is not what was written", "bold red")]
    for kind in ("missing", "corrupt", "unexpected"):
        lines += [Text(f"{kind}: {path}", hang=2) for path in document[kind]]
    told = (
        f"bring these files back from a copy, in {document['location']}; nothing is sent from this "
        "archive as it is"
    )
    return Group(*lines, Text(told, "cyan"))


def _draw_ranges(document: Document) -> RenderableType:
    return Table(
        *("#partition", "#offsets", "#messages", "#no message", "=from", "=to"),
        rows=[
            (
                str(item["partition"]),
                "none" if item["start"] == item["end"] else _say_offsets(item),
                format_count(item["messages"]),
                format_count(item["holes"]),
                format_moment(item["first_time"]) if item["first_time"] else "unknown",
                format_moment(item["last_time"]) if item["last_time"] else "unknown",
            )
            for item in document["ranges"]
        ],
    )


def _draw_gaps(document: Document) -> list[RenderableType]:
    if not document["gaps"]:
        return []
    rows = [
        (
            gap["id"],
            str(gap["partition"]),
            _say_offsets(gap),
            f"{'' if gap['exact'] else '≤ '}{format_count(gap['messages'])}",
            _STAGES[gap["stage"]],
        )
        for gap in document["gaps"]
    ]
    return [Table("=gap", "#partition", "#offsets", "#messages", "=state", rows=rows)]


def _say_offsets(item: Document) -> str:
    return f"{item['start']:,}–{item['end'] - 1:,}"


def _say_expiry(one: Document) -> str:
    if one["purged_at"] is not None:
        return "purged"
    if one["expires_at"] is None:
        return "not while needed"
    return f"{format_moment(one['expires_at'])[:16]}Z"


_ENDS = {
    "clean": ("nothing was found; what that means:", "green"),
    "suspect": ("messages may be missing", "yellow"),
    "unknown": ("cannot tell whether messages are missing", "magenta"),
}
_INDENT = 10
_SHOWN = 5


def render_audit(document: Document) -> RenderableType:
    """Of the document of `audit`."""
    parts: list[RenderableType] = [
        Text(f"audit {document['audit']} of stream {document['stream']}", "bold")
    ]
    facts = Facts()
    for name, value in document["figures"].items():
        facts.add(name.replace("_", " "), "unknown" if value is None else format_count(value))
    facts.add("took", format_duration(document["seconds"]))
    parts.append(facts)
    parts += [part for finding in document["findings"] for part in _draw_finding(finding)]
    parts.append(Text())
    if document["verdict"] == "lost":
        parts.append(Text(f"{format_plural(document['missing'], 'message')} lost", "bold red"))
    else:
        parts.append(Text(*_ENDS[document["verdict"]]))
    parts.append(Text(document["claims"], "dim"))
    if gaps := document["gaps"]:
        named = ", ".join(gaps[:_SHOWN]) + (", ..." if len(gaps) > _SHOWN else "")
        parts.append(Text(f"on record as {format_plural(len(gaps), 'gap')}: {named}"))
    parts += [make_line(Text(command, "bold")) for command in document["next_commands"]]
    return Group(*parts)


def _draw_finding(finding: Document) -> Iterator[RenderableType]:
    yield Text.assemble(_draw_level(finding), finding["found"], hang=_INDENT)
    if finding["mend"]:
        yield _indent(f"{finding['mend']} ({finding['page']})", "dim")
    for command in finding["commands"]:
        yield make_line(_indent(command, "bold"))


def _draw_level(finding: Document) -> Text:
    level = finding["level"]
    return Text(f"  {level:<{_INDENT - 2}}", style=STYLES[find_tone(level)])


_DOCTOR_ENDS = {
    0: ("nothing here loses messages or stops a recovery", "green"),
    1: ("something will lose messages or stop a recovery", "bold red"),
    2: ("cannot tell: something could not be read", "magenta"),
}


def render_examinations(document: Document) -> RenderableType:
    """Of the document of `doctor`."""
    parts: list[RenderableType] = []
    examinations: Sequence[Document] = document["examinations"]
    streams = [one for one in examinations if one["about"] == "stream"]
    if len(streams) > SHOWN_WHOLE:
        examinations = [one for one in examinations if one["about"] != "stream"]
        parts += _doctor_fold(streams)
    for one in examinations:
        findings = one["findings"]
        count = format_plural(len(findings), "finding") if findings else "nothing found"
        name = f"outbox {one['name']}" if one["about"] == "outbox" else one["name"]
        parts.append(Text(f"{name or 'the tool'}: {count}", "bold"))
        parts += [part for finding in findings for part in _doctor_draw_finding(finding)]
        parts += [_doctor_count_requests(*each) for each in one["requests"].items()]
        parts.append(Text())
    return Group(*parts, Text(*_DOCTOR_ENDS[document["result"]]))


def _doctor_count_requests(cluster: str, requests: Mapping[str, str]) -> Text:
    """`--json` has each."""
    by_state = {state: [name for name, one in requests.items() if one == state] for state in Taken}
    named = len(requests) - len(by_state[Taken.NOT_THERE])
    told = f"requests of cluster {cluster}: {named} of {len(requests)} named by one broker"
    told += f", {len(by_state[Taken.ANSWERED])} asked and answered"
    for state in (Taken.NOT_THERE, Taken.REFUSED):
        if names := by_state[state]:
            told += f"; {state}: {', '.join(names)}"
    return _indent(told, "dim")


def _doctor_fold(streams: Sequence[Document]) -> Iterator[RenderableType]:
    """Findings of many streams by check, worst first: of each check one, and whose else it is."""
    found: dict[tuple[str, str], list[tuple[str, Document]]] = {}
    for one in streams:
        for finding in one["findings"]:
            key = (finding["level"], finding["check"])
            found.setdefault(key, []).append((one["name"], finding))
    well = sum(not one["findings"] for one in streams)
    told = f"{format_plural(len(streams), 'stream')}, of {well:,} of them nothing was found"
    yield Text(f"{told}; by check, with one finding of each:", "bold")
    order = [str(level) for level in CheckLevel]
    for _, rows in sorted(found.items(), key=lambda item: order.index(item[0][0])):
        names = list(dict.fromkeys(name for name, _ in rows))
        yield from _doctor_draw_finding(rows[0][1])
        if len(names) > 1:
            told = f"{format_plural(len(names), 'stream')}: {name_some(names)}"
            yield _indent(told, "bold")
    yield Text()
    yield from render_next(f"backlogctl doctor {streams[0]['name']}")
    yield Text()


def _doctor_draw_finding(finding: Document) -> Iterator[RenderableType]:
    yield Text.assemble(_draw_level(finding), (finding["subject"], "bold"), hang=_INDENT)
    yield _indent(finding["found"])
    yield _indent(f"{finding['why']} ({finding['page']})", "dim")
    if finding["mend"]:
        yield _indent(f"→ {finding['mend']}")
    for command in finding["commands"]:
        yield make_line(_indent(command, "cyan"))


def _indent(text: str, style: str = "") -> Text:
    return Text(" " * _INDENT + text, style, hang=_INDENT)


def render_groups(document: Document) -> RenderableType:
    """`init --bootstrap`: those that can be chosen with their numbers, the others with the reason.

    The numbers are those of the choice.
    """
    groups: Sequence[Document] = document["groups"]
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
        Text(f"{show_name(one['group'])}: {one['why_not']}", "dim", hang=2)
        for one in groups
        if one["why_not"]
    ]
    return Group(*parts, *render_warnings(document["unknown"]))


def show_name(name: str) -> str:
    """A group's name on one line; quoted where spaces or signs in it would not be seen."""
    plain = name.isprintable() and name == name.strip() and name
    return name if plain else json.dumps(name)
