"""The last samples of every topic and group, in arrays.

Each has a row a sample and a column a partition, and all share the moments of the rows. A hundred
thousand partitions of a thousand groups are some tens of megabytes so.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat

import numpy as np
from numpy.typing import NDArray

from backlogctl.kafka.bulk import NONE, Offsets
from backlogctl.monitoring.offsets.lag import TAIL_AT_MOST
from backlogctl.monitoring.verdict.judge import COVERED, TREND_POINTS
from backlogctl.monitoring.verdict.status import KEEPS_UP_SECONDS, PartitionStatus, Verdict

UNREAD = -2  # nobody asked, or nobody answered; NONE is "there is no offset"


class SampleTimes:
    """When rows were taken; a row is used again when it is the oldest.

    Of samples that follow each other faster than `step`, only the newest is kept beside those that
    are `step` apart: a short interval must not cost more memory.

    Args:
        count: rows. step: seconds.
    """

    def __init__(self, count: int, step: float) -> None:
        self._times = np.full(count, -np.inf)
        self._step = step
        self._order: list[int] = []

    @property
    def count(self) -> int:
        """How many rows there are room for."""
        return len(self._times)

    def advance(self, at: float) -> int:
        """The row of a new sample, whose content is void."""
        order = self._order
        # The newest one makes room if the one before it is near enough already.
        if len(order) >= 2 and self._times[order[-1]] - self._times[order[-2]] < self._step:
            row = order.pop()
        elif len(order) == self.count:
            row = order.pop(0)
        else:
            row = next(row for row in range(self.count) if row not in order)
        order.append(row)
        self._times[row] = at
        return row

    @property
    def rows(self) -> Sequence[int]:
        """The rows in use, oldest first."""
        return tuple(self._order)

    def list_ages(self, now: float) -> list[float]:
        """Seconds relative to now, of `rows`: at most 0."""
        return [float(self._times[row]) - now for row in self._order]


class OffsetHistory:
    """One kind of offset of a topic's partitions over the moments."""

    def __init__(self, rows: int, partitions: int) -> None:
        self._values: Offsets = np.full((rows, partitions), UNREAD, np.int64)

    @property
    def partitions(self) -> int:
        """How many partitions there are columns for."""
        return int(self._values.shape[1])

    def clear(self, row: int) -> None:
        self._values[row] = UNREAD

    def write(self, row: int, offsets: Offsets, partitions: int) -> None:
        """Fills a row; partitions that `offsets` does not reach have none."""
        if partitions > self.partitions:
            grown = np.full((len(self._values), partitions), UNREAD, np.int64)
            grown[:, : self.partitions] = self._values
            self._values = grown
        self._values[row] = fit(offsets, self.partitions)

    def read(self, row: int) -> Offsets:
        found: Offsets = self._values[row]
        return found

    def pick(self, rows: Sequence[int], columns: NDArray[np.intp]) -> Offsets:
        """A row for each of the rows, of these columns."""
        found: Offsets = self._values[np.ix_(np.array(rows, np.intp), columns)]
        return found

    def take(self, rows: Sequence[int], columns: NDArray[np.intp]) -> list[list[int]]:
        """By column, the values of the rows."""
        found: list[list[int]] = self.pick(rows, columns).T.tolist()
        return found


class TopicHistory:
    """A topic in one life of it: log starts, stable ends, high watermarks, and older ends."""

    def __init__(self, topic_id: str, rows: int, old_rows: int, partitions: int) -> None:
        self.topic_id = topic_id
        self.low = OffsetHistory(rows, partitions)
        self.stable = OffsetHistory(rows, partitions)
        self.high = OffsetHistory(rows, partitions)
        self.old_high = OffsetHistory(old_rows, partitions)

    def list_recent(self) -> Iterator[OffsetHistory]:
        """Those of the window."""
        yield from (self.low, self.stable, self.high)

    def clear(self, row: int, old_row: int) -> None:
        for columns in self.list_recent():
            columns.clear(row)
        self.old_high.clear(old_row)


def fit(offsets: Offsets, partitions: int) -> Offsets:
    """The offsets of so many partitions."""
    if len(offsets) >= partitions:
        return offsets[:partitions]
    fitted = np.full(partitions, NONE, np.int64)
    fitted[: len(offsets)] = offsets
    return fitted


# Partitions that are read normally, judged all at once.
#
# What most partitions of a busy cluster are: something is unread in each sample, it moves, and
# retention is far away. They get the verdict that `judge_partition` would give; all others are
# left
# to it.

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
