"""Lines of a recovery's record, as lists of them show them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from replay.recovery.context import STEP_COMPLETED, STEP_STARTED

Line = tuple[str, Mapping[str, Any]]
_STEP_WORDS = {STEP_STARTED: "started", STEP_COMPLETED: "completed"}


def find_finished_starts(lines: Sequence[Line]) -> frozenset[int]:
    """Numbers of the lines on the start of a step that was completed later: they say nothing more.

    Args:
        lines: action and detail of each, oldest first.
    """
    completed: set[Any] = set()
    starts = set()
    for number, (action, detail) in reversed(list(enumerate(lines))):
        step = detail.get("step")
        if action == STEP_COMPLETED:
            completed.add(step)
        elif action == STEP_STARTED and step in completed:
            starts.add(number)
    return frozenset(starts)


def name_line(action: str, detail: Mapping[str, Any]) -> Line:
    """`inject completed` of a step, with the rest of its detail; any other line as it is."""
    if action not in _STEP_WORDS or "step" not in detail:
        return action, detail
    rest = {name: value for name, value in detail.items() if name != "step"}
    return f"{name_step(detail['step'])} {_STEP_WORDS[action]}", rest


def name_step(step: object) -> str:
    """`stop consumers`."""
    return str(step).replace("_", " ")
