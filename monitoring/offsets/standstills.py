"""Last stable offsets that stand still: a transaction is open, and readers of committed data wait.

A sample's last stable offset may lie below its high watermark for another reason: it was read a
moment earlier. One that has not moved since, while there was something behind it, is a
transaction's. Healthy producers have short ones all the time: what counts as too long is
learned from those that ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from statistics import median

from backlogctl.values import PartitionSample, Sample

# A transaction that is younger is nobody's trouble.
MOMENT = timedelta(seconds=5)
# As often as usual is no trouble either.
USUAL_TIMES = 2
# The rhythm of the last hour; older samples are thinned.
LEARN_FROM = timedelta(hours=1)
_READ_UNCOMMITTED = "read_uncommitted"


@dataclass(frozen=True, slots=True)
class Standstill:
    """A partition whose last stable offset lies below its high watermark.

    Attributes:
        behind: offsets above the last stable one that the group has not read.
        since: the first of the samples, up to now without a break, that saw it like this.
        usual: how long standstills lasted that ended within the last hour, the median of them;
            None where no sample saw one.
    """

    partition: int
    offset: int
    behind: int
    since: datetime
    usual: timedelta | None

    @property
    def patience(self) -> timedelta:
        """For so long it is nothing unusual."""
        return MOMENT if self.usual is None else max(MOMENT, USUAL_TIMES * self.usual)


def find_standstills(
    history: Sequence[Sample], sample: Sample, isolation: str
) -> tuple[Standstill, ...]:
    """The partitions on which the group may wait for a transaction's end.

    Not those of a group that reads uncommitted, by its configuration, or since it has committed
    beyond the last stable offset.

    Args:
        history: earlier samples, oldest first.
    """
    if isolation == _READ_UNCOMMITTED:
        return ()
    recent = [
        one
        for one in history
        if one.topic_id == sample.topic_id
        and one.taken_at < sample.taken_at
        and sample.taken_at - one.taken_at <= LEARN_FROM
    ]
    return tuple(
        _find_standstill(recent, sample, part)
        for part in sample.partitions
        if part.lso < part.high and part.committed is not None and part.committed <= part.lso
    )


def _find_standstill(recent: Sequence[Sample], sample: Sample, part: PartitionSample) -> Standstill:
    series = [
        ((one.taken_at - sample.taken_at).total_seconds(), old.lso, old.high)
        for one in recent
        for old in one.partitions[part.partition : part.partition + 1]
        if old.partition == part.partition
    ]
    seconds, usual = measure_standstill([*series, (0.0, part.lso, part.high)])
    return Standstill(
        part.partition,
        part.lso,
        part.high - max(part.lso, part.low),
        sample.taken_at - timedelta(seconds=seconds),
        None if usual is None else timedelta(seconds=usual),
    )


def measure_standstill(series: Sequence[tuple[float, int, int]]) -> tuple[float, float | None]:
    """For how many seconds the newest last stable offset has been seen to stand below the high
    watermark, and the median of those that stood in two samples and moved in a later one.

    Args:
        series: (seconds from now, at most 0; last stable offset; high watermark), oldest first.
    """
    stands = 0.0
    for at, stable, high in reversed(series):
        if stable != series[-1][1] or high <= stable:
            break
        stands = -at
    lasted: list[float] = []
    begun: float | None = None  # of the run that is gone through, when it was first seen
    seen, last = 0, -1
    for at, stable, high in series:
        if stable != last:
            if begun is not None and seen > 1:
                lasted.append(at - begun)
            begun, seen, last = None, 0, stable
        if high > stable:
            begun, seen = at if begun is None else begun, seen + 1
    return stands, median(lasted) if lasted else None
