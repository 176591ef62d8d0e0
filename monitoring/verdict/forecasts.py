"""Whether retention deletes messages before the group reads them: pure calculation.

Retention by time deletes a closed segment when its newest message is older than `retention.ms`, by
size when what follows it is at least `retention.bytes` (Kafka's UnifiedLog, `deleteOldSegments`).
A message is never deleted before its own time or before enough bytes follow it, so this is
the earliest moment; the real one is later by up to a segment and a check interval.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

Expiry = Sequence[tuple[float, float]]
"""(offset, seconds from now until it may be deleted), growing; between two points it is linear."""


@dataclass(frozen=True, slots=True)
class LossForecast:
    """What is lost if the group reads at an even pace.

    Attributes:
        seconds: until retention passes the committed offset; None if not within the horizon.
        lost: offsets of what is unread now that are deleted first.
        needed_per_second: the pace at which nothing is lost.
    """

    seconds: float | None
    lost: int
    needed_per_second: float


NO_LOSS = LossForecast(None, 0, 0.0)


def date_by_time(
    timeline: Iterable[tuple[float, int]],
    start: int,
    high: int,
    retention: float,
    *,
    oldest_seconds: float | None = None,
    produced_per_second: float | None = None,
    horizon: float,
) -> Expiry:
    """When retention by time reaches each offset from `start` on; empty where unknown.

    Args:
        timeline: (seconds from now, at most 0; high watermark then), oldest first.
        oldest_seconds: age of the message at `start` by its own timestamp, which retention goes
            by; None takes the timeline.
        retention: `retention.ms` in seconds. horizon: how far beyond the end it goes on.
    """
    seen = [(at, end) for at, end in timeline if end <= high]
    age = oldest_seconds if oldest_seconds is not None else _find_age(seen, start)
    if age is None:
        return ()
    points: list[tuple[float, float]] = [(float(start), retention - age)]
    for at, end in [*seen, (0.0, high)]:
        if end > points[-1][0] and retention + at >= points[-1][1]:
            points.append((float(end), retention + at))
    return _extend(points, produced_per_second, horizon)


def date_by_stamps(
    reached: Iterable[tuple[int, float]],
    start: int,
    high: int,
    *,
    earliest: float | None = None,
    produced_per_second: float | None = None,
    horizon: float,
) -> Expiry:
    """The same by what the broker's own index of timestamps tells, whatever clock wrote them.

    Args:
        reached: (offset, seconds from now until retention has passed all timestamps below it), of
            growing seconds.
        earliest: seconds until retention passes the timestamp of `start`.
    """
    points: list[tuple[float, float]] = []
    before: tuple[float, float] | None = None
    for offset, at in reached:
        if offset > (points[-1][0] if points else start):
            if not points:
                points.append((float(start), _find_first(before, (offset, at), start, earliest)))
            points.append((float(min(offset, high)), at))
        before = (float(offset), at)
    if points and points[-1][0] >= high:
        return _extend(points, produced_per_second, horizon)
    return tuple(points) if points or earliest is None else ((float(start), earliest),)


def _find_first(
    before: tuple[float, float] | None,
    after: tuple[float, float],
    start: int,
    earliest: float | None,
) -> float:
    """Between two points that the broker told; the message's own timestamp is exact where they
    grow."""
    if before is None:
        return after[1]
    if earliest is not None:
        return min(max(earliest, before[1]), after[1])
    share = (start - before[0]) / (after[0] - before[0])
    return before[1] + share * (after[1] - before[1])


def date_by_size(
    start: int,
    high: int,
    limit: int,
    bytes_per_offset: float,
    *,
    produced_per_second: float | None,
    horizon: float,
) -> Expiry:
    """When retention by size reaches each offset from `start` on, if writing goes on evenly.

    Args:
        limit: `retention.bytes`. bytes_per_offset: the partition's size by its offsets.
    """
    if bytes_per_offset <= 0:
        return ()
    kept = limit / bytes_per_offset
    rate = produced_per_second or 0.0
    # What lies below this offset is over the limit now.
    front = high - kept
    if rate <= 0:
        return ((start, 0.0), (min(front, high), 0.0)) if front > start else ()
    last = high + rate * horizon
    points = [(float(start), max(0.0, (start - front) / rate))]
    if start < front < last:
        points.append((front, 0.0))
    points.append((last, (last - front) / rate))
    return tuple(points)


def forecast_loss(expiry: Expiry, end: int, pace: float, horizon: float) -> LossForecast:
    """The losses if the group reads `pace` offsets a second from the first point on.

    What is deleted before the group gets there is skipped, as a consumer does.

    Args:
        end: the end of what is unread now; later messages can be lost, but are not counted.
    """
    clock, lost = 0.0, 0.0
    first: float | None = None
    for (begin, begin_at), (stop, stop_at) in pairwise(_split_at(expiry, float(end))):
        length = stop - begin
        if length <= 0:
            continue
        part = _run_piece(begin_at, stop_at, length, pace, clock)
        clock = part.clock
        if part.lost > 0:
            first = part.first if first is None else first
            if stop <= end:
                lost += part.lost
        if clock > horizon:
            break
    if first is None or first > horizon:
        return LossForecast(None, 0, _find_needed(expiry, end))
    return LossForecast(max(0.0, first), round(lost), _find_needed(expiry, end))


@dataclass(frozen=True, slots=True)
class _Piece:
    """One linear piece: when the group leaves it, what it lost in it, and when that began."""

    clock: float
    lost: float = 0.0
    first: float = 0.0


def _run_piece(begin_at: float, stop_at: float, length: float, pace: float, clock: float) -> _Piece:
    each = (stop_at - begin_at) / length  # seconds that retention takes for one offset
    skipped, first = 0.0, begin_at
    if begin_at < clock:  # deleted already when the group gets there
        skipped = length if stop_at <= clock else (clock - begin_at) / each
        if skipped >= length:
            return _Piece(clock, length, begin_at)
        begin_at, length = clock, length - skipped
    slower = (1 / pace if pace > 0 else float("inf")) - each
    slack = begin_at - clock
    ahead = 0.0 if pace <= 0 else (length if slower <= 0 else min(length, slack / slower))
    if ahead >= length:
        return _Piece(clock + length / pace, skipped, first)
    # From here on retention is as far as the group, which loses the difference.
    caught_at = begin_at + ahead * each
    rest = length - ahead
    gone = max(0.0, rest - pace * (stop_at - caught_at))
    return _Piece(stop_at, skipped + gone, first if skipped else caught_at)


def _find_needed(expiry: Expiry, end: int) -> float:
    """The slowest pace that is everywhere ahead: the largest distance by the time for it."""
    start = expiry[0][0] if expiry else 0.0
    return max(
        (
            (offset - start) / at
            for offset, at in _split_at(expiry, float(end))
            if start < offset <= end and at > 0
        ),
        default=0.0,
    )


def _find_age(timeline: Sequence[tuple[float, int]], offset: int) -> float | None:
    """How long ago `offset` was written at the earliest; None where nothing reaches back to it."""
    for (at, end), (next_at, next_end) in pairwise(timeline):
        if end <= offset < next_end:
            return -(at + (next_at - at) * (offset - end) / (next_end - end))
    return None


def _extend(points: list[tuple[float, float]], rate: float | None, horizon: float) -> Expiry:
    """Goes on beyond the end as fast as it was written lately."""
    offset, at = points[-1]
    if rate and rate > 0:
        points.append((offset + rate * horizon, at + horizon))
    return tuple(points)


def _split_at(expiry: Expiry, offset: float) -> list[tuple[float, float]]:
    found: list[tuple[float, float]] = []
    for point in expiry:
        if found and found[-1][0] < offset < point[0]:
            (before, before_at), (after, after_at) = found[-1], point
            share = (offset - before) / (after - before)
            found.append((offset, before_at + share * (after_at - before_at)))
        found.append(point)
    return found
