"""Stored samples as the timeline that turns offsets into times (protocol P1)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from backlogctl.ledger import Ledger
from backlogctl.ledger.samples import KeptPast
from backlogctl.monitoring.offsets.sampler import StreamLike
from backlogctl.monitoring.offsets.standstills import LEARN_FROM
from backlogctl.values import Gap, Sample, TimeBounds

# The high watermark is read a moment after the sample's time.
READ_SLACK = timedelta(seconds=1)
# Trends are judged over it.
WINDOW = timedelta(minutes=10)
# What decides on the next sample lies within these: the settling times, and the group's pace.
RECENT = timedelta(hours=6)
# Older ones only date what is unread: they are gone back through step by step.
_STEPS_BACK = (RECENT, timedelta(days=2), None)


@dataclass(frozen=True, slots=True)
class KnownSamples:
    """Those of a stream's present topic and group since `since`, oldest first, and the oldest that
    the ledger has of the stream."""

    samples: tuple[Sample, ...]
    since: datetime
    first: Sample | None = None


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
    samples: Sequence[Sample], partition: int, start: int, end: int, topic_id: str | None = None
) -> TimeBounds:
    """When the messages `[start, end)` were published.
    `topic_id`: ignores samples of the topic's earlier lives; None takes the newest sample's.
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


def read_timeline(
    ledger: Ledger,
    stream: StreamLike,
    sample: Sample | None = None,
    window: timedelta = WINDOW,
    known: KnownSamples | None = None,
) -> tuple[Sample, ...]:
    """The samples of the stream's present topic and group, oldest first.

    Args:
        sample: the present one; old ones that say nothing of it are left out. None: all.
        known: where they were read already; then older ones are read only as far back as they say
            anything of this sample. None: as far back as they may say something of a later one.
    """
    if sample is None:
        return _list_own(ledger.samples.history(stream.name), stream)
    begin = sample.taken_at - reach_of(window, None if known is None else sample)
    young, since = ((), sample.taken_at) if known is None else (known.samples, known.since)
    if begin < since:
        young = (*_list_own(ledger.samples.history(stream.name, begin, since), stream), *young)
        since = begin
    recent = [one for one in young if one.taken_at >= begin]
    if reaches_back([*recent, sample], sample):
        return tuple(recent)
    if known is not None and known.first is not None and not _dates_any(known.first, sample):
        return tuple(young)
    for step in (None,) if known is None else _STEPS_BACK:
        start = None if step is None else sample.taken_at - step
        if (start is None or start < since) and not reaches_back([*young, sample], sample):
            older = ledger.samples.history(stream.name, start, since)
            young, since = (*_list_own(older, stream), *young), start or since
    return tuple(young)


def reach_of(window: timedelta, sample: Sample | None = None) -> timedelta:
    """How far back samples are needed for more than to date what is unread: at one, or at any."""
    stands = sample is None or any(part.lso < part.high for part in sample.partitions)
    return max(2 * window, LEARN_FROM) if stands else 2 * window


def _dates_any(first: Sample, sample: Sample) -> bool:
    """Whether the oldest sample was taken before some of what is unread was written."""
    if first.topic_id != sample.topic_id:
        return True  # later ones may be of this topic
    ends = {part.partition: part.high for part in first.partitions}
    return any(
        ends.get(part.partition, 0) <= max(part.committed, part.low) < part.high
        for part in sample.partitions
        if part.committed is not None
    )


def reaches_back(history: Sequence[Sample], sample: Sample) -> bool:
    """Whether the oldest of these was taken before anything that is unread was written: so no
    older one dates it better."""
    oldest = history[0]
    if oldest.topic_id != sample.topic_id:
        return True
    ends = {part.partition: part.high for part in oldest.partitions}
    return all(
        max(part.committed, part.low) >= min(part.high, ends.get(part.partition, 0))
        for part in sample.partitions
        if part.committed is not None
    )


def is_of(known: Sample | KeptPast, stream: StreamLike) -> bool:
    """Whether it is of the topic and group that the stream is about now."""
    place = stream.cluster, stream.topic, stream.group
    return (known.cluster, known.topic, known.group) == place


def _list_own(found: Iterable[Sample], stream: StreamLike) -> tuple[Sample, ...]:
    return tuple(one for one in found if is_of(one, stream))
