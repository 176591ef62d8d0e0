"""Judges a group on a topic from its window.

Partitions without anything to tell, which are nearly all, take their figures from the arrays at
once; only the others are looked at one by one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol, Self

import numpy as np
from numpy.typing import NDArray

from backlog.kafka.bulk import NONE, ListedGroup, Offsets
from monitoring.groups.tails import AT_MOST, Tail, Tails
from monitoring.groups.windows import UNREAD, Columns, TopicPast, fit
from monitoring.judging import PartitionView, Point, judge_partition
from monitoring.status import GroupStatus, PartitionStatus, Retention
from monitoring.summaries import summarize_group
from monitoring.verdicts import Verdict

Ages = Sequence[float]
Rates = Sequence[float | None]


class SurveyedLike(Protocol):
    """What judging needs of what is surveyed."""

    @property
    def cluster(self) -> str: ...
    @property
    def window(self) -> timedelta: ...
    @property
    def horizon(self) -> timedelta: ...


@dataclass(frozen=True, slots=True)
class GroupPast:
    """A group's commits on one life of a topic."""

    topic_id: str
    commits: Columns

    @classmethod
    def begin(cls, topic_id: str, rows: int, partitions: int) -> Self:
        """Nothing seen yet."""
        return cls(topic_id, Columns(rows, partitions))


@dataclass(frozen=True, slots=True)
class _Now:
    """The newest row of a group on a topic; the place is the partition."""

    low: Offsets
    high: Offsets
    end: Offsets
    committed: Offsets
    lag: Offsets
    known: NDArray[np.bool_]  # its leader answered


@dataclass(frozen=True, slots=True)
class Judge:
    """Judges one pass."""

    taken_at: datetime
    cluster: str
    window: float
    horizon: float

    @classmethod
    def at(cls, taken_at: datetime, what: SurveyedLike) -> Self:
        """A pass of this time."""
        return cls(
            taken_at, what.cluster, what.window.total_seconds(), what.horizon.total_seconds()
        )

    def list_tails(
        self, topic: str, of: TopicPast, past: GroupPast, rows: Sequence[int]
    ) -> Iterator[Tail]:
        """Small lags at which the group has stood since the sample before."""
        if len(rows) < 2:
            return
        now = _read_now(of, past, rows[-1])
        before = fit(past.commits.read(rows[-2]), len(now.committed))
        small = (now.lag > 0) & (now.lag <= AT_MOST) & (now.committed == before) & now.known
        for number in np.flatnonzero(small).tolist():
            yield _make_tail(topic, of, now, number)

    def judge(
        self,
        *,
        group: ListedGroup,
        topic: str,
        past: GroupPast,
        of: TopicPast,
        rows: Sequence[int],
        ages: Ages,
        old_rows: Sequence[int],
        old_ages: Ages,
        retention: Retention,
        tails: Tails,
    ) -> GroupStatus:
        """The status of one group on one topic."""
        now = _read_now(of, past, rows[-1])
        consumed = _measure_rates(past.commits, rows, ages, self.window)
        produced = _measure_rates(of.high, rows, ages, self.window)
        has_commit = now.committed >= 0
        told = has_commit & ((now.lag > 0) | (now.committed < now.low) | (now.committed > now.high))
        behind = np.flatnonzero(told & now.known)
        points = _read_points(of, past, rows, ages, behind)
        ends = _read_ends(of, old_rows, old_ages, -self.window, behind)
        members = None if not group.state else group.state not in ("empty", "dead")
        statuses: dict[int, PartitionStatus] = {}
        for number, seen, older in zip(behind.tolist(), points, ends, strict=True):
            statuses[number] = judge_partition(
                PartitionView(
                    partition=number,
                    points=seen,
                    members=members,
                    lost=_count_lost(topic, of, now, number, tails),
                    tail_without_data=tails.is_empty(_make_tail(topic, of, now, number)),
                    retention=retention,
                    timeline=[*older, *((point.seconds, point.high) for point in seen)],
                    window=self.window,
                    horizon=self.horizon,
                )
            )
        parts = _add_quiet(now, statuses, consumed, produced)
        return summarize_group(
            parts,
            stream="",
            cluster=self.cluster,
            topic=topic,
            group=group.name,
            group_state=group.state,
            taken_at=self.taken_at,
            written=(now.high[now.known] > 0).tolist(),
            retention=retention,
            window=self.window,
        )


def _read_now(of: TopicPast, past: GroupPast, row: int) -> _Now:
    low, stable, high = of.low.read(row), of.stable.read(row), of.high.read(row)
    committed = fit(past.commits.read(row), len(high))
    end = find_end(committed, stable, high)
    lag = np.maximum(0, end - np.maximum(committed, low))
    return _Now(low, high, end, committed, lag, (low >= 0) & (high >= 0))


def find_end(committed: Offsets, stable: Offsets, high: Offsets) -> Offsets:
    """Where the group's reading ends, of which nobody says how it reads.

    The high watermark; but one that stands exactly at the last stable offset has read all that a
    reader of committed data can, and an open transaction must not look like a stall.
    """
    return np.where((stable >= 0) & (committed == stable), stable, high)


def _make_tail(topic: str, of: TopicPast, now: _Now, number: int) -> Tail:
    start = max(int(now.committed[number]), int(now.low[number]))
    return Tail(topic, of.topic_id, number, start, int(now.end[number]))


def _count_lost(topic: str, of: TopicPast, now: _Now, number: int, tails: Tails) -> int:
    committed, low = int(now.committed[number]), int(now.low[number])
    if committed >= low or tails.was_empty(topic, of.topic_id, number, committed, low):
        return 0
    return low - committed


def _read_points(
    of: TopicPast, past: GroupPast, rows: Sequence[int], ages: Ages, columns: NDArray[np.intp]
) -> Iterator[list[Point]]:
    """By partition its points, oldest first, without samples in which it was not read."""
    lows, stables = of.low.take(rows, columns), of.stable.take(rows, columns)
    highs, commits = of.high.take(rows, columns), past.commits.take(rows, columns)
    for series in zip(lows, stables, highs, commits, strict=True):
        yield [
            Point(
                age,
                low,
                None if committed == NONE else committed,
                stable if stable >= 0 and committed == stable else high,
                high,
            )
            for age, low, stable, high, committed in zip(ages, *series, strict=True)
            if low >= 0 and high >= 0 and committed != UNREAD
        ]


def _read_ends(
    of: TopicPast, rows: Sequence[int], ages: Ages, before: float, columns: NDArray[np.intp]
) -> Iterator[list[tuple[float, int]]]:
    """By partition the high watermarks of before the window, oldest first."""
    chosen = [(row, age) for row, age in zip(rows, ages, strict=True) if age < before]
    series = of.old_high.take([row for row, _ in chosen], columns)
    for highs in series:
        yield [(age, high) for (_, age), high in zip(chosen, highs, strict=True) if high >= 0]


def _measure_rates(columns: Columns, rows: Sequence[int], ages: Ages, window: float) -> Rates:
    """Offsets a second from the first row of the window in which anything was read."""
    newest = columns.read(rows[-1])
    for row, age in zip(rows[:-1], ages[:-1], strict=True):
        first = columns.read(row)
        if age < -window or not (first >= 0).any():
            continue
        known = (first >= 0) & (newest >= 0)
        rates = np.maximum(0, newest - first) / -age
        return [
            rate if ok else None for rate, ok in zip(rates.tolist(), known.tolist(), strict=True)
        ]
    return [None] * columns.partitions


def _add_quiet(
    now: _Now, told: dict[int, PartitionStatus], consumed: Rates, produced: Rates
) -> list[PartitionStatus]:
    """All partitions whose leader answered, in order."""
    columns = zip(
        now.known.tolist(),
        now.low.tolist(),
        now.committed.tolist(),
        now.end.tolist(),
        now.high.tolist(),
        strict=True,
    )
    parts: list[PartitionStatus] = []
    for number, (known, low, committed, end, high) in enumerate(columns):
        if number in told:
            parts.append(told[number])
        elif known and committed >= 0:
            parts.append(
                PartitionStatus(
                    partition=number,
                    log_start=low,
                    committed=committed,
                    end=end,
                    lag=0,
                    lag_seconds=0.0,
                    lost=0,
                    seconds_to_drain=0.0,
                    consumed_per_second=_at(consumed, number),
                    produced_per_second=_at(produced, number),
                )
            )
        elif known:
            parts.append(
                PartitionStatus(
                    partition=number,
                    log_start=low,
                    committed=None,
                    end=end,
                    lag=None,
                    lag_seconds=None,
                    lost=None,
                    verdict=Verdict.UNKNOWN if high > 0 else Verdict.OK,
                    produced_per_second=_at(produced, number),
                )
            )
    return parts


def _at(rates: Rates, number: int) -> float | None:
    return rates[number] if number < len(rates) else None
