"""The groups of a cluster, for a person who chooses some of them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType

from backlog.numbers import format_count
from replay.telling.layout import Table, tell
from replay.telling.terminal import draw_warnings


def draw_groups(document: Mapping[str, Any]) -> RenderableType:
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
    return Group(*parts, *draw_warnings(document["unknown"]))


def show_name(name: str) -> str:
    """A group's name on one line; quoted where spaces or signs in it would not be seen."""
    plain = name.isprintable() and name == name.strip() and name
    return name if plain else json.dumps(name)
