"""The points of the figures: lag of the stream, burn-down, messages put back."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from backlog.clock import format_time
from backlog.values import ChunkState
from monitoring.disks import list_space
from replay.report.collecting import measure_lag
from replay.telling.account import RecoveryRecord
from replay.telling.progress import add_up_injected, thin

MOST_POINTS = 400
_RATE_STEPS = 60
_ENOUGH_FOR_RATE = 8


def describe_lag(record: RecoveryRecord, isolation: str) -> list[dict[str, Any]]:
    """`{"at", "lag"}`: unread offsets of the stream around the recovery."""
    points = measure_lag(record.samples, isolation)
    return [{"at": format_time(at), "lag": lag} for at, lag in thin(points, MOST_POINTS)]


def describe_burndown(record: RecoveryRecord) -> list[dict[str, Any]]:
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
        for sample in thin(record.burndown, MOST_POINTS)
    ]


def describe_disks(record: RecoveryRecord) -> list[dict[str, Any]]:
    """`{"of", "points": [{"at", "used"}]}`: bytes used of brokers' disks, and by the topic."""
    return [
        {
            "of": name,
            "points": [
                {"at": format_time(at), "used": used} for at, used in thin(points, MOST_POINTS)
            ],
        }
        for name, points in list_space(record.disks, record.recovery.topic).items()
    ]


def describe_injection(record: RecoveryRecord) -> dict[str, Any]:
    """Messages of a rebuild as they were put back: in all, and a second."""
    done = sorted(
        (record.injected_at, record.chunk.count)
        for record in record.chunks
        if record.state is ChunkState.INJECTED and record.injected_at is not None
    )
    if not done:
        return {"points": [], "rates": []}
    begin = min(done[0][0], _find_begin(record))
    points = [(begin, 0), *add_up_injected(record.chunks)]
    return {
        "points": [
            {"at": format_time(at), "total": total} for at, total in thin(points, MOST_POINTS)
        ],
        "rates": [
            {"at": format_time(at), "messages_per_second": round(rate, 1)}
            for at, rate in _measure_rates(begin, done)
        ],
    }


def _find_begin(record: RecoveryRecord) -> datetime:
    """When the step began that was at work when the first chunk was committed."""
    first = min(c.injected_at for c in record.chunks if c.injected_at is not None)
    began = [s.first_started_at for s in record.steps if s.first_started_at <= first]
    return max(began, default=first)


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
