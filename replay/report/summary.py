"""The report in a few lines, for a terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Group, RenderableType

from backlog.numbers import format_moment
from replay.telling.layout import Facts, Text
from replay.telling.terminal import style_word


def draw_summary(document: Mapping[str, Any]) -> RenderableType:
    """What it is about, how it stands, what was lost, verified, and not explained."""
    head = Text.assemble(
        (document["id"], "bold"),
        f"  {document['kind']} {document['stream']}  ",
        style_word(document["state"]),
        "  ",
        style_word(document["verdict"].replace("_", " ")),
    )
    grid = Facts()

    def add(name: str, told: str, style: str = "") -> None:
        grid.add(name, Text(told, style=style))

    standing, people = document["standing"], document["people"]
    add("", standing["headline"], "bold")
    add("", standing["sentence"])
    add("when", f"{format_moment(document['from'])} to {format_moment(document['to'])}")
    add("lost", document["losses"]["sentence"])
    add("planned by", f"{people['planned_by']}, {format_moment(people['planned_at'])}")
    if people["approved_by"]:
        told = f"{people['approved_by']} ({people['approved_identity']})"
        add("approved by", f"{told}, {format_moment(people['approved_at'])}")
    told = ", ".join(f"{item['value']} {item['told']}" for item in document["figures"])
    add("figures", told)
    verification = document["verification"]
    style = {"passed": "green", "failed": "bold red"}.get(verification["result"], "yellow")
    add("verification", verification["result"], style)
    rest = document["unexplained"]
    items = [f"{item['value']:,} {item['told']}" for item in rest["items"]]
    add("unexplained", f"{rest['told']} {'; '.join([*items, *rest['reasons']])}".strip())
    record = document["record"]
    if record["intact"] and record["plan_holds"]:
        add("record", f"{record['events']:,} events, hash chain verified", "green")
    else:
        add("record", record["problem"] or "the plan was changed after it was hashed", "bold red")
    return Group(head, grid)
