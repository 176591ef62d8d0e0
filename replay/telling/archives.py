"""Archives for the terminal, drawn from the JSON documents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType

from backlog.numbers import format_bytes, format_count, format_moment, format_plural
from replay.telling.layout import Facts, Table, Text, tell

Document = Mapping[str, Any]
_STAGES = {
    "put_back": "put back",
    "under_way": "about to be put back",
    "waiting": "waiting",
    "waived": "waived",
}


def draw_archives(archives: Sequence[Document]) -> RenderableType:
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


def draw_archive(document: Document) -> RenderableType:
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


def draw_check(document: Document) -> RenderableType:
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
