"""What the doctor found, for people: worst first, each with what mends it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.text import Text

from backlog.numbers import format_plural
from replay.telling.layout import Prose, tell

_STYLES = {"loses": "bold red", "stops": "bold red", "unknown": "magenta", "warns": "yellow"}
_ENDS = {
    0: Text("nothing here loses messages or stops a recovery", style="green"),
    1: Text("something will lose messages or stop a recovery", style="bold red"),
    2: Text("cannot tell: something could not be read", style="magenta"),
}
_INDENT = 10


def print_examinations(console: Console, document: Mapping[str, Any]) -> None:
    """Of the document of `doctor`."""
    for one in document["examinations"]:
        findings = one["findings"]
        count = format_plural(len(findings), "finding") if findings else "nothing found"
        console.print(tell(f"{one['name'] or 'the tool'}: {count}", "bold"))
        for finding in findings:
            _print_finding(console, finding)
        console.print()
    console.print(Prose(_ENDS[document["result"]]))


def _print_finding(console: Console, finding: Mapping[str, Any]) -> None:
    level = Text(f"  {finding['level']:<{_INDENT - 2}}", style=_STYLES[finding["level"]])
    console.print(Prose(level + Text(finding["subject"], style="bold"), _INDENT))
    blank = " " * _INDENT
    console.print(tell(f"{blank}{finding['found']}", hang=_INDENT))
    console.print(tell(f"{blank}{finding['why']} ({finding['page']})", "dim", hang=_INDENT))
    if finding["mend"]:
        console.print(tell(f"{blank}→ {finding['mend']}", hang=_INDENT))
    for command in finding["commands"]:
        # Whole, so that it can be copied: the terminal wraps it.
        console.print(Text(blank + command, style="cyan"), soft_wrap=True)
