"""What is drawn: lines over time, moments, and a limit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class Series:
    """One line. Points are in the order of time; None breaks the line."""

    name: str
    points: Sequence[tuple[datetime, float | None]]


@dataclass(frozen=True, slots=True)
class Mark:
    """A moment worth a vertical line."""

    at: datetime
    label: str


@dataclass(frozen=True, slots=True)
class Threshold:
    value: float
    label: str
