"""How far a recovery is: a share, a rate, the time left, and the curve."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from backlog.ledger import BurndownSample, ChunkRecord, StepRecord
from backlog.ledger.disks import DiskReading
from backlog.values import Recovery, RecoveryState
from monitoring.disks import list_space
from monitoring.plots import Mark, Series
from replay.console.page.drawings import Drawing, draw
from replay.console.page.words import say_word
from replay.telling.progress import RATE_WINDOW as DRAIN_WINDOW
from replay.telling.progress import add_up_injected, measure_drain, thin

# Rates are those of the last while.
RATE_WINDOW = timedelta(seconds=60)
MOST_POINTS = 300
MOST_LINES = 6
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

    `rate` and `eta` (seconds) are None where no runner works on it, or they are not known.
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
    burndown: Sequence[BurndownSample],
    chunks: Sequence[ChunkRecord],
    now: datetime,
) -> Progress | None:
    """None where it has not begun, or nothing can be counted yet."""
    if recovery.state not in _BEGUN:
        return None
    live = recovery.state is RecoveryState.RUNNING
    if burndown:
        found = _measure_burndown(burndown, live=live)
        # The last sample is a moment before the end.
        whole = recovery.state is RecoveryState.VERIFIED
        return replace(found, done=found.total) if whole else found
    if not chunks:
        return None
    total = sum(record.chunk.count for record in chunks)
    done = min(total, recovery.injected + recovery.skipped)
    if recovery.state is RecoveryState.VERIFIED:
        done = total
    rate = _measure_injection(chunks, now) if live else None
    eta = (total - done) / rate if rate and done < total else None
    return Progress("put back", done, total, rate, eta)


def _measure_burndown(samples: Sequence[BurndownSample], *, live: bool) -> Progress:
    last, pace = samples[-1], measure_drain(samples, DRAIN_WINDOW)
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
        last.handled + pace.left,
        pace.handled if live else None,
        pace.seconds_left if live and pace.left else None,
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
    shown = thin(samples, MOST_POINTS)
    series = (
        Series("unread in all", tuple((s.at, s.source_lag + s.temporary_lag) for s in shown)),
        Series("in the topic", tuple((s.at, s.source_lag) for s in shown)),
        Series("in the temporary topic", tuple((s.at, s.temporary_lag) for s in shown)),
    )
    marks = _mark_steps(steps, samples[0].at, samples[-1].at)
    return draw(series, marks=marks, y="messages", title="Messages left over time", both=True)


def draw_disks(
    readings: Sequence[DiskReading], topic: str, steps: Sequence[StepRecord]
) -> Drawing | None:
    """What is used of the brokers' disks, and by the topic; None before there is anything."""
    used = {name: at for name, at in list_space(readings, topic).items() if len(at) > 1}
    if not used:
        return None
    series = tuple(
        Series(name, tuple(thin(points, MOST_POINTS)))
        for name, points in [*used.items()][:MOST_LINES]
    )
    times = [at for points in used.values() for at, _ in points]
    marks = _mark_steps(steps, min(times), max(times))
    return draw(series, marks=marks, y="bytes", title="Used space of the brokers' disks", both=True)


def draw_unread(
    points: Sequence[tuple[datetime, int]], steps: Sequence[StepRecord]
) -> Drawing | None:
    """What the group has not read; None before there is anything."""
    if len(points) < 2:
        return None
    marks = _mark_steps(steps, points[0][0], points[-1][0])
    series = (Series("unread", tuple(thin(points, MOST_POINTS))),)
    return draw(series, marks=marks, y="messages", title="Unread offsets of the group", both=True)


def draw_injection(chunks: Sequence[ChunkRecord], steps: Sequence[StepRecord]) -> Drawing | None:
    """How many messages are back; None before the first."""
    done = add_up_injected(chunks)
    if len(done) < 2:
        return None
    points = [(done[0][0], 0.0), *((at, float(total)) for at, total in done)]
    marks = _mark_steps(steps, done[0][0] - timedelta(minutes=5), done[-1][0])
    return draw(
        (Series("put back", tuple(thin(points, MOST_POINTS))),),
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
