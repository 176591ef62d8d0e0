"""A partition's offsets as segments: what is gone, what was lost, what was read, what waits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from heapq import heappop, heappush
from itertools import pairwise

from backlog.values import Gap, GapState, Sample
from monitoring.status import PartitionStatus

# More segments than this in one bar are too thin to be seen one by one.
MANY_SEGMENTS = 40
# Segments thinner than a share of the line are drawn together: nobody could see them, and a page
# would be megabytes. Where there are many partitions the bars are short.
_FINEST, _COARSEST, _ALL = 1000, 40, 2000


class Kind(StrEnum):
    """What became of offsets."""

    GONE = "gone"  # deleted by retention, after they were read
    LOST = "lost"  # deleted or skipped, and not put back
    ARCHIVED = "archived"  # taken off the brokers unread, and not put back yet
    BACK = "back"  # lost, and put back
    WAIVED = "waived"  # lost, and closed with a reason
    READ = "read"  # there, and committed
    UNREAD = "unread"  # there, and not committed
    UNKNOWN = "unknown"  # the group has no commit


# In the order of the legend.
LEGEND: tuple[tuple[Kind, str], ...] = (
    (Kind.GONE, "expired, was read"),
    (Kind.LOST, "lost: never read"),
    (Kind.ARCHIVED, "in an archive, not put back yet"),
    (Kind.BACK, "lost, put back"),
    (Kind.WAIVED, "lost, waived"),
    (Kind.READ, "read, still there"),
    (Kind.UNREAD, "unread"),
    (Kind.UNKNOWN, "no commit: unknown"),
)


# Of segments that are drawn as one, the first of these is what is shown.
_WORST = (
    Kind.LOST,
    Kind.ARCHIVED,
    Kind.UNREAD,
    Kind.UNKNOWN,
    Kind.WAIVED,
    Kind.BACK,
    Kind.READ,
    Kind.GONE,
)


@dataclass(frozen=True, slots=True)
class Segment:
    """Offsets `[start, end)` of one kind; of a mixed one it is the worst kind in it."""

    kind: Kind
    start: int
    end: int
    mixed: bool = False

    @property
    def count(self) -> int:
        """Offsets in it."""
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class PartitionMap:
    """One partition's bar; `padding` is what it is shorter than the longest of the topic."""

    status: PartitionStatus
    oldest: int
    end: int
    segments: tuple[Segment, ...]
    padding: int = 0

    @property
    def total(self) -> int:
        """The length of the whole line, in offsets; at least 1."""
        return max(1, self.padding + self.end - self.oldest)

    def share(self, count: int) -> str:
        """A part of the line, as CSS's flex-grow takes it."""
        return f"{count / self.total * 1000:.2f}"

    @property
    def many(self) -> bool:
        """Whether segments must not be given a width at least."""
        return len(self.segments) > MANY_SEGMENTS

    @property
    def told(self) -> str:
        """The bar in words, for those who do not see it."""
        words = dict(LEGEND)
        parts = [
            f"{'partly ' if s.mixed else ''}{words[s.kind]} {s.start:,} to {s.end - 1:,}"
            for s in self.segments[:12]
        ]
        if len(self.segments) > len(parts):
            parts.append(f"and {len(self.segments) - len(parts)} more segments")
        return f"partition {self.status.partition}: {'; '.join(parts) or 'never written'}"


def map_partitions(
    parts: Sequence[PartitionStatus],
    gaps: Iterable[Gap],
    samples: Sequence[Sample],
    group: str,
) -> tuple[PartitionMap, ...]:
    """A map of each partition, all to one scale; those that are worst first only where many.

    Args:
        gaps: the stream's; those of an earlier topic of this name or of another group are not used.
        samples: the stream's, oldest first: they say which offsets there were.
    """
    topic_id = samples[-1].topic_id if samples else ""
    ours: dict[int, list[Gap]] = {}
    for gap in gaps:
        if gap.group == group and gap.topic_id == topic_id:
            ours.setdefault(gap.partition, []).append(gap)
    lows: dict[int, int] = {}
    for sample in samples:
        if sample.topic_id == topic_id:
            for part in sample.partitions:
                lows.setdefault(part.partition, part.low)
    maps = [
        map_partition(part, ours.get(part.partition, ()), lows.get(part.partition))
        for part in parts
    ]
    longest = max((one.end - one.oldest for one in maps), default=0)
    thin = longest / min(_FINEST, max(_COARSEST, _ALL // max(1, len(maps))))
    return tuple(
        replace(
            one,
            segments=join_thin(one.segments, thin),
            padding=longest - (one.end - one.oldest),
        )
        for one in maps
    )


def map_partition(
    part: PartitionStatus, gaps: Iterable[Gap] = (), first_low: int | None = None
) -> PartitionMap:
    """One partition's segments, from the oldest offset that is worth showing to its end.

    Args:
        first_low: the log start when it was first seen.
    """
    known = [g for g in gaps if g.start is not None and g.end is not None]
    open_starts = [g.start for g in known if not _is_settled(g) and g.start is not None]
    floor = [part.log_start, *open_starts]
    if first_low is not None:
        floor.append(first_low)
    if part.committed is not None:
        floor.append(part.committed)
    oldest, end = min(floor), max(part.end, part.log_start)
    cuts = {oldest, end, part.log_start}
    if part.committed is not None:
        cuts.add(part.committed)
    for gap in known:
        cuts |= {gap.start or 0, gap.end or 0}
    ordered = sorted(cut for cut in cuts if oldest <= cut <= end)
    segments: list[Segment] = []
    for (start, stop), found in zip(pairwise(ordered), _find_gaps(known, ordered), strict=False):
        _append(segments, Segment(_find_kind(part, found, start), start, stop))
    return PartitionMap(part, oldest, end, tuple(segments))


def join_thin(segments: Sequence[Segment], thin: float) -> tuple[Segment, ...]:
    """Neighbours that are thinner become one, until it is as thick; one alone stays as it is."""
    joined: list[Segment] = []
    held: list[Segment] = []

    def release() -> None:
        if held:
            kind = min((one.kind for one in held), key=_WORST.index)
            mixed = any(one.mixed or one.kind is not kind for one in held)
            _append(joined, Segment(kind, held[0].start, held[-1].end, mixed))
            held.clear()

    for segment in segments:
        if segment.count >= thin:
            release()
            _append(joined, segment)
            continue
        held.append(segment)
        if held[-1].end - held[0].start >= thin:
            release()
    release()
    return tuple(joined)


def _append(segments: list[Segment], new: Segment) -> None:
    if segments and segments[-1].kind is new.kind:
        last = segments.pop()
        new = Segment(new.kind, last.start, new.end, last.mixed or new.mixed)
    segments.append(new)


def _find_gaps(gaps: Sequence[Gap], offsets: Iterable[int]) -> Iterator[Gap | None]:
    """The gap at each of the offsets, which ascend; of several the first in the list."""
    waiting = sorted(range(len(gaps)), key=lambda number: gaps[number].start or 0, reverse=True)
    begun: list[int] = []
    for offset in offsets:
        while waiting and (gaps[waiting[-1]].start or 0) <= offset:
            heappush(begun, waiting.pop())
        while begun and (gaps[begun[0]].end or 0) <= offset:
            heappop(begun)
        yield gaps[begun[0]] if begun else None


def _find_kind(part: PartitionStatus, gap: Gap | None, offset: int) -> Kind:
    if gap is not None:
        if gap.state is GapState.VERIFIED:
            return Kind.BACK
        if gap.state is GapState.WAIVED:
            return Kind.WAIVED
        return Kind.LOST if gap.archive is None else Kind.ARCHIVED
    if part.committed is None:
        return Kind.GONE if offset < part.log_start else Kind.UNKNOWN
    if offset < part.log_start:
        return Kind.GONE if offset < part.committed else Kind.LOST
    return Kind.READ if offset < part.committed else Kind.UNREAD


def _is_settled(gap: Gap) -> bool:
    return gap.state in (GapState.VERIFIED, GapState.WAIVED)
