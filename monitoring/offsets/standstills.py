"""Last stable offsets that stand still: a transaction is open, and readers of committed data wait.

A sample's last stable offset may lie below its high watermark for another reason: it was read a
moment earlier. One that has not moved since, while there was something behind it, is a
transaction's. Healthy producers have short ones all the time: what counts as too long is
learned from those that ended.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
        has_moved: whether a sample of the last hour saw it at another offset.
    """

    partition: int
    offset: int
    behind: int
    since: datetime
    usual: timedelta | None
    has_moved: bool

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
    since, has_moved = sample.taken_at, False
    for at, old in _go_back(recent, part.partition):
        if old.lso != part.lso:
            has_moved = True
            break
        if old.high <= old.lso:
            break
        since = at
    return Standstill(
        part.partition,
        part.lso,
        part.high - max(part.lso, part.low),
        since,
        _measure_usual(recent, part),
        has_moved,
    )


def _go_back(
    recent: Sequence[Sample], partition: int
) -> Iterator[tuple[datetime, PartitionSample]]:
    for sample in reversed(recent):
        for part in sample.partitions[partition : partition + 1]:
            if part.partition == partition:
                yield sample.taken_at, part


def _measure_usual(recent: Sequence[Sample], now: PartitionSample) -> timedelta | None:
    """The median of those that two samples saw standing, and a later one at another offset."""
    lasted: list[float] = []
    begun: datetime | None = None  # of the run that is gone through, when it was first seen
    seen, last = 0, -1
    for at, part in reversed(list(_go_back(recent, now.partition))):
        if part.lso != last:
            if begun is not None and seen > 1:
                lasted.append((at - begun).total_seconds())
            begun, seen, last = None, 0, part.lso
        if part.high > part.lso:
            begun, seen = begun or at, seen + 1
    return timedelta(seconds=median(lasted)) if lasted else None
