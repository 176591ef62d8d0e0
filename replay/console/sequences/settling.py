"""Which holes are told: those that retries can no longer fill."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from backlogctl_delivery.sequenced.checker import Hole

_Chain = tuple[int, str, int]


@dataclass(slots=True)
class _Known:
    hole: Hole
    seen_at: float
    # What came before the reader may fill it.
    is_at_head: bool
    is_suspect: bool
    settled_at: float | None = None


@dataclass(frozen=True, slots=True)
class Settled:
    """What is missing now: messages, and the newest holes that are lost."""

    lost: int
    suspect: int
    waiting: int
    holes: tuple[Hole, ...]


@dataclass(frozen=True, slots=True)
class Round:
    """What a round of reading knew of partitions; times are of one clock that only counts up.

    Attributes:
        now: when the holes were listed.
        reached: a time of which the whole log was read; partitions without one are left out.
        warm: read for so long that nothing from before the reading is still retried.
        blurred: a message that may be any number came lately.
        has_forgotten: whether numberings were given up to save memory.
    """

    now: float
    reached: Mapping[int, float]
    warm: Collection[int]
    blurred: Collection[int]
    has_forgotten: bool = False


class Settling:
    """Follows holes from round to round.

    A hole only shrinks or splits, so that what is in an older one is as old.

    Args:
        grace: seconds in which a retry may still come, counted in what was read of the log.
        keep: seconds for which a settled hole is told.
    """

    def __init__(self, grace: float, keep: float) -> None:
        self._grace, self._keep = grace, keep
        self._known: dict[_Chain, list[_Known]] = {}
        # Told, though the reader began anew there.
        self._left: list[_Known] = []

    def update(self, holes: Iterable[Hole], seen: Round) -> Settled:
        """What the holes that there are now come to."""
        found: defaultdict[_Chain, list[_Known]] = defaultdict(list)
        for hole in sorted(holes):
            chain = (hole.partition, hole.producer, hole.epoch)
            found[chain].append(self._judge(self._find(chain, hole), hole, seen))
        self._known = dict(found)
        return self._count(seen.now)

    def leave(self, partition: int) -> None:
        """The reader begins anew in that partition: what is settled stays so."""
        for chain in [one for one in self._known if one[0] == partition]:
            self._left += [one for one in self._known.pop(chain) if one.settled_at is not None]

    def _find(self, chain: _Chain, hole: Hole) -> _Known | None:
        same = self._known.get(chain, [])
        at = bisect_right(same, hole.first, key=lambda one: one.hole.first) - 1
        return same[at] if at >= 0 and hole.last <= same[at].hole.last else None

    def _judge(self, before: _Known | None, hole: Hole, seen: Round) -> _Known:
        is_blurred = hole.partition in seen.blurred or seen.has_forgotten
        if before is None:
            return _Known(hole, seen.now, hole.partition not in seen.warm, is_blurred)
        if before.settled_at is not None:
            return _Known(
                hole, before.seen_at, before.is_at_head, before.is_suspect, before.settled_at
            )
        reached = seen.reached.get(hole.partition, float("-inf"))
        return _Known(
            hole,
            before.seen_at,
            before.is_at_head,
            before.is_suspect or is_blurred,
            seen.now if reached - before.seen_at >= self._grace else None,
        )

    def _count(self, now: float) -> Settled:
        self._left = [one for one in self._left if self._is_told(one, now)]
        here = [one for each in self._known.values() for one in each if not one.is_at_head]
        told = [*self._left, *(one for one in here if self._is_told(one, now))]
        lost = [one for one in told if not one.is_suspect]
        lost.sort(key=lambda one: (-(one.settled_at or now), one.hole))
        return Settled(
            lost=_sum(lost),
            suspect=_sum(one for one in told if one.is_suspect),
            waiting=_sum(one for one in here if one.settled_at is None),
            holes=tuple(one.hole for one in lost),
        )

    def _is_told(self, one: _Known, now: float) -> bool:
        is_old = one.settled_at is None or now - one.settled_at > self._keep
        return not one.is_at_head and not is_old


def _sum(holes: Iterable[_Known]) -> int:
    return sum(one.hole.last - one.hole.first + 1 for one in holes)
