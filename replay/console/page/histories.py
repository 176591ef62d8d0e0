"""A stream's past as plots: lag, how old the oldest unread message was, and what it had left."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from backlog.values import PartitionSample, Sample
from monitoring.lag import count_lag
from monitoring.plots import Series, Threshold
from replay.telling.figures import Figure

MOST_POINTS = 300

Points = tuple[tuple[datetime, float | None], ...]


@dataclass(frozen=True, slots=True)
class History:
    """Figures; None where there are too few samples to show anything.

    `left` is None as well where the topic keeps messages for ever, or that is not known.
    """

    lag: Figure | None = None
    age: Figure | None = None
    left: Figure | None = None


def read_history(
    samples: Sequence[Sample], isolation: str, retention: timedelta | None, since: datetime
) -> History:
    """Draws the samples since then; older ones only date what is unread.

    Args:
        samples: of one topic and group, oldest first.
        retention: how long the topic keeps messages; None where that is unlimited or not known.
    """
    if not samples:
        return History()
    topic_id = samples[-1].topic_id
    same = [sample for sample in samples if sample.topic_id == topic_id]
    shown = thin([sample for sample in same if sample.taken_at >= since] or same[-1:])
    lag = tuple((sample.taken_at, sum_lag(sample, isolation)) for sample in shown)
    ages = measure_ages(same, shown, isolation)
    limit, left = None, None
    if retention is not None:
        limit = Threshold(retention.total_seconds(), "retention")
        left = Figure(
            "Time until retention deletes the oldest unread message, over time",
            (Series("left", measure_left(ages, retention)),),
            "seconds",
        )
    return History(
        Figure("Unread messages over time", (Series("lag", lag),), "messages"),
        Figure(
            "Age of the oldest unread message over time",
            (Series("oldest unread", ages),),
            "seconds",
            threshold=limit,
        ),
        left,
    )


def thin(samples: Sequence[Sample], most: int = MOST_POINTS) -> list[Sample]:
    """At most so many of them, evenly taken in time; the first and the last are kept."""
    if len(samples) <= most:
        return list(samples)
    first, last = samples[0].taken_at, samples[-1].taken_at
    step = (last - first) / (most - 1)
    kept = [samples[0]]
    for sample in samples[1:-1]:
        if sample.taken_at - kept[-1].taken_at >= step:
            kept.append(sample)
    return [*kept, samples[-1]]


def sum_lag(sample: Sample, isolation: str) -> float | None:
    """Of all partitions with a commit; None where none has one."""
    known = [lag for p in sample.partitions if (lag := count_lag(p, isolation)) is not None]
    return float(sum(known)) if known else None


def measure_ages(samples: Sequence[Sample], shown: Sequence[Sample], isolation: str) -> Points:
    """How old the oldest unread message of any partition was, in seconds; None where unknown.

    As `timeline.estimate_time` does it, with the samples sorted once for all.
    """
    ends: dict[int, tuple[list[datetime], list[int]]] = {}
    for sample in samples:
        for part in sample.partitions:
            times, highs = ends.setdefault(part.partition, ([], []))
            times.append(sample.taken_at)
            # A log that was cut back does not make what was written younger.
            highs.append(max(part.high, highs[-1] if highs else 0))
    return tuple((sample.taken_at, _measure_age(sample, ends, isolation)) for sample in shown)


def measure_left(ages: Points, retention: timedelta) -> Points:
    """Seconds until a message of that age may be deleted; all of the retention if none waits."""
    whole = retention.total_seconds()
    return tuple((at, None if age is None else max(0.0, whole - age)) for at, age in ages)


def _measure_age(
    sample: Sample, ends: dict[int, tuple[list[datetime], list[int]]], isolation: str
) -> float | None:
    oldest: float | None = None
    for part in sample.partitions:
        lag = count_lag(part, isolation)
        if lag is None:
            continue
        age: float | None = 0.0
        if lag:
            at = _find_written(part, *ends[part.partition])
            age = None if at is None else max(0.0, (sample.taken_at - at).total_seconds())
        if age is not None:
            oldest = age if oldest is None else max(oldest, age)
        elif lag:
            return None  # older than the samples reach
    return oldest


def _find_written(
    part: PartitionSample, times: Sequence[datetime], highs: Sequence[int]
) -> datetime | None:
    """When the oldest unread message was written: between the two samples it lies between."""
    offset = max(part.committed or 0, part.low)
    after = bisect_right(highs, offset)
    if after == 0 or after == len(highs):
        return None
    before = after - 1
    share = (offset - highs[before] + 1) / (highs[after] - highs[before])
    return times[before] + (times[after] - times[before]) * share
