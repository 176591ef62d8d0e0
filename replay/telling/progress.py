"""How far a recovery of any kind is: its steps, and what is left where that is sampled."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import accumulate
from typing import Any, TypeVar

from backlog.clock import format_time
from backlog.ledger import BurndownSample, ChunkRecord, StepRecord
from backlog.values import ChunkState

T = TypeVar("T")

# Rates are those of the last seconds.
RATE_WINDOW = timedelta(seconds=10)
# Over less than this they say nothing of how long it takes: commits come seconds apart.
_LEAST_SECONDS = 3.0
# Samples come each second; those of a run before this one lie further apart.
_APART = timedelta(seconds=8)
_CURVE_POINTS = 36


@dataclass(frozen=True, slots=True)
class DrainPace:
    """Offsets left in both topics, messages a second, and seconds left; None where unknown."""

    left: int
    relayed: float | None
    handled: float | None
    seconds_left: float | None


def describe_progress(
    steps: Sequence[StepRecord],
    samples: Sequence[BurndownSample],
    now: datetime,
    *,
    chunks: Sequence[ChunkRecord] = (),
    live: bool = True,
) -> dict[str, Any]:
    """How far a recovery is: its steps, and the burn-down with rates and time left.

    Args:
        samples: of the burn-down, oldest first; none where a kind takes none.
        chunks: staged messages and what of them is put back; none where a kind sends none.
        live: whether it is being worked on: only then is time still passing.
    """
    return {
        "now": format_time(now),
        "live": live,
        "step": next((s.step for s in reversed(steps) if _state_of(s) == "running"), None),
        "steps": [_describe_step(step, now if live else None) for step in steps],
        "burndown": _describe_burndown(samples) if samples else None,
        "injection": _describe_injection(chunks) if chunks else None,
    }


def _state_of(step: StepRecord) -> str:
    return "done" if step.completed_at is not None else "running"


def _describe_step(step: StepRecord, now: datetime | None) -> dict[str, Any]:
    end = step.completed_at or now
    return {
        "step": step.step,
        "state": _state_of(step),
        "started_at": format_time(step.first_started_at),
        "completed_at": None if step.completed_at is None else format_time(step.completed_at),
        "seconds": None
        if end is None
        else max(0.0, round((end - step.first_started_at).total_seconds(), 1)),
        "attempts": step.attempts,
        "detail": dict(step.detail),
    }


def _describe_injection(chunks: Sequence[ChunkRecord]) -> dict[str, int]:
    """Messages that are staged, and those that are in the topic."""
    done = (c.chunk.count for c in chunks if c.state is ChunkState.INJECTED)
    return {"staged": sum(c.chunk.count for c in chunks), "injected": sum(done)}


def _describe_burndown(samples: Sequence[BurndownSample]) -> dict[str, Any]:
    last, pace = samples[-1], measure_drain(samples, RATE_WINDOW)
    return {
        "at": format_time(last.at),
        "step": last.step,
        "source_lag": last.source_lag,
        "temporary_lag": last.temporary_lag,
        "left": pace.left,
        "relayed": last.relayed,
        "handled": last.handled,
        "consumers": last.consumers,
        "relayed_per_second": _round(pace.relayed),
        "handled_per_second": _round(pace.handled),
        "eta_seconds": _round(pace.seconds_left),
        "seconds": round((last.at - samples[0].at).total_seconds(), 1),
        "curve": thin([s.source_lag + s.temporary_lag for s in samples], _CURVE_POINTS),
    }


def measure_drain(samples: Sequence[BurndownSample], window: timedelta) -> DrainPace:
    """How fast both topics were drained in the last `window`; at least one sample.

    Each step has other consumers at work, and a pause between two runs is no work: the time left
    goes by the samples of the last step that follow each other.
    """
    last, first = samples[-1], samples[-1]
    for sample in reversed(samples):
        apart = first.at - sample.at
        if sample.step != last.step or sample.at < last.at - window or apart > _APART:
            break
        first = sample
    seconds = (last.at - first.at).total_seconds()
    left = last.source_lag + last.temporary_lag
    if seconds <= 0:
        return DrainPace(left, None, None, None)
    shrinks = (first.source_lag + first.temporary_lag - left) / seconds
    return DrainPace(
        left,
        max(0.0, (last.relayed - first.relayed) / seconds),
        max(0.0, (last.handled - first.handled) / seconds),
        left / shrinks if shrinks > 0 and seconds >= _LEAST_SECONDS else None,
    )


def add_up_injected(chunks: Iterable[ChunkRecord]) -> list[tuple[datetime, int]]:
    """When each chunk was committed, and how many messages were back then in all."""
    done = sorted(
        (c.injected_at, c.chunk.count)
        for c in chunks
        if c.state is ChunkState.INJECTED and c.injected_at is not None
    )
    sums = accumulate(count for _, count in done)
    return [(at, total) for (at, _), total in zip(done, sums, strict=True)]


def _round(value: float | None) -> float | None:
    return None if value is None else round(value, 1)


def thin(points: Sequence[T], most: int) -> list[T]:
    """Few enough points to draw, evenly taken; the first and the last are kept."""
    if len(points) <= most:
        return list(points)
    step = (len(points) - 1) / (most - 1)
    return [points[round(number * step)] for number in range(most)]
