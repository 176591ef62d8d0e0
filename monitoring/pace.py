"""How fast a group read while it ran, and how fast each partition is written, from samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from backlog.values import Sample
from monitoring.lag import RATE_WINDOW


@dataclass(frozen=True, slots=True)
class Pace:
    """Offsets a second over the newest samples; None where the samples do not show it.

    `consumed` was measured over `seconds`, all partitions together; `produced` is of each partition
    that has two samples.
    """

    consumed: float | None
    seconds: float
    produced: Mapping[int, float]

    @property
    def produced_per_second(self) -> float | None:
        return sum(self.produced.values()) if self.produced else None


def measure_pace(samples: Sequence[Sample], running: bool) -> Pace:
    """The pace over the newest samples, oldest first, of one topic and group.

    Args:
        running: whether the group has members now. Where not, the time after its last commit
            is no measure of its speed, and is left out.
    """
    if not samples:
        return Pace(None, 0.0, {})
    last = samples[-1]
    window = [
        sample
        for sample in samples
        if sample.topic_id == last.topic_id and last.taken_at - sample.taken_at <= RATE_WINDOW
    ]
    consumed, seconds = _measure_pace(window if running else _cut_idle(window))
    return Pace(consumed, seconds, _measure_produced(window))


def _measure_pace(window: Sequence[Sample]) -> tuple[float | None, float]:
    """Over the times in which there was something to read: a group that waits is not slow."""
    seconds, moved = 0.0, 0
    for before, after in pairwise(window):
        count = _count_moved(before, after)
        if count is not None and _is_behind(before):
            seconds += (after.taken_at - before.taken_at).total_seconds()
            moved += count
    return (max(0, moved) / seconds, seconds) if seconds > 0 else (None, 0.0)


def _is_behind(sample: Sample) -> bool:
    return any(p.committed is not None and p.committed < p.high for p in sample.partitions)


def _cut_idle(window: Sequence[Sample]) -> Sequence[Sample]:
    """From the first sample before a commit moved to the last one after."""
    moving = [
        number
        for number, (before, after) in enumerate(pairwise(window))
        if (_count_moved(before, after) or 0) > 0
    ]
    return window[moving[0] : moving[-1] + 2] if moving else ()


def _count_moved(before: Sample, after: Sample) -> int | None:
    """Offsets committed in between; None where no partition has a commit in both."""
    earlier = {part.partition: part.committed for part in before.partitions}
    moves = [
        part.committed - at
        for part in after.partitions
        if part.committed is not None and (at := earlier.get(part.partition)) is not None
    ]
    return sum(moves) if moves else None


def _measure_produced(window: Sequence[Sample]) -> dict[int, float]:
    seconds = (window[-1].taken_at - window[0].taken_at).total_seconds()
    if seconds <= 0:
        return {}
    earlier = {part.partition: part.high for part in window[0].partitions}
    return {
        part.partition: max(0, part.high - earlier[part.partition]) / seconds
        for part in window[-1].partitions
        if part.partition in earlier
    }
