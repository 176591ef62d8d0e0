"""Judges a group on a topic from its window.

Partitions with nothing unread, which are nearly all, and those that are read normally are judged
from the arrays at once; only the others are judged one by one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Self

import numpy as np
from numpy.typing import NDArray

from backlogctl.kafka.bulk import NONE, ListedGroup, Offsets
from backlogctl.monitoring.groups.dating import OffsetDates, Tail, Tails, UndatedOffset
from backlogctl.monitoring.groups.windows import (
    UNREAD,
    JudgingTerms,
    OffsetHistory,
    PartitionSeries,
    TopicHistory,
    fit,
    judge_busy,
)
from backlogctl.monitoring.offsets.history import SIMPLE
from backlogctl.monitoring.offsets.lag import TAIL_AT_MOST
from backlogctl.monitoring.offsets.sampler import find_state
from backlogctl.monitoring.offsets.standstills import MOMENT, USUAL_TIMES, measure_standstill
from backlogctl.monitoring.verdict.judge import PartitionView, Point, judge_partition
from backlogctl.monitoring.verdict.status import (
    GroupStatus,
    HeldBack,
    PartitionStatus,
    Retention,
    Verdict,
)
from backlogctl.monitoring.verdict.summary import summarize_group

# A group that runs moves past what expired in front of it with its next commit (protocol P1); its
# commits may be as far apart as the clients' default, 5 s.
LOST_AFTER = 6.0

Ages = Sequence[float]
Rates = Sequence[float | None]


@dataclass(frozen=True, slots=True)
class GroupHistory:
    """A group's commits on one life of a topic."""

    topic_id: str
    commits: OffsetHistory

    @classmethod
    def begin(cls, topic_id: str, rows: int, partitions: int) -> Self:
        return cls(topic_id, OffsetHistory(rows, partitions))


@dataclass(frozen=True, slots=True)
class SampleRows:
    """The rows of the window and those of before it, oldest first; ages are at most 0."""

    rows: Sequence[int]
    ages: Ages
    old_rows: Sequence[int]
    old_ages: Ages


@dataclass(frozen=True, slots=True)
class _Newest:
    """The newest row of a group on a topic; the place is the partition.

    Where its leader did not answer, the offsets are those of the last time that it did.
    """

    low: Offsets
    high: Offsets
    end: Offsets
    committed: Offsets
    lag: Offsets
    known: NDArray[np.bool_]  # its leader answered
    stable: Offsets


@dataclass(frozen=True, slots=True)
class GroupJudge:
    """Judges one pass."""

    taken_at: datetime
    cluster: str
    window: float
    horizon: float

    def list_tails(
        self, topic: str, of: TopicHistory, past: GroupHistory, when: SampleRows
    ) -> Iterator[Tail]:
        """Small lags at which the group has stood since the sample before."""
        if len(when.rows) < 2:
            return
        now = _read_now(of, past, when)
        before = fit(past.commits.read(when.rows[-2]), len(now.committed))
        small = (now.lag > 0) & (now.lag <= TAIL_AT_MOST) & (now.committed == before) & now.known
        for number in np.flatnonzero(small).tolist():
            yield _make_tail(topic, of, now, number)

    def list_undated(
        self,
        topic: str,
        of: TopicHistory,
        past: GroupHistory,
        when: SampleRows,
        retention: Retention,
    ) -> Iterator[UndatedOffset]:
        """What is unread since before the first sample that is kept."""
        now = _read_now(of, past, when)
        since = np.flatnonzero((now.lag > 0) & now.known)
        if not len(since):
            return
        ends = of.high.pick(when.rows, since)
        ends = np.where(past.commits.pick(when.rows, since) == UNREAD, UNREAD, ends)
        if old := [row for row, _ in _list_old(when, self.window)]:
            ends = np.concatenate([of.old_high.pick(old, since), ends])
        starts = np.maximum(now.committed, now.low)[since]
        known = ends >= 0
        missed = ~((ends <= starts) & known).any(axis=0)
        for number in since[missed].tolist():
            yield _make_undated(topic, of, now, number, retention)

    def judge(
        self,
        *,
        group: ListedGroup,
        topic: str,
        past: GroupHistory,
        of: TopicHistory,
        when: SampleRows,
        retention: Retention,
        tails: Tails,
        dates: OffsetDates,
    ) -> GroupStatus:
        now = _read_now(of, past, when)
        consumed = _measure_rates(past.commits, when.rows, when.ages, self.window)
        produced = _measure_rates(of.high, when.rows, when.ages, self.window)
        members = None if not group.state else group.state not in ("empty", "dead")
        state = find_state(group.state, is_simple=group.is_simple)
        has_commit = now.committed >= 0
        active = has_commit & (
            (now.lag > 0) | (now.committed < now.low) | (now.committed > now.high)
        )
        held = self._find_held(of, now, when)
        alone = np.isin(np.arange(len(active)), list(held))
        statuses = self._judge_busy(
            topic, of, past, when, active & now.known & ~alone, members, retention, tails
        )
        active[list(statuses)] = False
        active |= alone
        behind = np.flatnonzero(active & now.known)
        points = _read_points(of, past, when, behind)
        ends = _read_ends(of, when, self.window, behind)
        for number, seen, older in zip(behind.tolist(), points, ends, strict=True):
            tail = _make_tail(topic, of, now, number)
            commits = dict.fromkeys(p.committed for p in reversed(seen) if p.committed is not None)
            statuses[number] = judge_partition(
                PartitionView(
                    partition=number,
                    points=seen,
                    members=members,
                    assigns=state == SIMPLE,
                    lost=_count_lost(tail, now, seen, members, tails),
                    tail_without_data=tails.is_empty(tail),
                    empty_tail=tails.find_range(topic, of.topic_id, number, commits),
                    retention=retention,
                    oldest_seconds=dates.measure_age(
                        _make_undated(topic, of, now, number, retention)
                    ),
                    timeline=[*older, *((point.seconds, point.high) for point in seen)],
                    held=held.get(number),
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
            group_state=state,
            taken_at=self.taken_at,
            # A partition that nobody answers for may have been written.
            written=((now.high > 0) | ~now.known).tolist(),
            retention=retention,
            window=self.window,
        )

    def _find_held(self, of: TopicHistory, now: _Newest, when: SampleRows) -> dict[int, HeldBack]:
        """What lies behind a transaction that has been open for too long; nobody is asked whose it
        is."""
        if len(when.rows) < 2:
            return {}
        before = when.rows[-2]
        stands = now.known & (now.committed >= 0) & (now.committed <= now.stable)
        stands &= (now.stable < now.high) & (now.stable == of.stable.read(before))
        columns = np.flatnonzero(stands & (of.high.read(before) > now.stable))
        held: dict[int, HeldBack] = {}
        stables, highs = of.stable.take(when.rows, columns), of.high.take(when.rows, columns)
        for number, ends, tops in zip(columns.tolist(), stables, highs, strict=True):
            rows = zip(when.ages, ends, tops, strict=True)
            seconds, usual = measure_standstill([row for row in rows if row[1] >= 0])
            if seconds >= max(MOMENT.total_seconds(), USUAL_TIMES * (usual or 0.0)):
                stable, low = int(now.stable[number]), int(now.low[number])
                held[number] = HeldBack(
                    offset=stable,
                    messages=int(now.high[number]) - max(stable, low),
                    since=self.taken_at - timedelta(seconds=seconds),
                    seconds_open=seconds,
                    is_certain=False,
                )
        return held

    def _judge_busy(
        self,
        topic: str,
        of: TopicHistory,
        past: GroupHistory,
        when: SampleRows,
        active: NDArray[np.bool_],
        members: bool | None,
        retention: Retention,
        tails: Tails,
    ) -> dict[int, PartitionStatus]:
        """Those that are read normally."""
        columns = np.array(
            [
                number
                for number in np.flatnonzero(active).tolist()
                if not tails.knows(topic, of.topic_id, number)
            ],
            np.intp,
        )
        if not len(columns):
            return {}
        rows = when.rows
        low, high = of.low.pick(rows, columns), of.high.pick(rows, columns)
        stable, committed = of.stable.pick(rows, columns), past.commits.pick(rows, columns)
        # A sample without the group, or without the topic, is none.
        read = ((committed != UNREAD) & (high >= 0)).any(axis=1)
        ages = [age for age, ok in zip(when.ages, read.tolist(), strict=True) if ok]
        low, high, stable, committed = (one[read] for one in (low, high, stable, committed))
        end = find_group_end(committed, stable, high)
        limit = None if retention.time is None else retention.time.total_seconds()
        return judge_busy(
            PartitionSeries(ages, columns.tolist(), low, committed, end, high),
            JudgingTerms(members, limit, self.window, self.horizon),
        )


def _read_now(of: TopicHistory, past: GroupHistory, when: SampleRows) -> _Newest:
    row = when.rows[-1]
    low, stable, high = of.low.read(row), of.stable.read(row), of.high.read(row)
    committed = fit(past.commits.read(row), len(high))
    known = (low >= 0) & (high >= 0)
    if not known.all():
        low, high = _fill(of.low, low, known, when.rows), _fill(of.high, high, known, when.rows)
    end = find_group_end(committed, stable, high)
    end = np.where(known, end, np.maximum(end, committed))
    lag = np.where(known, np.maximum(0, end - np.maximum(committed, low)), 0)
    return _Newest(low, high, end, committed, lag, known, stable)


def _fill(
    columns: OffsetHistory, newest: Offsets, known: NDArray[np.bool_], rows: Sequence[int]
) -> Offsets:
    filled = np.where(known, newest, NONE)
    for row in reversed(rows[:-1]):
        filled = np.where(filled < 0, columns.read(row), filled)
    return np.maximum(0, filled)


def find_group_end(committed: Offsets, stable: Offsets, high: Offsets) -> Offsets:
    """Where the group's reading ends; its isolation level is not known.

    The high watermark; but one whose commit is exactly the last stable offset has read all that a
    reader of committed data can, and an open transaction must not look like a stall: it is one that
    has been open for too long, or none that matters.
    """
    return np.where((stable >= 0) & (committed == stable), stable, high)


def _make_tail(topic: str, of: TopicHistory, now: _Newest, number: int) -> Tail:
    start = max(int(now.committed[number]), int(now.low[number]))
    return Tail(topic, of.topic_id, number, start, int(now.end[number]))


def _make_undated(
    topic: str, of: TopicHistory, now: _Newest, number: int, retention: Retention
) -> UndatedOffset:
    start = max(int(now.committed[number]), int(now.low[number]))
    limit = None if retention.time is None else retention.time.total_seconds()
    return UndatedOffset(topic, of.topic_id, number, start, int(now.high[number]), limit)


def _count_lost(
    tail: Tail, now: _Newest, seen: Sequence[Point], members: bool | None, tails: Tails
) -> int:
    """What expired in front of a group that does not move past it."""
    committed, low = int(now.committed[tail.partition]), int(now.low[tail.partition])
    if committed >= low or tails.was_empty(
        tail.topic, tail.topic_id, tail.partition, committed, low
    ):
        return 0
    stands = members is False or any(
        point.seconds <= -LOST_AFTER and point.committed == committed < point.low for point in seen
    )
    return low - committed if stands else 0


def _list_old(when: SampleRows, window: float) -> list[tuple[int, float]]:
    """The rows and ages of before the window."""
    pairs = zip(when.old_rows, when.old_ages, strict=True)
    return [(row, age) for row, age in pairs if age < -window]


def _read_points(
    of: TopicHistory, past: GroupHistory, when: SampleRows, columns: NDArray[np.intp]
) -> Iterator[list[Point]]:
    """By partition its points, oldest first, without samples in which it was not read."""
    rows = when.rows
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
            for age, low, stable, high, committed in zip(when.ages, *series, strict=True)
            if low >= 0 and high >= 0 and committed != UNREAD
        ]


def _read_ends(
    of: TopicHistory, when: SampleRows, window: float, columns: NDArray[np.intp]
) -> Iterator[list[tuple[float, int]]]:
    """By partition the high watermarks of before the window, oldest first."""
    chosen = _list_old(when, window)
    series = of.old_high.take([row for row, _ in chosen], columns)
    for highs in series:
        yield [(age, high) for (_, age), high in zip(chosen, highs, strict=True) if high >= 0]


def _measure_rates(columns: OffsetHistory, rows: Sequence[int], ages: Ages, window: float) -> Rates:
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
    now: _Newest, judged: dict[int, PartitionStatus], consumed: Rates, produced: Rates
) -> list[PartitionStatus]:
    """All partitions, in order."""
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
        if number in judged:
            parts.append(judged[number])
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
        else:
            verdict = Verdict.UNKNOWN if high > 0 or not known else Verdict.OK
            parts.append(
                PartitionStatus(
                    partition=number,
                    log_start=low,
                    committed=committed if committed >= 0 else None,
                    end=end,
                    lag=None,
                    lag_seconds=None,
                    lost=None,
                    verdict=verdict,
                    course=verdict,
                    produced_per_second=_at(produced, number),
                )
            )
    return parts


def _at(rates: Rates, number: int) -> float | None:
    return rates[number] if number < len(rates) else None
