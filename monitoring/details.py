"""The parts of an event's detail that a table shows; never the content of a message."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from backlog.numbers import format_count, format_duration, format_moment

# The keys shown, and the words before them.
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


def format_detail(detail: Mapping[str, Any]) -> str:
    """The detail in words."""
    parts: list[str] = []
    for name, words in _WORDS.items():
        value = detail.get(name)
        if value in (None, "") or isinstance(value, Mapping | list):
            continue
        if name.endswith("_at"):
            value = format_moment(str(value))
        elif isinstance(value, int):
            value = format_count(value)
        parts.append(f"{words}{value}")
    if isinstance(seconds := detail.get("seconds"), int | float):
        parts.append(format_duration(seconds))
    return " ".join(parts) if "matched" in detail else ", ".join(parts)
