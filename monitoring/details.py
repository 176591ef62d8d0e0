"""What of an event's detail is worth a place in a table: never what a message holds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from backlog.numbers import format_count, format_duration, format_moment

# With the words before them; nothing else is told.
_WORDS: Mapping[str, str] = {
    "by": "by ",
    "why": "",
    "reason": "",
    "code": "",
    "message": "",
    "next": "next: ",
    "step": "at ",
    "superseded_by": "by ",
    "from": "from ",
    "to": "to ",
    "runner": "runner ",
    "expires_at": "expires ",
    "matched": "matched ",
    "staged": "of ",
}


def tell_detail(detail: Mapping[str, Any], tell_time: Callable[[str], str] = format_moment) -> str:
    """The detail in words.

    Args:
        tell_time: how an ISO time is written.
    """
    told: list[str] = []
    for name, words in _WORDS.items():
        value = detail.get(name)
        if value in (None, "") or isinstance(value, Mapping | list):
            continue
        if name.endswith("_at"):
            value = tell_time(str(value))
        elif isinstance(value, int):
            value = format_count(value)
        told.append(f"{words}{value}")
    if isinstance(seconds := detail.get("seconds"), int | float):
        told.append(format_duration(seconds))
    return " ".join(told) if "matched" in detail else ", ".join(told)
