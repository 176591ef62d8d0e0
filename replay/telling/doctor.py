"""What the doctor found, for people: worst first, each with what mends it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Group, RenderableType

from backlog.numbers import format_plural
from replay.telling.layout import Text, make_line, tell

_STYLES = {"loses": "bold red", "stops": "bold red", "unknown": "magenta", "warns": "yellow"}
_ENDS = {
    0: ("nothing here loses messages or stops a recovery", "green"),
    1: ("something will lose messages or stop a recovery", "bold red"),
    2: ("cannot tell: something could not be read", "magenta"),
}
_INDENT = 10


def draw_examinations(document: Mapping[str, Any]) -> RenderableType:
    """Of the document of `doctor`."""
    parts: list[RenderableType] = []
    for one in document["examinations"]:
        findings = one["findings"]
        count = format_plural(len(findings), "finding") if findings else "nothing found"
        name = f"outbox {one['name']}" if one["about"] == "outbox" else one["name"]
        parts.append(tell(f"{name or 'the tool'}: {count}", "bold"))
        parts += [part for finding in findings for part in _draw_finding(finding)]
        parts.append(Text())
    return Group(*parts, tell(*_ENDS[document["result"]]))


def _draw_finding(finding: Mapping[str, Any]) -> Iterator[RenderableType]:
    level = Text(f"  {finding['level']:<{_INDENT - 2}}", style=_STYLES[finding["level"]])
    yield Text.assemble(level, (finding["subject"], "bold"), hang=_INDENT)
    yield _indent(finding["found"])
    yield _indent(f"{finding['why']} ({finding['page']})", "dim")
    if finding["mend"]:
        yield _indent(f"→ {finding['mend']}")
    for command in finding["commands"]:
        yield make_line(Text(" " * _INDENT + command, style="cyan"))


def _indent(text: str, style: str = "") -> RenderableType:
    return tell(" " * _INDENT + text, style, hang=_INDENT)
