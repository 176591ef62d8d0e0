"""What a plan measures of rows and survivors, by numpy from the simulation: no Kafka, no Spark."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

import numpy as np

from backlogctl.spark_backfill.placing.measuring import cut_rows, place_gaps
from backlogctl.spark_backfill.placing.ranking import Anchor, OrderProof, PartitionRows
from backlogctl.values import Bookmark, OffsetRange
from backlogctl_delivery.stamps import hash_identity
from tests.accuracy.traffic import Longs, Traffic

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
