"""Offsets that expired between two stored samples; the group may have missed them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise

from backlog.clock import format_time
from backlog.numbers import format_count, format_plural
from backlog.values import Gap, OffsetRange, Sample

# Samples that are farther apart say nothing of what happened in between.
FARTHEST = timedelta(minutes=10)


@dataclass(frozen=True, slots=True)
class PossiblyExpired:
    """Offsets of one partition that expired above one commit and below the next, over `times`
    pairs of samples: at most so many messages were lost."""

    partition: int
    offsets: int
    times: int
    since: datetime

    def __str__(self) -> str:
        return (
            f"partition {self.partition}: since {format_time(self.since)[:16]}Z up to "
            f"{format_plural(self.offsets, 'offset')} expired between samples in "
            f"{format_count(self.times)} places; the group is past them and may have lost some"
        )


def list_possibly_expired(
    history: Sequence[Sample], gaps: Iterable[Gap]
) -> tuple[PossiblyExpired, ...]:
    """By partition, without what a recorded gap has.

    Args:
        history: the stream's samples, oldest first.
    """
    if not history:
        return ()
    newest = history[-1]
    recorded: dict[int, list[OffsetRange]] = {}
    for gap in gaps:
        own = (gap.group, gap.topic_id) == (newest.group, newest.topic_id)
        if own and gap.start is not None and gap.end is not None:
            item = OffsetRange(gap.partition, gap.start, gap.end)
            recorded.setdefault(gap.partition, []).append(item)
    found: dict[int, PossiblyExpired] = {}
    own_life = [sample for sample in history if sample.topic_id == newest.topic_id]
    for number, start, end, at in _list_ranges(own_life):
        if any(gap.start <= start and end <= gap.end for gap in recorded.get(number, ())):
            continue
        old = found.get(number, PossiblyExpired(number, 0, 0, at))
        found[number] = PossiblyExpired(number, old.offsets + end - start, old.times + 1, old.since)
    return tuple(found[number] for number in sorted(found))


def _list_ranges(history: Sequence[Sample]) -> Iterator[tuple[int, int, int, datetime]]:
    for before, after in pairwise(history):
        # Those in between are thinned: what a healthy group read meanwhile has expired as well.
        if after.taken_at - before.taken_at > FARTHEST:
            continue
        earlier = {part.partition: part for part in before.partitions}
        for part in after.partitions:
            old = earlier.get(part.partition)
            if old is None or old.committed is None or part.committed is None:
                continue
            # Where all of the log expired since, a group at its end has read what is gone.
            if old.committed < part.low <= min(part.committed, old.high):
                yield part.partition, old.committed, part.low, before.taken_at
