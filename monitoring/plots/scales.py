"""Ticks of the upright axis: few, from zero, at values that people say."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from backlog.numbers import format_bytes, format_count, format_duration

Unit = Literal["messages", "seconds", "rate", "bytes"]

_TIMES = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800)
_HOURS = (3600, 7200, 10800, 21600, 43200, 86400)
_STEPS = (1.0, 2.0, 5.0, 10.0)


def choose_ticks(top: float, unit: Unit, most: int) -> list[float]:
    """Ticks from zero to at or above `top`, at most `most` steps."""
    wanted = max(top, 1.0 if unit in ("messages", "bytes") or not top else 1e-6)
    step = _choose_step(wanted / most, unit)
    return [step * number for number in range(math.ceil(wanted / step - 1e-9) + 1)]


def _choose_step(least: float, unit: Unit) -> float:
    if unit == "seconds" and least > 1:
        for step in (*_TIMES, *_HOURS):
            if step >= least:
                return float(step)
        return 86400.0 * _round_up(least / 86400)
    if unit in ("messages", "bytes"):
        return max(1.0, _round_up(least))
    return _round_up(least)


def _round_up(least: float) -> float:
    size = 10.0 ** math.floor(math.log10(least))
    return next(size * step for step in _STEPS if size * step >= least * (1 - 1e-9))


def label_ticks(ticks: Sequence[float], unit: Unit) -> list[str]:
    """`0`, `250,000`, `1.2 M`; `30 s`, `3 h 10 min`; `1,500/s`; `1.5 GB`."""
    return [_label(value, unit) for value in ticks]


def _label(value: float, unit: Unit) -> str:
    if not value:
        return "0"
    if unit == "seconds":
        return f"{value:g} s" if value < 10 else format_duration(value)
    if unit == "bytes":
        return format_bytes(round(value)).replace(".0 ", " ")
    number = f"{value:g}" if value < 10 else format_count(round(value)).replace(".0 ", " ")
    return f"{number}/s" if unit == "rate" else number
