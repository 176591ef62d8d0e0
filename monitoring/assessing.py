"""A stream's status from its samples: pure calculation, nothing here asks Kafka or the ledger."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from backlog.values import Gap, PartitionSample, Sample
from monitoring.judging import PartitionView, Point, judge_partition
from monitoring.lag import count_lost, find_end
from monitoring.marks import Marks, is_memberless
from monitoring.status import UNLIMITED, GroupStatus, Retention
from monitoring.summaries import summarize_group

WINDOW = timedelta(minutes=10)
HORIZON = timedelta(hours=24)


@dataclass(frozen=True, slots=True)
class StreamContext:
    """What is known of a stream besides its samples; empty where unknown.

    Attributes:
        tails: partitions whose lag holds no data (`read_tails`).
        empty_tails: by partition, the last range [first, end) that was read and held none.
        oldest: by partition, the oldest unread message's own time.
        sizes: by partition, bytes of its largest replica.
        consumers: how many read now.
        has_consumers, has_source: what the configuration lets the tool do about it.
    """

    retention: Retention = UNLIMITED
    tails: Collection[int] = ()
    empty_tails: Mapping[int, tuple[int, int]] | None = None
    oldest: Mapping[int, datetime] | None = None
    sizes: Mapping[int, int] | None = None
    consumers: int | None = None
    has_consumers: bool = False
    has_source: bool = False


NOTHING = StreamContext()


def assess_stream(
    sample: Sample,
    isolation: str,
    history: Iterable[Sample] = (),
    gaps: Iterable[Gap] = (),
    around: StreamContext = NOTHING,
    *,
    window: timedelta = WINDOW,
    horizon: timedelta = HORIZON,
) -> GroupStatus:
    """The status of a stream at its newest sample.

    Args:
        history: earlier samples of the same topic and group; those of the topic's earlier lives
            are left out.
        gaps: the ledger's gaps of the stream; those of this topic and group that are neither
            verified nor waived count as lost.
    """
    earlier = [
        one for one in history if one.topic_id == sample.topic_id and one.taken_at < sample.taken_at
    ]
    pasts = _group_by_partition([*earlier, sample], isolation, 2 * window)
    known = tuple(gaps)
    marks = Marks(empty_tails=around.empty_tails or {})
    parts = [
        judge_partition(
            PartitionView(
                partition=part.partition,
                points=pasts[part.partition].points,
                members=None if not sample.group_state else not is_memberless(sample),
                lost=count_lost(_skip_empty(part, marks), sample, known),
                tail_without_data=part.partition in around.tails,
                empty_tail=marks.empty_tails.get(part.partition),
                retention=around.retention,
                oldest_seconds=_measure_age(around.oldest, part.partition, sample.taken_at),
                bytes=(around.sizes or {}).get(part.partition),
                timeline=pasts[part.partition].ends,
                window=window.total_seconds(),
                horizon=horizon.total_seconds(),
            )
        )
        for part in sample.partitions
    ]
    return summarize_group(
        parts,
        stream=sample.stream,
        cluster=sample.cluster,
        topic=sample.topic,
        group=sample.group,
        group_state=sample.group_state,
        taken_at=sample.taken_at,
        written=[part.high > 0 for part in sample.partitions],
        retention=around.retention,
        consumers=around.consumers,
        window=window.total_seconds(),
        has_consumers=around.has_consumers,
        has_source=around.has_source,
    )


@dataclass(slots=True)
class _PartitionHistory:
    """One partition's points within two windows, and its ends as far back as is known."""

    points: list[Point]
    ends: list[tuple[float, int]]


def _group_by_partition(
    timeline: Sequence[Sample], isolation: str, reach: timedelta
) -> dict[int, _PartitionHistory]:
    now = timeline[-1].taken_at
    pasts: dict[int, _PartitionHistory] = {}
    for sample in timeline:
        seconds = (sample.taken_at - now).total_seconds()
        near = now - sample.taken_at <= reach
        for part in sample.partitions:
            past = pasts.setdefault(part.partition, _PartitionHistory([], []))
            past.ends.append((seconds, part.high))
            if near:
                end = find_end(part, isolation)
                past.points.append(Point(seconds, part.low, part.committed, end, part.high))
    return pasts


def _skip_empty(part: PartitionSample, marks: Marks) -> PartitionSample:
    if part.committed is None:
        return part
    return replace(part, committed=marks.skip_empty(part.partition, part.committed))


def _measure_age(
    oldest: Mapping[int, datetime] | None, partition: int, now: datetime
) -> float | None:
    at = (oldest or {}).get(partition)
    return None if at is None else max(0.0, (now - at).total_seconds())
