"""Stored samples as the timeline that turns offsets into times (protocol P1)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from backlogctl.values import Gap, Sample, TimeBounds

# The high watermark is read a moment after the sample's time.
READ_SLACK = timedelta(seconds=1)


def list_ends(
    samples: Iterable[Sample], partition: int, topic_id: str | None = None
) -> list[tuple[datetime, int, timedelta]]:
    """(time, high watermark, how long the reading took) of one partition, oldest first."""
    ends = [
        (sample.taken_at, part.high, max(READ_SLACK, timedelta(seconds=sample.took)))
        for sample in samples
        if topic_id is None or sample.topic_id == topic_id
        for part in sample.partitions
        if part.partition == partition
    ]
    return sorted(ends)


def bound_times(
    samples: Sequence[Sample],
    partition: int,
    start: int,
    end: int,
    topic_id: str | None = None,
) -> TimeBounds:
    """When the messages `[start, end)` were published.

    Args:
        topic_id: ignores samples of the topic's earlier lives; None takes the newest sample's.
    """
    if topic_id is None and samples:
        topic_id = max(samples, key=lambda sample: sample.taken_at).topic_id
    return _bound(list_ends(samples, partition, topic_id), start, end)


class Timeline:
    """`bound_times` for many ranges: the samples are gone through once for all partitions."""

    def __init__(self, samples: Iterable[Sample], topic_id: str) -> None:
        self._ends: dict[int, list[tuple[datetime, int, timedelta]]] = {}
        for sample in samples:
            if sample.topic_id != topic_id:
                continue
            slack = max(READ_SLACK, timedelta(seconds=sample.took))
            for part in sample.partitions:
                self._ends.setdefault(part.partition, []).append(
                    (sample.taken_at, part.high, slack)
                )

    def bound(self, partition: int, start: int, end: int) -> TimeBounds:
        """When the messages `[start, end)` of a partition were published."""
        return _bound(self._ends.get(partition, ()), start, end)


def date_loss(samples: Iterable[Sample], gap: Gap) -> datetime:
    """When the first of its messages was gone, as the samples saw it.

    The first sample in which the log start is past it; where none is kept, when it was found.
    """
    seen = (
        sample.taken_at
        for sample in samples
        if sample.topic_id == gap.topic_id and gap.start is not None
        for part in sample.partitions
        if part.partition == gap.partition and part.low > gap.start
    )
    return min((*seen, gap.detected_at))


def _bound(ends: Iterable[tuple[datetime, int, timedelta]], start: int, end: int) -> TimeBounds:
    """lower: the newest sample with `high <= start`, when the first of them was not there yet.
    upper: the oldest sample with `high > end - 1`, when the last of them was there."""
    ends, last = tuple(ends), max(start, end - 1)
    lower = max((at for at, high, _ in ends if high <= start), default=None)
    upper = min((at + slack for at, high, slack in ends if high > last), default=None)
    return TimeBounds(lower=lower, upper=upper)


def estimate_time(
    samples: Sequence[Sample], partition: int, offset: int, topic_id: str | None = None
) -> datetime | None:
    """About when one offset was published: between its two samples, by its place in between.

    None where the samples do not reach back to it, or it is not published yet.
    """
    before: tuple[datetime, int] | None = None
    for at, high, _ in list_ends(samples, partition, topic_id):
        if high <= offset:
            before = (at, high)
            continue
        if before is None:
            return None
        share = (offset - before[1] + 1) / (high - before[1])
        return before[0] + (at - before[0]) * share
    return None
