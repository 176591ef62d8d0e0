"""What an audit found, for people: worst first, each with what to do about it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Group, RenderableType

from backlog.numbers import format_count, format_duration, format_plural
from replay.telling.layout import Facts, Text, make_line, tell

_STYLES = {"lost": "bold red", "suspect": "yellow", "unknown": "magenta", "noted": "dim"}
_ENDS = {
    "clean": ("nothing was found; what that means:", "green"),
    "suspect": ("messages may be missing", "yellow"),
    "unknown": ("cannot tell whether messages are missing", "magenta"),
}
_INDENT = 10
_SHOWN = 5


def draw_audit(document: Mapping[str, Any]) -> RenderableType:
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
