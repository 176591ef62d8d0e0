"""What was watched of the traffic, and rows that are placed by the product's pure functions."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

import numpy as np

from backlogctl.ledger.samples import begin_of_all, find_cell
from backlogctl.monitoring.offsets.timeline import bound_times
from backlogctl.monitoring.watch.look import HORIZON
from backlogctl.spark_backfill.placing.measuring import cut_rows, place_gaps
from backlogctl.spark_backfill.placing.ranking import Anchor, OrderProof, PartitionRows
from backlogctl.values import (
    Bookmark,
    Cause,
    Certainty,
    Gap,
    GapState,
    OffsetRange,
    PartitionSample,
    Sample,
)
from backlogctl_delivery.stamps import hash_identity
from tests.accuracy.traffic import Longs, Traffic, to_micros, to_time

STREAM, CLUSTER, GROUP = "orders", "main", "order-service"
_EVERY, _FULL = timedelta(seconds=30), timedelta(hours=4)
_LEAST = timedelta(seconds=5)
Noted = tuple[datetime, Bookmark]


class Sampling(StrEnum):
    """When `watch` ran."""

    ALWAYS = "always"
    TEN_MINUTES = "ten minutes"  # the last ones before something was lost
    AFTERWARDS = "afterwards"  # one look, when all was lost


@dataclass(frozen=True)
class Watched:
    """What is in the ledger when the plan is made."""

    history: tuple[Sample, ...]
    bookmarks: tuple[Bookmark, ...]
    gaps: tuple[Gap, ...]

    @property
    def is_dated(self) -> bool:
        """Whether the samples say when each loss began; else the operator has to."""
        return all(gap.first_time is not None for gap in self.gaps)


def watch(traffic: Traffic, sampling: Sampling, topic: str, topic_id: str) -> Watched:
    """Samples and bookmarks as `watch` takes them, thinned as the ledger does."""
    times = list(_list_times(traffic, sampling))
    taken = [_take_sample(traffic, at, topic, topic_id) for at in times]
    noted: dict[tuple[int, int], Noted] = {}
    for at, sample in zip(times, taken, strict=True):
        for mark in _note_bookmarks(traffic, at, sample):
            noted.setdefault((mark.partition, mark.committed), (sample.taken_at, mark))
    now = taken[-1].taken_at
    history = thin_samples(taken, now)
    gaps = _find_gaps(traffic, history, topic, topic_id)
    return Watched(history, thin_bookmarks(noted.values(), now), gaps)


def thin_samples(samples: Iterable[Sample], now: datetime) -> tuple[Sample, ...]:
    """What `ledger.samples.thin` keeps: the first of each cell of time."""
    kept: dict[object, Sample] = {}
    for sample in samples:
        kept.setdefault(_find_cell(sample.taken_at, now), sample)
    return tuple(kept.values())


def thin_bookmarks(noted: Iterable[Noted], now: datetime) -> tuple[Bookmark, ...]:
    """What `ledger.bookmarks.thin` keeps: of each partition the first and last of each cell."""
    cells: dict[object, list[Bookmark]] = {}
    for at, mark in noted:
        cells.setdefault((mark.partition, _find_cell(at, now)), []).append(mark)
    kept = {mark for marks in cells.values() for mark in (marks[0], marks[-1])}
    return tuple(sorted(kept, key=lambda mark: (mark.partition, mark.committed)))


def _find_cell(at: datetime, now: datetime) -> object:
    return at if at >= begin_of_all(now, HORIZON) else find_cell(at, now, HORIZON)


def find_begin(traffic: Traffic) -> datetime:
    """When the first lost message was sent."""
    starts = [
        int(log.at[start])
        for number, (start, _) in traffic.list_lost().items()
        for log in (traffic.logs[number],)
    ]
    return to_time(min(starts))


def _list_times(traffic: Traffic, sampling: Sampling) -> Iterator[int]:
    # As often in a shorter story, but for stories of a few minutes.
    every = max(to_micros(_LEAST), traffic.end * to_micros(_EVERY) // to_micros(_FULL))
    if sampling is not Sampling.AFTERWARDS:
        first, last = 0, traffic.end - 1
        if sampling is Sampling.TEN_MINUTES:
            last = _find_first_loss(traffic, every)
            first = last - to_micros(traffic.shape.ten_minutes)
        yield from range(first, last, every)
    yield traffic.end


def _find_first_loss(traffic: Traffic, every: int) -> int:
    """The first look that would have seen a loss."""
    return next(
        at
        for at in range(0, traffic.end + every, every)
        if any(
            traffic.find_committed(number, at) < traffic.find_low(number, at)
            for number in traffic.list_lost()
        )
    )


def _take_sample(traffic: Traffic, at: int, topic: str, topic_id: str) -> Sample:
    partitions = tuple(
        PartitionSample(
            partition=number,
            low=traffic.find_low(number, at),
            committed=traffic.find_committed(number, at),
            lso=traffic.find_stable(number, at),
            high=log.find_end(at),
            committed_epoch=0,
        )
        for number, log in enumerate(traffic.logs)
    )
    return Sample(STREAM, CLUSTER, topic, GROUP, topic_id, to_time(at), partitions, "stable", 0.05)


def _note_bookmarks(traffic: Traffic, at: int, sample: Sample) -> Iterator[Bookmark]:
    """Of each committed offset that can be read: below the log start nothing can."""
    for part in sample.partitions:
        if part.committed is None or part.committed < part.low:
            continue
        offset = traffic.find_next(part.partition, part.committed, at)
        if offset is None:
            continue
        event = int(traffic.logs[part.partition].event[offset])
        digest = hash_identity(sample.topic_id, identify(traffic, event))
        yield Bookmark(part.partition, part.committed, offset, digest)


def identify(traffic: Traffic, event: int) -> bytes:
    """What the stream's rule takes as the identity of an event's message."""
    if traffic.scenario.mutable:
        return (traffic.events.key_of(event) or "").encode()
    return traffic.events.ids[event].encode()


def _find_gaps(
    traffic: Traffic, history: tuple[Sample, ...], topic: str, topic_id: str
) -> tuple[Gap, ...]:
    gaps = []
    for number, (start, end) in traffic.list_lost().items():
        times = bound_times(history, number, start, end, topic_id)
        gaps.append(
            Gap(
                id=f"g-20251026-{number:04d}",
                stream=STREAM,
                cluster=CLUSTER,
                topic=topic,
                group=GROUP,
                topic_id=topic_id,
                partition=number,
                start=start,
                end=end,
                cause=Cause.EXPIRED,
                certainty=Certainty.EXACT,
                state=GapState.OPEN,
                first_time=times.lower,
                last_time=times.upper,
                detected_at=to_time(traffic.end),
            )
        )
    return tuple(gaps)


_FIRST = 201


@dataclass(frozen=True)
class Ranked:
    """One partition's rows in the order of their times; `offset` is -1 where none was sent."""

    partition: int
    event: Longs
    offset: Longs
    low: int

    @property
    def left(self) -> Longs:
        """Ranks of the rows whose message is not in the log."""
        return np.flatnonzero(self.offset < self.low)

    def find_displacement(self) -> tuple[Longs, Longs, Longs]:
        """Of the survivors: ranks, offsets, and by how many places each stands after its message."""
        ranks = np.flatnonzero(self.offset >= self.low)
        offsets = self.offset[ranks]
        by_offset = np.argsort(np.argsort(offsets))
        return ranks, by_offset, np.arange(len(ranks)) - by_offset

    def find_ahead(self) -> int:
        """By how many places at most a survivor stands before its message, rows that left the log
        counted too."""
        ranks, by_offset, shift = self.find_displacement()
        places = ranks - np.arange(len(ranks))
        middle = statistics.median_low(places[by_offset < _FIRST].tolist())
        return int(middle - (shift + places).min())

    def find_start(self) -> int:
        """The rank of the first survivor, were all in order."""
        ranks, by_offset, _ = self.find_displacement()
        starts = (ranks - by_offset)[by_offset < _FIRST]
        return int(statistics.median_low(starts.tolist())) if len(starts) else len(self.event)


@dataclass(frozen=True)
class Placed:
    """Events by what a plan does with them."""

    likely: set[int]
    listed: set[int]


def rank_rows(traffic: Traffic) -> list[Ranked]:
    events = traffic.events
    offset_of = np.full(len(events), -1, np.int64)
    for log in traffic.logs:
        offset_of[log.event[log.messages]] = log.messages
    order = np.argsort(events.created, kind="stable")
    order = order[~events.deleted[order]]
    found = []
    for number in range(len(traffic.logs)):
        here = order[events.partition[order] == number]
        low = traffic.find_low(number, traffic.end)
        found.append(Ranked(number, here, offset_of[here], low))
    return found


def measure_order(traffic: Traffic, ranked: list[Ranked]) -> OrderProof:
    shifts = [part.find_displacement()[2] for part in ranked]
    late = max((int(shift.max()) for shift in shifts if len(shift)), default=0)
    early = max((int(-shift.min()) for shift in shifts if len(shift)), default=0)
    early = max([early, *(part.find_ahead() for part in ranked if (part.offset >= part.low).any())])
    compared = sum(len(shift) for shift in shifts)
    unsent = gone = messages = offsets = 0
    for part in ranked:
        ranks, _, _ = part.find_displacement()
        log = traffic.logs[part.partition]
        there = log.messages[log.messages >= part.low]
        messages, offsets = messages + len(there), offsets + len(log.event) - part.low
        if len(ranks):
            until = part.find_start() + late
            unsent += int(((part.left >= until) & (part.left < ranks.max())).sum())
            known = part.offset[ranks]
            gone += int(((there >= known.min()) & (there <= known.max())).sum()) - len(ranks)
    total = sum(int(np.abs(shift).sum()) for shift in shifts)
    holes = max(0.0, 1.0 - messages / max(1, offsets))
    squares = sum(len(shift) ** 2 for shift in shifts)
    return OrderProof(
        compared,
        early,
        late,
        mean=total / max(1, compared),
        disorder=total / max(1, squares),
        unsent=unsent,
        gone=gone,
        holes=holes,
    )


def place(traffic: Traffic, bookmarks: tuple[Bookmark, ...], topic_id: str) -> Placed:
    """The events that the product's own placing gives to the gaps."""
    ranked = rank_rows(traffic)
    order = measure_order(traffic, ranked)
    names = {hash_identity(topic_id, name.encode()): i for i, name in enumerate(traffic.events.ids)}
    likely: set[int] = set()
    listed: set[int] = set()
    for number, (start, end) in traffic.list_lost().items():
        part = ranked[number]
        left = part.event[part.left]
        places = {int(event): at for at, event in enumerate(left)}
        anchors = tuple(
            Anchor(mark.committed, mark.offset, places[names[mark.digest]])
            for mark in bookmarks
            if mark.partition == number and names[mark.digest] in places
        )
        before = int((part.left < part.find_start() + order.late).sum())
        rows = PartitionRows(number, len(left), part.low, before, anchors)
        placed = place_gaps(rows, order, [OffsetRange(number, start, end)], countable=True)
        assert placed is not None
        for cut in cut_rows(number, len(left), placed):
            events = set(left[cut.first : cut.end].tolist())
            likely |= events if cut.likely else set()
            listed |= set() if cut.sure else events
    return Placed(likely, listed)
