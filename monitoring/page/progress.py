"""How far a recovery is: a share, a rate, the time left, and the curve."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import accumulate
from typing import TypeVar

from backlog.ledger import BurndownSample, ChunkRecord, StepRecord
from backlog.values import ChunkState, Recovery, RecoveryState
from monitoring.page.drawings import Drawing, draw
from monitoring.page.plans import read_mapping
from monitoring.page.words import say_word
from monitoring.plots import Mark, Series

T = TypeVar("T")

# Rates are those of the last while.
RATE_WINDOW = timedelta(seconds=60)
MOST_POINTS = 300
_BEGUN = (
    RecoveryState.RUNNING,
    RecoveryState.PAUSED,
    RecoveryState.FAILED,
    RecoveryState.VERIFIED,
    RecoveryState.CANCELLED,
)


@dataclass(frozen=True, slots=True)
class Progress:
    """Messages done of all; `verb` says what was done with them.

    `rate` and `eta` (seconds) are None where nobody is at it, or it cannot be told.
    """

    verb: str
    done: int
    total: int
    rate: float | None
    eta: float | None
    lines: tuple[tuple[str, str], ...] = ()

    @property
    def percent(self) -> int:
        """Rounded down: 100 is all of them."""
        return 100 if self.total <= 0 else min(100, int(self.done / self.total * 100))


def measure_progress(
    recovery: Recovery,
    *,
    burndown: Sequence[BurndownSample] = (),
    chunks: Sequence[ChunkRecord] = (),
    now: datetime | None = None,
) -> Progress | None:
    """None where it has not begun, or nothing can be counted yet."""
    if recovery.state not in _BEGUN:
        return None
    live = recovery.state is RecoveryState.RUNNING
    if burndown:
        return _measure_burndown(burndown, live=live)
    if recovery.kind == "expand":
        return None
    total = read_mapping(read_mapping(recovery.plan.get("outcome")).get("counts")).get("rebuilt")
    if not isinstance(total, int):
        return None
    done = min(total, recovery.injected + recovery.skipped)
    rate = _measure_injection(chunks, now) if live and now is not None else None
    eta = (total - done) / rate if rate and done < total else None
    return Progress("put back", done, total, rate, eta)


def _measure_burndown(samples: Sequence[BurndownSample], *, live: bool) -> Progress:
    last = samples[-1]
    first = next(sample for sample in samples if sample.at >= last.at - RATE_WINDOW)
    seconds = (last.at - first.at).total_seconds()
    left = last.source_lag + last.temporary_lag

    def per_second(change: int) -> float | None:
        return change / seconds if live and seconds > 0 else None

    shrinks = per_second(first.source_lag + first.temporary_lag - left)
    rate = per_second(last.handled - first.handled)
    lines = [
        ("left in the topic", f"{last.source_lag:,}"),
        ("left in the temporary topic", f"{last.temporary_lag:,}"),
        ("relayed", f"{last.relayed:,}"),
    ]
    if live and last.consumers is not None:
        lines.append(("recovery consumers", f"{last.consumers:,}"))
    return Progress(
        "handled",
        last.handled,
        last.handled + left,
        rate,
        left / shrinks if shrinks and shrinks > 0 and left else None,
        tuple(lines),
    )


def _measure_injection(chunks: Sequence[ChunkRecord], now: datetime) -> float | None:
    """Messages a second over the last while."""
    done = [(c.injected_at, c.chunk.count) for c in chunks if c.injected_at is not None]
    if not done:
        return None
    begun = max(now - RATE_WINDOW, min(at for at, _ in done))
    seconds = (now - begun).total_seconds()
    return sum(count for at, count in done if at >= begun) / seconds if seconds > 1 else None


def draw_burndown(samples: Sequence[BurndownSample], steps: Sequence[StepRecord]) -> Drawing | None:
    """What is left in both topics; None before there is anything."""
    if len(samples) < 2:
        return None
    shown = _thin(samples)
    series = (
        Series("unread in all", tuple((s.at, s.source_lag + s.temporary_lag) for s in shown)),
        Series("in the topic", tuple((s.at, s.source_lag) for s in shown)),
        Series("in the temporary topic", tuple((s.at, s.temporary_lag) for s in shown)),
    )
    marks = _mark_steps(steps, samples[0].at, samples[-1].at)
    return draw(series, marks=marks, y="messages", title="Messages left over time", both=True)


def draw_injection(chunks: Sequence[ChunkRecord], steps: Sequence[StepRecord]) -> Drawing | None:
    """How many messages are back; None before the first."""
    done = sorted(
        (c.injected_at, c.chunk.count)
        for c in chunks
        if c.state is ChunkState.INJECTED and c.injected_at is not None
    )
    if len(done) < 2:
        return None
    sums = accumulate(count for _, count in done)
    points = [(done[0][0], 0.0), *((at, float(n)) for (at, _), n in zip(done, sums, strict=True))]
    marks = _mark_steps(steps, done[0][0] - timedelta(minutes=5), done[-1][0])
    return draw(
        (Series("put back", tuple(_thin(points))),),
        marks=marks,
        y="messages",
        title="Messages put back over time",
        both=True,
    )


def _mark_steps(steps: Iterable[StepRecord], first: datetime, last: datetime) -> tuple[Mark, ...]:
    return tuple(
        Mark(step.first_started_at, say_word(step.step))
        for step in steps
        if first <= step.first_started_at <= last
    )


def _thin(values: Sequence[T]) -> list[T]:
    """At most `MOST_POINTS`, evenly taken; the last one is kept."""
    if len(values) <= MOST_POINTS:
        return list(values)
    step = (len(values) - 1) / (MOST_POINTS - 1)
    return [values[round(number * step)] for number in range(MOST_POINTS)]
