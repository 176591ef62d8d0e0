"""One stream: its verdict, its past, where each partition stands, and what was lost."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from heapq import heappop, heappush
from itertools import pairwise
from typing import Any

from backlogctl.config import Config, Stream
from backlogctl.ledger import Hold, Ledger
from backlogctl.ledger.measurements import AuditRecord
from backlogctl.monitoring.offsets.lag import count_lag
from backlogctl.monitoring.offsets.timeline import read_timeline
from backlogctl.monitoring.plots import Series, Threshold
from backlogctl.monitoring.verdict.status import PartitionStatus
from backlogctl.monitoring.watch.board import TopicPartitionState
from backlogctl.replay.engine.plan import ACTIVE
from backlogctl.replay.present.figures import Figure, make_counts_figure
from backlogctl.replay.web.page.overview import NextCommand, RecoveryRow, Statuses, StreamView
from backlogctl.values import Gap, GapState, PartitionSample, Sample

# What the last audits of a stream found.

_ORDER = ("lost", "suspect", "unknown", "clean")
_TOLD = 5


@dataclass(frozen=True, slots=True)
class AuditView:
    """One audit.

    Attributes:
        missing: messages that are lost, by all of its findings.
        findings: the worst that are no notes.
        more: how many such findings there are beside these.
        command: looks again.
        plot: of counts, None where there are none.
    """

    name: str
    verdict: str
    at: datetime
    missing: int
    findings: tuple[Mapping[str, Any], ...]
    more: int
    claims: str
    command: str
    plot: Figure | None


def read_audits(ledger: Ledger, stream: str) -> tuple[AuditView, ...]:
    """The last of each name, worst first.

    Raises:
        LedgerError.
    """
    found = sorted(ledger.audits.list_latest(stream), key=lambda one: _ORDER.index(one.verdict))
    return tuple(_view(record) for record in found)


def _view(record: AuditRecord) -> AuditView:
    document = record.document
    windows = document.get("windows") or ()
    told = [one for one in document.get("findings") or () if one["level"] != "noted"]
    return AuditView(
        name=record.audit,
        verdict=record.verdict,
        at=record.at,
        missing=record.missing,
        findings=tuple(told[:_TOLD]),
        more=len(told[_TOLD:]),
        claims=str(document.get("claims") or ""),
        command=f"backlogctl audit {record.audit} {record.stream}",
        plot=make_counts_figure(windows) if windows else None,
    )


# A stream's past as plots: lag, how old the oldest unread message was, and what it had left.

MOST_POINTS = 300

Points = tuple[tuple[datetime, float | None], ...]


@dataclass(frozen=True, slots=True)
class History:
    """Figures; None where there are too few samples to show anything.

    `left` is None as well where the topic keeps messages for ever, or that is not known.
    """

    lag: Figure | None = None
    age: Figure | None = None
    left: Figure | None = None


def read_history(
    samples: Sequence[Sample], isolation: str, retention: timedelta | None, since: datetime
) -> History:
    """Draws the samples since then; older ones only date what is unread.

    Args:
        samples: of one topic and group, oldest first.
        retention: how long the topic keeps messages; None where that is unlimited or not known.
    """
    if not samples:
        return History()
    topic_id = samples[-1].topic_id
    same = [sample for sample in samples if sample.topic_id == topic_id]
    shown = thin([sample for sample in same if sample.taken_at >= since] or same[-1:])
    lag = tuple((sample.taken_at, sum_lag(sample, isolation)) for sample in shown)
    ages = measure_ages(same, shown, isolation)
    limit, left = None, None
    if retention is not None:
        limit = Threshold(retention.total_seconds(), "retention")
        left = Figure(
            "Time until retention deletes the oldest unread message, over time",
            (Series("left", measure_left(ages, retention)),),
            "seconds",
        )
    return History(
        Figure("Unread messages over time", (Series("lag", lag),), "messages"),
        Figure(
            "Age of the oldest unread message over time",
            (Series("oldest unread", ages),),
            "seconds",
            threshold=limit,
        ),
        left,
    )


def thin(samples: Sequence[Sample], most: int = MOST_POINTS) -> list[Sample]:
    """At most so many of them, evenly taken in time; the first and the last are kept."""
    if len(samples) <= most:
        return list(samples)
    first, last = samples[0].taken_at, samples[-1].taken_at
    step = (last - first) / (most - 1)
    kept = [samples[0]]
    for sample in samples[1:-1]:
        if sample.taken_at - kept[-1].taken_at >= step:
            kept.append(sample)
    return [*kept, samples[-1]]


def sum_lag(sample: Sample, isolation: str) -> float | None:
    """Of all partitions; None where that of one that was written is unknown."""
    lags = [count_lag(part, isolation) for part in sample.partitions if part.high > 0]
    known = [lag for lag in lags if lag is not None]
    return float(sum(known)) if len(known) == len(lags) else None


def measure_ages(samples: Sequence[Sample], shown: Sequence[Sample], isolation: str) -> Points:
    """How old the oldest unread message of any partition was, in seconds; None where unknown.

    As `timeline.estimate_time` does it, with the samples sorted once for all.
    """
    ends: dict[int, tuple[list[datetime], list[int]]] = {}
    for sample in samples:
        for part in sample.partitions:
            times, highs = ends.setdefault(part.partition, ([], []))
            times.append(sample.taken_at)
            # A log that was cut back does not make what was written younger.
            highs.append(max(part.high, highs[-1] if highs else 0))
    return tuple((sample.taken_at, _measure_age(sample, ends, isolation)) for sample in shown)


def measure_left(ages: Points, retention: timedelta) -> Points:
    """Seconds until a message of that age may be deleted; all of the retention if none waits."""
    whole = retention.total_seconds()
    return tuple((at, None if age is None else max(0.0, whole - age)) for at, age in ages)


def _measure_age(
    sample: Sample, ends: dict[int, tuple[list[datetime], list[int]]], isolation: str
) -> float | None:
    oldest: float | None = None
    for part in sample.partitions:
        lag = count_lag(part, isolation)
        if lag is None:
            continue
        age: float | None = 0.0
        if lag:
            at = _find_written(part, *ends[part.partition])
            age = None if at is None else max(0.0, (sample.taken_at - at).total_seconds())
        if age is not None:
            oldest = age if oldest is None else max(oldest, age)
        elif lag:
            return None  # older than the samples reach
    return oldest


def _find_written(
    part: PartitionSample, times: Sequence[datetime], highs: Sequence[int]
) -> datetime | None:
    """When the oldest unread message was written: between the two samples it lies between."""
    offset = max(part.committed or 0, part.low)
    after = bisect_right(highs, offset)
    if after == 0 or after == len(highs):
        return None
    before = after - 1
    share = (offset - highs[before] + 1) / (highs[after] - highs[before])
    return times[before] + (times[after] - times[before]) * share


# A partition's offsets as segments: what is gone, what was lost, what was read, what waits.

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
    HELD = "held"  # there, and behind a transaction that has been open for too long
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
    (Kind.HELD, "behind an open transaction"),
    (Kind.UNKNOWN, "no commit: unknown"),
)


# Of segments that are drawn as one, the first of these is what is shown.
_WORST = (
    Kind.LOST,
    Kind.ARCHIVED,
    Kind.HELD,
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
    held = part.held
    held_end = 0 if held is None else held.offset + held.messages
    oldest, end = min(floor), max(part.end, part.log_start, held_end)
    cuts = {oldest, end, part.log_start, end if held is None else held.offset}
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
    if part.held is not None and offset >= max(part.held.offset, part.log_start):
        return Kind.HELD
    if offset < part.log_start:
        return Kind.GONE if offset < part.committed else Kind.LOST
    return Kind.READ if offset < part.committed else Kind.UNREAD


def _is_settled(gap: Gap) -> bool:
    return gap.state in (GapState.VERIFIED, GapState.WAIVED)


MOST_PARTITIONS = 200
MOST_GAPS = 100
MOST_RECOVERIES = 20
# Up to so many partitions each has a line of its own.
FEW_PARTITIONS = 16


@dataclass(frozen=True, slots=True)
class StreamPage:
    """All that the page of a stream shows; lists are cut, and say how many they leave out.

    Attributes:
        first_sample: since when it is watched; None without a sample.
        troubled: partitions of the topic that have no leader or too few copies in sync.
    """

    row: StreamView
    maps: tuple[PartitionMap, ...]
    more_partitions: int
    history: History
    gaps: tuple[Gap, ...]
    more_gaps: int
    recoveries: tuple[RecoveryRow, ...]
    more_recoveries: int
    holds: tuple[Hold, ...]
    first_sample: datetime | None
    troubled: tuple[TopicPartitionState, ...]
    audits: tuple[AuditView, ...]

    @property
    def kinds(self) -> frozenset[Kind]:
        """The kinds of segments that are there: the legend has no others."""
        return frozenset(segment.kind for one in self.maps for segment in one.segments)

    @property
    def mixed(self) -> bool:
        """Whether a segment stands for several kinds."""
        return any(segment.mixed for one in self.maps for segment in one.segments)

    @property
    def compact(self) -> bool:
        """Whether there are too many partitions for a line each."""
        return len(self.maps) > FEW_PARTITIONS


def read_stream(
    ledger: Ledger,
    config: Config,
    stream: Stream,
    statuses: Statuses,
    next_command: NextCommand,
    now: datetime,
) -> StreamPage:
    """Reads it.

    Raises:
        LedgerError.
    """
    found = ledger.recoveries.list(stream.name)
    row = statuses.view(stream, ledger.recoveries.list(states=ACTIVE))
    samples = read_timeline(ledger, stream)
    gaps = ledger.gaps.list(stream.name)
    parts = () if row.status is None else row.status.partitions
    maps = map_partitions(parts, gaps, samples, stream.group)
    retention = None if row.status is None else row.status.retention.time
    newest = sorted(found, key=lambda one: (one.state in ACTIVE, one.created_at), reverse=True)
    topics = statuses.seen.clusters.get(stream.cluster)
    states = () if topics is None else topics.topics.get(stream.topic, ())
    return StreamPage(
        row=row,
        maps=maps[:MOST_PARTITIONS],
        more_partitions=max(0, len(maps) - MOST_PARTITIONS),
        history=read_history(samples, stream.isolation, retention, now - config.watch.horizon),
        gaps=_sort_gaps(gaps)[:MOST_GAPS],
        more_gaps=max(0, len(gaps) - MOST_GAPS),
        recoveries=tuple(RecoveryRow(r, next_command(r)) for r in newest[:MOST_RECOVERIES]),
        more_recoveries=max(0, len(newest) - MOST_RECOVERIES),
        holds=ledger.holds.list(stream=stream.name),
        first_sample=samples[0].taken_at if samples else None,
        troubled=tuple(one for one in states if one.leader < 0 or one.in_sync < one.replicas),
        audits=read_audits(ledger, stream.name),
    )


def _sort_gaps(gaps: tuple[Gap, ...]) -> tuple[Gap, ...]:
    """Those that need somebody first, then the newest."""
    settled = (GapState.VERIFIED, GapState.WAIVED)
    return tuple(sorted(gaps, key=lambda g: (g.state in settled, -g.detected_at.timestamp())))
