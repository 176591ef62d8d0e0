"""How fast a group read while it ran, and how fast each partition is written, from samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import linear_regression

from backlogctl.monitoring.offsets.lag import RATE_WINDOW, TAIL_AT_MOST
from backlogctl.monitoring.verdict.forecasts import (
    NO_LOSS,
    Expiry,
    LossForecast,
    date_by_size,
    date_by_stamps,
    date_by_time,
    forecast_loss,
)
from backlogctl.monitoring.verdict.status import (
    KEEPS_UP_SECONDS,
    UNLIMITED,
    HeldBack,
    LossBy,
    PartitionStatus,
    Retention,
    Verdict,
    find_worst,
)
from backlogctl.values import Sample


@dataclass(frozen=True, slots=True)
class Pace:
    """Offsets a second over the newest samples; None where the samples do not show it.

    `consumed` was measured over `seconds`, all partitions together; `produced` is of each partition
    that has two samples.
    """

    consumed: float | None
    seconds: float
    produced: Mapping[int, float]

    @property
    def produced_per_second(self) -> float | None:
        return sum(self.produced.values()) if self.produced else None


def measure_pace(samples: Sequence[Sample], running: bool) -> Pace:
    """The pace over the newest samples, oldest first, of one topic and group.

    Args:
        running: whether the group has members now. Where not, the time after its last commit
            is no measure of its speed, and is left out.
    """
    if not samples:
        return Pace(None, 0.0, {})
    last = samples[-1]
    window = [
        sample
        for sample in samples
        if sample.topic_id == last.topic_id and last.taken_at - sample.taken_at <= RATE_WINDOW
    ]
    consumed, seconds = _measure_pace(window if running else _cut_idle(window))
    return Pace(consumed, seconds, _measure_produced(window))


def _measure_pace(window: Sequence[Sample]) -> tuple[float | None, float]:
    """Over the times in which there was something to read: a group that waits is not slow."""
    seconds, moved = 0.0, 0
    for before, after in pairwise(window):
        count = _count_moved(before, after)
        if count is not None and _is_behind(before):
            seconds += (after.taken_at - before.taken_at).total_seconds()
            moved += count
    return (max(0, moved) / seconds, seconds) if seconds > 0 else (None, 0.0)


def _is_behind(sample: Sample) -> bool:
    return any(p.committed is not None and p.committed < p.high for p in sample.partitions)


def _cut_idle(window: Sequence[Sample]) -> Sequence[Sample]:
    """From the first sample before a commit moved to the last one after."""
    moving = [
        number
        for number, (before, after) in enumerate(pairwise(window))
        if (_count_moved(before, after) or 0) > 0
    ]
    return window[moving[0] : moving[-1] + 2] if moving else ()


def _count_moved(before: Sample, after: Sample) -> int | None:
    """Offsets committed in between; None where no partition has a commit in both."""
    earlier = {part.partition: part.committed for part in before.partitions}
    moves = [
        _count_read(at, part.committed, part.low)
        for part in after.partitions
        if part.committed is not None and (at := earlier.get(part.partition)) is not None
    ]
    return sum(moves) if moves else None


def _count_read(begin: int, end: int, low: int) -> int:
    """Offsets that a commit's move from one to the other has read: what it skipped because it was
    deleted is none of them. Negative where it went back."""
    return end - max(begin, min(low, end))


def _measure_produced(window: Sequence[Sample]) -> dict[int, float]:
    seconds = (window[-1].taken_at - window[0].taken_at).total_seconds()
    if seconds <= 0:
        return {}
    earlier = {part.partition: part.high for part in window[0].partitions}
    return {
        part.partition: max(0, part.high - earlier[part.partition]) / seconds
        for part in window[-1].partitions
        if part.partition in earlier
    }


# The verdict on one partition of one group: a pure function over its window.
#
# The verdicts are Burrow's evaluation rules (its wiki, "Consumer Lag Evaluation Rules"), applied
# to samples of offsets instead of single commits, and two of ours: LOSING and LOST. The
# differences from Burrow are in docs/decisions/0011-verdicts-from-samples.md.

# A trend needs this many samples, reaching back over this share of the window.
TREND_POINTS = 3
COVERED = 0.9


@dataclass(frozen=True, slots=True)
class Point:
    """One partition in one sample. `seconds` is relative to the newest one, so at most 0.

    `end` is where the group's reading ends: the LSO if it reads committed, else `high`.
    """

    seconds: float
    low: int
    committed: int | None
    end: int
    high: int

    @property
    def lag(self) -> int | None:
        """Unread offsets that still exist; None without a commit, or where the log seems to end
        before it: how much is unread is not known then.
        """
        if self.committed is None or self.committed > self.high:
            return None
        return max(0, self.end - max(self.committed, self.low))


@dataclass(frozen=True, slots=True)
class PartitionView:
    """What is known of one partition of one group within one life of its topic.

    Attributes:
        points: oldest first, the newest is now; those older than the window are left out here.
        members: whether the group has members; None where that is not known.
        assigns: nobody ever joined it, and its commit has not stood for a window: whoever reads
            assigns its partitions, and is not seen.
        lost: offsets lost and not put back; None where nobody knows.
        likely: about how many of them, by the group's pace.
        undecided: offsets that are gone, and that the group may have read.
        possible: offsets that it may have skipped.
        tail_without_data: nothing but control or aborted records lies in the lag.
        oldest_seconds: age of the oldest unread message by its own timestamp, where it was read;
            negative where that is ahead of our clock.
        reached: (offset, seconds until retention by time has passed all below it), by the broker's
            index of timestamps; None where it was not asked.
        bytes: the partition's size on its largest replica.
        empty_tail: [first, end) of the last range that was read and held no data.
        timeline: (seconds, high) further back than the window, oldest first; else the points.
        held: what lies behind a transaction that has been open for too long.
        held_oldest_seconds: age of the first message there by its own timestamp.
        due: seconds until a job that comes by has read all of this, if it comes as it did; None
            where the group is there, or has no rhythm.
        window, horizon: seconds.
    """

    partition: int
    points: Sequence[Point]
    members: bool | None = None
    assigns: bool = False
    lost: int | None = None
    likely: int | None = None
    undecided: int = 0
    possible: int = 0
    tail_without_data: bool = False
    empty_tail: tuple[int, int] | None = None
    retention: Retention = UNLIMITED
    oldest_seconds: float | None = None
    reached: Sequence[tuple[int, float]] | None = None
    bytes: int | None = None
    timeline: Sequence[tuple[float, int]] = ()
    held: HeldBack | None = None
    held_oldest_seconds: float | None = None
    due: float | None = None
    window: float = 600.0
    horizon: float = 86400.0


def judge_partition(view: PartitionView) -> PartitionStatus:
    """Figures and verdict of one partition. Never NaN: what is not known is None.

    The worst that applies, from the top:

    1. LOST: something is lost that was not put back.
    2. LOSING: at the pace of the window, retention passes the group within the horizon, or has
       passed its commit, and its next commits tell what of that it had read; or it passes what
       lies behind an open transaction before that is ended.
    3. BEYOND_END: the committed offset is above the high watermark.
    4. REWIND: the committed offset went back within the window, and is not where it was yet.
    5. STOP, STALL: unread in every sample of the window, and the committed offset did not move:
       STOP where the group has no members, else STALL.
    6. BLOCKED: something lies behind a transaction that has been open for too long.
    7. WARN: unread in every sample of the window; the lag never fell, and it grew.
    8. UNKNOWN: the partition was written, and the group has no committed offset; or its commit was
       moved by nobody knows whom.
    9. LAGGING: something is unread, and the samples do not reach back over the window; or a job
       that comes by is due before retention is there.
    10. OK: the rest; a partition never written, one that is idle, one with only control records
       left, one whose lag falls, however large it is.
    """
    points = [_skip_empty(point, view.empty_tail) for point in _cut_window(view)]
    now = points[-1]
    lag = 0 if view.tail_without_data and now.lag is not None else now.lag
    produced = _measure_rate([(p.seconds, p.high) for p in points])
    consumed = _measure_consumed(points)
    pace = _find_pace(view, points)
    by, forecast, retained = _find_loss(view, now, lag, pace, produced)
    trend = _judge_trend(view, points) if lag else Verdict.OK
    losing = _is_losing(view, points, forecast, trend)
    course = Verdict.LOSING if losing else _choose_course(points, lag, trend)
    needed = max(forecast.needed_per_second, produced or 0.0) if losing else None
    if view.held is not None:
        ours, theirs = (forecast.seconds if losing else None), _find_held_loss(view, now, produced)
        retained = min((one for one in (retained, theirs[2]) if one is not None), default=None)
        sooner = theirs[1].seconds is not None and (ours is None or theirs[1].seconds < ours)
        if sooner:
            # No consumer is fast enough.
            (by, forecast, _), losing, needed = theirs, True, None
        course = find_worst((course, Verdict.LOSING if losing else Verdict.BLOCKED))
    if view.undecided:
        course, losing, forecast = Verdict.LOSING, True, replace(forecast, seconds=0.0)
    elif view.possible:
        course = find_worst((course, Verdict.UNKNOWN))
    return PartitionStatus(
        partition=view.partition,
        log_start=now.low,
        committed=view.points[-1].committed,
        end=now.end,
        lag=lag,
        lag_seconds=_measure_age(view, now, lag),
        lost=view.lost,
        likely=view.likely,
        undecided=view.undecided,
        possible=view.possible,
        verdict=Verdict.LOST if view.lost else course,
        course=course,
        seconds_to_drain=_estimate_drain(points, lag),
        seconds_to_loss=forecast.seconds if losing else None,
        loss_by=by if losing else None,
        expected_loss=forecast.lost if losing and forecast.lost else None,
        seconds_retained=retained,
        needed_per_second=needed,
        consumed_per_second=consumed,
        produced_per_second=produced,
        held=view.held,
    )


def _is_losing(
    view: PartitionView, points: Sequence[Point], forecast: LossForecast, trend: Verdict
) -> bool:
    """Whether unread messages will be lost: some of now, or later ones if the trend confirms it.

    A group that keeps up commits in batches: its pace may look a little slower than the producers'
    for a window, and would be LOSING from then on. One with members that had read everything within
    the window has not failed yet.
    """
    now = points[-1]
    if forecast.seconds is None or now.committed is None or now.committed > now.high:
        return False
    if view.members is not False and any(point.lag == 0 for point in points):
        return False
    if view.due is not None and forecast.seconds > view.due:
        return False
    return forecast.lost > 0 or trend in (Verdict.WARN, Verdict.STALL, Verdict.STOP)


def _choose_course(points: Sequence[Point], lag: int | None, trend: Verdict) -> Verdict:
    now = points[-1]
    if now.committed is None:
        return Verdict.UNKNOWN if now.high > 0 else Verdict.OK
    if now.committed > now.high:
        return Verdict.BEYOND_END
    if not lag:
        return Verdict.OK
    return Verdict.REWIND if _is_rewound(points) else trend


def _judge_trend(view: PartitionView, points: Sequence[Point]) -> Verdict:
    """STOP, STALL, WARN, LAGGING or OK; the newest point has a lag."""
    lags = [point.lag for point in points]
    # Control records alone look like a lag of one or two, and nobody looked into that then.
    few = TAIL_AT_MOST if (lags[-1] or 0) > TAIL_AT_MOST else 0
    if any(lag is not None and lag <= few for lag in lags):
        return Verdict.OK
    if not _is_covered(view, points):
        return Verdict.LAGGING
    known = [(p.committed, lag) for p, lag in zip(points, lags, strict=True) if lag is not None]
    if len(known) == len(points) and len({committed for committed, _ in known}) == 1:
        if view.due is not None:
            return Verdict.LAGGING
        return Verdict.STOP if view.members is False else Verdict.STALL
    grew = known[-1][1] > known[0][1]
    if grew and all(after >= before for (_, before), (_, after) in pairwise(known)):
        return Verdict.WARN
    return Verdict.OK


def _is_rewound(points: Sequence[Point]) -> bool:
    """Whether the commit went back, and is still below where it had been."""
    commits = [point.committed for point in points if point.committed is not None]
    return bool(commits) and commits[-1] < max(commits)


def _cut_window(view: PartitionView) -> Sequence[Point]:
    """The points of the window, and the one before it, which shows how the window began."""
    inside = [point for point in view.points if point.seconds >= -view.window]
    before = len(view.points) - len(inside) - 1
    if before >= 0 and view.points[before].seconds >= -2 * view.window:
        return [view.points[before], *inside]
    return inside


def _measure_rate(values: Sequence[tuple[float, int]]) -> float | None:
    """From the first to the last; None where there is no time between them."""
    if len(values) < 2 or values[-1][0] <= values[0][0]:
        return None
    return max(0, values[-1][1] - values[0][1]) / (values[-1][0] - values[0][0])


def _measure_consumed(points: Sequence[Point]) -> float | None:
    """Over the times that began with something unread: a group that waits is not slow."""
    seconds, moved = 0.0, 0
    for before, after in pairwise(points):
        if before.lag and before.committed is not None and after.committed is not None:
            seconds += after.seconds - before.seconds
            moved += _count_read(before.committed, after.committed, after.low)
    return max(0, moved) / seconds if seconds > 0 else None


def _find_pace(view: PartitionView, points: Sequence[Point]) -> float | None:
    """How fast it goes on; None where that is not known yet.

    A commit that has not moved for a part of the window is no evidence: the next may come. Without
    members it is, until one is seen to move, or where nobody ever joined: such a reader is not
    seen.
    """
    is_covered = _is_covered(view, points)
    left = view.members is False and (is_covered or not view.assigns)
    if left and len({point.committed for point in points}) == 1:
        return 0.0
    return _measure_consumed(points) if is_covered else None


def _is_covered(view: PartitionView, points: Sequence[Point]) -> bool:
    """Whether the samples reach back over the window."""
    return len(points) >= TREND_POINTS and points[0].seconds <= -COVERED * view.window


def _skip_empty(point: Point, tail: tuple[int, int] | None) -> Point:
    """A reader in front of control records has read what is behind them."""
    if tail is None or point.committed is None or not tail[0] <= point.committed < tail[1]:
        return point
    return replace(point, committed=max(point.committed, min(tail[1], point.high)))


def _estimate_drain(points: Sequence[Point], lag: int | None) -> float | None:
    """How long at the window's rates of reading and writing; None without progress, and for a
    small lag that stays, which is no backlog.

    Never from the lag itself: retention lowers that too.
    """
    if not lag:
        return None if lag is None else 0.0
    known = [point for point in points if point.lag is not None]
    if len({point.seconds for point in known}) < 2:
        return None
    seconds = [point.seconds for point in known]
    written = [point.end - known[0].end for point in known]
    gained = [read - more for read, more in zip(_add_up_read(known), written, strict=True)]
    gain = linear_regression(seconds, gained).slope
    if gain <= 0 or lag <= KEEPS_UP_SECONDS * linear_regression(seconds, written).slope:
        return None
    return lag / gain


def _add_up_read(points: Sequence[Point]) -> list[int]:
    """Offsets that were read since the first point; a commit that skips what expired reads none of
    that."""
    total, sums = 0, [0]
    for before, after in pairwise(points):
        total += max(0, _count_read(before.committed or 0, after.committed or 0, after.low))
        sums.append(total)
    return sums


def _measure_age(view: PartitionView, now: Point, lag: int | None) -> float | None:
    """By interpolation between the samples in which the oldest unread message came."""
    if lag is None or now.committed is None:
        return None
    if lag == 0:
        return 0.0
    offset = max(now.committed, now.low)
    timeline = list(view.timeline) or [(p.seconds, p.high) for p in view.points]
    for (at, end), (next_at, next_end) in pairwise(timeline):
        if end <= offset < next_end:
            return max(0.0, -(at + (next_at - at) * (offset - end + 1) / (next_end - end)))
    # By its own timestamp, where no sample reaches back to it; its clock may be ahead.
    return None if view.oldest_seconds is None else max(0.0, view.oldest_seconds)


def _find_loss(
    view: PartitionView, now: Point, lag: int | None, pace: float | None, produced: float | None
) -> tuple[LossBy, LossForecast, float | None]:
    """Which retention comes first, how that race ends, and how long what is unread is kept."""
    if not lag or now.committed is None:
        return "time", NO_LOSS, None
    start = max(now.committed, now.low)
    return _race(view, now, (start, now.end, view.oldest_seconds), pace, produced)


def _find_held_loss(
    view: PartitionView, now: Point, produced: float | None
) -> tuple[LossBy, LossForecast, float | None]:
    """The same of what lies behind an open transaction, which nobody reads; no loss where the
    transaction is ended before."""
    assert view.held is not None
    start = max(view.held.offset, now.low)
    found = _race(view, now, (start, now.high, view.held_oldest_seconds), 0.0, produced)
    ends, seconds = view.held.seconds_to_end, found[1].seconds
    is_ended = ends is not None and seconds is not None and ends < seconds
    return ("time", NO_LOSS, found[2]) if is_ended else found


def _race(
    view: PartitionView,
    now: Point,
    unread: tuple[int, int, float | None],
    pace: float | None,
    produced: float | None,
) -> tuple[LossBy, LossForecast, float | None]:
    """Of retention against a pace of reading.

    Args:
        unread: its start and end, and the age of its first message.
    """
    start, end, oldest = unread
    found: list[tuple[LossBy, Expiry]] = [
        ("time", _date_by_time(view, now, start, oldest, produced)),
        ("size", _date_by_size(view, now, start, produced)),
    ]
    dated = [(by, expiry) for by, expiry in found if expiry]
    if not dated:
        return "time", NO_LOSS, None
    retained = max(0.0, min(expiry[0][1] for _, expiry in dated))
    if pace is None:
        return "time", NO_LOSS, retained
    forecasts = [(by, forecast_loss(expiry, end, pace, view.horizon)) for by, expiry in dated]
    by, first = min(forecasts, key=_order_by_time)
    most = max(forecast.lost for _, forecast in forecasts)
    needed = max(forecast.needed_per_second for _, forecast in forecasts)
    return by, LossForecast(first.seconds, most, needed), retained


def _order_by_time(entry: tuple[LossBy, LossForecast]) -> float:
    return float("inf") if entry[1].seconds is None else entry[1].seconds


def _date_by_time(
    view: PartitionView, now: Point, start: int, oldest: float | None, produced: float | None
) -> Expiry:
    if view.retention.time is None:
        return ()
    retention = view.retention.time.total_seconds()
    if view.reached is not None:
        return date_by_stamps(
            view.reached,
            start,
            now.high,
            earliest=None if oldest is None else retention - oldest,
            produced_per_second=produced,
            horizon=view.horizon,
        )
    timeline = view.timeline or [(point.seconds, point.high) for point in view.points]
    return date_by_time(
        timeline,
        start,
        now.high,
        retention,
        oldest_seconds=oldest,
        produced_per_second=produced,
        horizon=view.horizon,
    )


def _date_by_size(view: PartitionView, now: Point, start: int, produced: float | None) -> Expiry:
    offsets = now.high - now.low
    limit = view.retention.bytes
    if limit is None or view.bytes is None or offsets <= 0:
        return ()
    return date_by_size(
        start,
        now.high,
        limit,
        view.bytes / offsets,
        produced_per_second=produced,
        horizon=view.horizon,
    )
