"""The points of the figures: lag of the stream, burn-down, messages put back."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, TypeVar

from backlog.clock import format_time
from backlog.values import ChunkState
from replay.report.material import Material, measure_lag

MOST_POINTS = 400
_RATE_STEPS = 60
_ENOUGH_FOR_RATE = 8

Item = TypeVar("Item")


def describe_lag(material: Material, isolation: str) -> list[dict[str, Any]]:
    """`{"at", "lag"}`: unread offsets of the stream around the recovery."""
    points = measure_lag(material.samples, isolation)
    return [{"at": format_time(at), "lag": lag} for at, lag in thin(points)]


def describe_burndown(material: Material) -> list[dict[str, Any]]:
    """What was left in both topics while an expansion was at work."""
    return [
        {
            "at": format_time(sample.at),
            "source_lag": sample.source_lag,
            "temporary_lag": sample.temporary_lag,
            "left": sample.source_lag + sample.temporary_lag,
            "relayed": sample.relayed,
            "handled": sample.handled,
            "consumers": sample.consumers,
        }
        for sample in thin(material.burndown)
    ]


def describe_injection(material: Material) -> dict[str, Any]:
    """Messages of a rebuild as they were put back: in all, and a second."""
    done = sorted(
        (record.injected_at, record.chunk.count)
        for record in material.chunks
        if record.state is ChunkState.INJECTED and record.injected_at is not None
    )
    if not done:
        return {"points": [], "rates": []}
    started = material.find_first("inject started")
    begin = min(done[0][0], started.at) if started else done[0][0]
    points, total = [(begin, 0)], 0
    for at, count in done:
        total += count
        points.append((at, total))
    return {
        "points": [{"at": format_time(at), "total": total} for at, total in thin(points)],
        "rates": [
            {"at": format_time(at), "messages_per_second": round(rate, 1)}
            for at, rate in _measure_rates(begin, done)
        ],
    }


def thin(points: Sequence[Item], most: int = MOST_POINTS) -> list[Item]:
    """Few enough points to draw, evenly taken; the first and the last are kept."""
    if len(points) <= most:
        return list(points)
    step = (len(points) - 1) / (most - 1)
    return [points[round(number * step)] for number in range(most)]


def _measure_rates(
    begin: datetime, done: Sequence[tuple[datetime, int]]
) -> list[tuple[datetime, float]]:
    """Messages a second by equal pieces of time; none where there are too few chunks to tell."""
    seconds = (done[-1][0] - begin).total_seconds()
    if len({at for at, _ in done}) < _ENOUGH_FOR_RATE or seconds <= 0:
        return []
    # Of a few chunks each, or it would be a picture of the chunks.
    pieces = max(2, min(_RATE_STEPS, len(done) // 4))
    width = seconds / pieces
    counts = [0] * pieces
    for at, count in done:
        counts[min(pieces - 1, int((at - begin).total_seconds() / width))] += count
    return [
        (begin + timedelta(seconds=(number + 0.5) * width), count / width)
        for number, count in enumerate(counts)
    ]
