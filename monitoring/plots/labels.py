"""Where the labels of moments stand, so that none covers another or another's line.

A moment's label stands above the plot, at its line, which goes up to it. Labels to the left stand
higher than those to the right that they reach over, so no line crosses a text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise


@dataclass(frozen=True, slots=True)
class Label:
    """A text at `x`; it spans `[left, left + width)` in `row`, 0 being the lowest."""

    x: float
    text: str
    width: float
    left: float = 0.0
    row: int = 0


def place_labels(
    wanted: Sequence[tuple[float, str]],
    *,
    right: float,
    character: float,
    rows: int,
    near: float,
) -> list[Label]:
    """Places labels; those that find no room are put together as `first … last`.

    Args:
        wanted: where each moment is, from left to right, and its text.
        right: where the room ends.
        character: the width of a character.
        rows: how many rows there are.
        near: moments that are as close as this are one.
    """
    groups = [[item] for item in wanted]
    while True:
        placed = _stack([_make(group, right, character) for group in groups])
        distances = [b[0][0] - a[-1][0] for a, b in pairwise(groups)]
        full = any(label.row >= rows for label in placed) or _is_crossed(placed)
        if not distances or (not full and min(distances) > near):
            return placed
        closest = distances.index(min(distances))
        groups[closest : closest + 2] = [groups[closest] + groups[closest + 1]]


def keep_apart(wanted: Sequence[tuple[float, str]], character: float) -> frozenset[int]:
    """Which of the texts that are centred at these places to show: none covers the one before.

    Every second, third … one is taken, so that what is left is even.
    """
    for step in range(1, len(wanted) + 1):
        kept = range(0, len(wanted), step)
        if all(
            wanted[b][0] - wanted[a][0]
            >= (len(wanted[a][1]) + len(wanted[b][1]) + 2) / 2 * character
            for a, b in pairwise(kept)
        ):
            return frozenset(kept)
    return frozenset()


def _make(group: list[tuple[float, str]], right: float, character: float) -> Label:
    first, last = group[0][1], group[-1][1]
    text = first if len(group) == 1 else f"{first} … {last}"
    width = (len(text) + 1) * character
    x = group[0][0]
    return Label(x, text, width, left=max(0.0, min(x, right - width)))


def _stack(labels: Sequence[Label]) -> list[Label]:
    placed: list[Label] = []
    for label in reversed(labels):
        below = [other.row for other in placed if _reaches_over(label, other)]
        placed.append(replace(label, row=max(below, default=-1) + 1))
    return placed[::-1]


def _reaches_over(label: Label, other: Label) -> bool:
    """Whether a label covers a part of another one, or of its line."""
    start = min(other.left, other.x)
    return label.left < other.left + other.width and start < label.left + label.width


def _is_crossed(placed: Sequence[Label]) -> bool:
    """Whether the line to a high label goes through a low one that had to move to the left."""
    return any(
        low.row < high.row and low.left < high.x < low.left + low.width
        for high in placed
        for low in placed
    )
