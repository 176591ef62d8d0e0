"""Partitions that are read normally, judged all at once.

What most partitions of a busy cluster are: something is unread in each sample, it moves, and
retention is far away. They get the verdict that `judge_partition` would give; all others are left
to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import repeat

import numpy as np
from numpy.typing import NDArray

from backlog.kafka.layouts import Offsets
from monitoring.judging import COVERED, TREND_POINTS
from monitoring.lag import TAIL_AT_MOST
from monitoring.status import KEEPS_UP_SECONDS, PartitionStatus
from monitoring.verdicts import Verdict

Figures = NDArray[np.float64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class PartitionSeries:
    """Of some partitions of a group: a row a sample, oldest first, and a column a partition.

    `ages` are the rows' seconds relative to the newest, `numbers` the columns' partitions.
    """

    ages: Sequence[float]
    numbers: Sequence[int]
    low: Offsets
    committed: Offsets
    end: Offsets
    high: Offsets


@dataclass(frozen=True, slots=True)
class JudgingTerms:
    """What a group is judged by; times in seconds, None where nothing is deleted by time."""

    members: bool | None
    retention: float | None
    window: float
    horizon: float


def judge_busy(series: PartitionSeries, terms: JudgingTerms) -> dict[int, PartitionStatus]:
    """The status of the plain ones, by partition."""
    if len(series.ages) < 2:
        return {}
    lags = np.maximum(0, series.end - np.maximum(series.committed, series.low))
    ages = np.array(series.ages)
    since = _find_first(ages, terms.window)
    times, lag, commits = ages[since:], lags[since:], series.committed[since:]
    covered = len(times) >= TREND_POINTS and bool(times[0] <= -COVERED * terms.window)
    moved = (commits != commits[0]).any(axis=0)
    fell = _is_small(lag) | (moved & ~_is_growing(lag))
    dates = _date(series, ages)
    plain = (
        _is_sound(series)
        & (lags[-1] > 0)
        & (commits[-1] >= commits.max(axis=0))
        & dates.known
        & _is_safe(lag, moved, dates.age, covered, terms)
        & (fell if covered else np.ones_like(moved))
    )
    chosen = np.flatnonzero(plain)
    if not len(chosen):
        return {}
    lag, commits, high = lag[:, chosen], commits[:, chosen], series.high[since:, chosen]
    lows, ends = series.low[since:, chosen], series.end[since:, chosen]
    # Too few samples for a trend, and it never was at the end.
    early = ~_is_small(lag) if not covered else np.zeros(len(chosen), np.bool_)
    verdicts = [Verdict.LAGGING if is_early else Verdict.OK for is_early in early.tolist()]
    span = float(times[-1] - times[0])
    produced = np.maximum(0, high[-1] - high[0]) / span if span > 0 else None
    retained = None
    if terms.retention is not None:
        retained = np.maximum(0.0, terms.retention - dates.age[chosen])
    columns = zip(
        (series.numbers[at] for at in chosen.tolist()),
        series.low[-1, chosen].tolist(),
        commits[-1].tolist(),
        series.end[-1, chosen].tolist(),
        lag[-1].tolist(),
        dates.lag_seconds[chosen].tolist(),
        verdicts,
        _list_known(_estimate_drains(times, lag[-1], _add_up_read(lows, commits), ends)),
        repeat(None) if retained is None else retained.tolist(),
        _list_known(_measure_consumed(times, lag, commits)),
        repeat(None) if produced is None else produced.tolist(),
        strict=False,
    )
    return {
        number: PartitionStatus(
            partition=number,
            log_start=low,
            committed=committed,
            end=end,
            lag=behind,
            lag_seconds=seconds,
            lost=0,
            verdict=verdict,
            course=verdict,
            seconds_to_drain=drain,
            seconds_retained=kept,
            consumed_per_second=consumed,
            produced_per_second=written,
        )
        for (
            number,
            low,
            committed,
            end,
            behind,
            seconds,
            verdict,
            drain,
            kept,
            consumed,
            written,
        ) in columns
    }


def _find_first(ages: Figures, window: float) -> int:
    """The first row of the window, or the one before it if that is not too old."""
    first = int(np.searchsorted(ages, -window))
    return first - 1 if first and ages[first - 1] >= -2 * window else first


def _is_sound(series: PartitionSeries) -> Flags:
    """Every sample was read, the log only grew, and the group stands within it."""
    known = (series.low >= 0) & (series.high >= 0) & (series.committed >= 0)
    grew = (np.diff(series.high, axis=0) >= 0).all(axis=0)
    at = series.committed[-1]
    found: Flags = known.all(axis=0) & grew & (at >= series.low[-1]) & (at <= series.high[-1])
    return found


def _is_small(lag: Offsets) -> Flags:
    """Whether it was once at the end, or before control records only."""
    few: Offsets = np.where(lag[-1] > TAIL_AT_MOST, TAIL_AT_MOST, 0)
    found: Flags = np.any(lag <= few, axis=0)
    return found


def _is_growing(lag: Offsets) -> Flags:
    found: Flags = (lag[-1] > lag[0]) & (np.diff(lag, axis=0) >= 0).all(axis=0)
    return found


def _is_safe(lag: Offsets, moved: Flags, age: Figures, covered: bool, terms: JudgingTerms) -> Flags:
    """Whether retention cannot pass the group within the horizon, or that is not known yet."""
    safe: Flags = np.full(lag.shape[1], terms.retention is None)
    if terms.retention is not None:
        safe |= terms.retention - age > terms.horizon
    if terms.members is not False:
        safe |= (lag == 0).any(axis=0)
    if not covered:  # no pace is known yet, but that nobody is there
        safe |= moved if terms.members is False else np.ones_like(moved)
    return safe


@dataclass(frozen=True, slots=True)
class _Dates:
    """When the oldest unread message came: as late as may be, and as early; seconds ago."""

    known: Flags
    lag_seconds: Figures
    age: Figures


def _date(series: PartitionSeries, ages: Figures) -> _Dates:
    offset = series.committed[-1]
    hit = (series.high[:-1] <= offset) & (offset < series.high[1:])
    at = hit.argmax(axis=0)
    columns = np.arange(len(offset))
    end, after = series.high[at, columns], series.high[at + 1, columns]
    known = hit.any(axis=0)
    begin, width = ages[at], ages[at + 1] - ages[at]
    offsets = np.where(known, after - end, 1)
    return _Dates(
        known,
        np.maximum(0.0, -(begin + width * (offset - end + 1) / offsets)),
        -(begin + width * (offset - end) / offsets),
    )


def _measure_consumed(times: Figures, lag: Offsets, commits: Offsets) -> Figures:
    """Over the times that began with something unread; NaN where there are none."""
    began = lag[:-1] > 0
    seconds = (began * np.diff(times)[:, None]).sum(axis=0)
    moved = np.maximum(0, (began * np.diff(commits, axis=0)).sum(axis=0))
    return np.where(seconds > 0, moved / np.where(seconds > 0, seconds, 1.0), np.nan)


def _add_up_read(lows: Offsets, commits: Offsets) -> Offsets:
    """Offsets that were read since the first row; none of what a commit skips as expired."""
    begin = np.maximum(commits[:-1], np.minimum(lows[1:], commits[1:]))
    sums: Offsets = np.zeros_like(commits)
    np.cumsum(np.maximum(0, commits[1:] - begin), axis=0, out=sums[1:])
    return sums


def _estimate_drains(times: Figures, lag: Offsets, read: Offsets, ends: Offsets) -> Figures:
    """At the rates of reading and writing; NaN without progress, and for a small lag that stays."""
    away = times - times.mean()
    over = float((away**2).sum())
    if over <= 0:
        return np.full(len(lag), np.nan)
    written = ends - ends[0]
    # Whole numbers first: an even lag must not seem to fall by a rounding error.
    gain = (away[:, None] * (read - written)).sum(axis=0) / over
    rate = (away[:, None] * written).sum(axis=0) / over
    drains = (gain > 1e-12 * np.maximum(1, read[-1])) & (lag > KEEPS_UP_SECONDS * rate)
    return np.where(drains, lag / np.where(drains, gain, 1.0), np.nan)


def _list_known(values: Figures) -> list[float | None]:
    return [None if value != value else value for value in values.tolist()]
