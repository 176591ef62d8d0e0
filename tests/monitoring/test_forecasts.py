"""Forecasts against what came: ten traffics on a simulated log with Kafka's own rules of retention.

Every minute the group is judged by what a watcher sees; then the log goes on, and whether and when
it deletes what is unread is the truth.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backlogctl.clock import Deadline, utc_now
from backlogctl.kafka.clients import make_admin, make_producer
from backlogctl.ledger import Ledger
from backlogctl.monitoring.offsets.lag import list_cuts, read_reached
from backlogctl.monitoring.verdict.forecasts import date_by_size, date_by_time, forecast_loss
from backlogctl.monitoring.verdict.judge import PartitionView, Point, judge_partition
from backlogctl.monitoring.verdict.status import Retention, Urgency, find_urgency
from tests.kit.kafka import StreamStub, publish, set_offsets_raw
from tests.monitoring.live_watch import look as look_once

MINUTE, HOUR = 60, 3_600
STEP = 10  # seconds
LOOK_EACH, WINDOW, HORIZON = MINUTE, 600, 24 * HOUR
CHECK_EACH = 5 * MINUTE  # log.retention.check.interval.ms
SIZE = 100  # bytes of a message


@dataclass
class Segment:
    """Its first offset, its end, and the largest timestamp in it."""

    base: int
    end: int
    newest: float


@dataclass(frozen=True)
class Traffic:
    """Messages a second that are written and can be read at a second of the story, what their
    producer's clock says then, and what deletes them."""

    write: Callable[[int], float]
    read: Callable[[int], float]
    stamp: Callable[[int], float] = float
    retention: int | None = 6 * HOUR
    bytes: int | None = None
    commit_each: int = STEP
    hours: int = 12
    segment: int = 20_000
    before: int = 2 * HOUR  # of writing before the group begins to fall behind
    looks_after: float = 2 * HOUR + 1.1 * WINDOW


@dataclass
class Log:
    """One partition, and the group that reads it."""

    traffic: Traffic
    now: int = 0
    low: int = 0
    high: int = 0
    position: int = 0
    committed: int = 0
    written: list[tuple[float, int]] = field(default_factory=list)  # (timestamp, end), by arrival
    segments: list[Segment] = field(default_factory=list)
    lost_at: list[int] = field(default_factory=list)

    def step(self) -> None:
        """Ten seconds: what is written, read, committed and deleted."""
        traffic = self.traffic
        self.now += STEP
        count = round(traffic.write(self.now) * STEP)
        if count:
            self._append(count, traffic.stamp(self.now))
        reading = 1e9 if self.now < traffic.before else traffic.read(self.now)
        self.position = min(self.high, max(self.position, self.low) + round(reading * STEP))
        if self.now % traffic.commit_each == 0:
            self.committed = self.position
        if self.now % CHECK_EACH == 0:
            self._delete()
        if self.low > self.position:
            self.lost_at.append(self.now)

    def _append(self, count: int, stamp: float) -> None:
        last = self.segments[-1] if self.segments else None
        if last is None or last.end - last.base >= self.traffic.segment:
            last = Segment(self.high, self.high, stamp)
            self.segments.append(last)
        self.high += count
        last.end, last.newest = self.high, max(last.newest, stamp)
        self.written.append((stamp, self.high))

    def _delete(self) -> None:
        """UnifiedLog.deleteOldSegments: by time, then by size; the active one is rolled for time."""
        traffic = self.traffic
        while traffic.retention is not None and self.segments:
            if self.now - self.segments[0].newest <= traffic.retention:
                break
            self.low = self.segments.pop(0).end
        excess = (self.high - self.low) * SIZE - (traffic.bytes or 0)
        while traffic.bytes is not None and len(self.segments) > 1:
            first = self.segments[0]
            if excess - (first.end - first.base) * SIZE < 0:
                break
            excess -= (first.end - first.base) * SIZE
            self.low = self.segments.pop(0).end

    def find_stamp(self, offset: int) -> float:
        ends = [end for _, end in self.written]
        return self.written[bisect_left(ends, offset + 1)][0]

    def find_reached(self, retention: int) -> tuple[tuple[int, float], ...]:
        """As the broker tells by ListOffsets of a timestamp, and of the largest one."""
        kept = [one for one in self.written if one[1] > self.low]
        if not kept:
            return ()
        last = max(stamp for stamp, _ in kept) + retention - self.now
        found = [(self._find_first(kept, self.now + at - retention), at) for at in list_cuts(last)]
        return *found, (self.high, last)

    def _find_first(self, kept: list[tuple[float, int]], since: float) -> int:
        begin = self.low
        for stamp, end in kept:
            if stamp >= since:
                break
            begin = end
        return begin


@dataclass(frozen=True)
class Look:
    """What was told at a moment."""

    at: int
    seconds_to_loss: float | None
    urgency: Urgency | None


def watch(traffic: Traffic) -> tuple[list[Look], list[int]]:
    """What was told, and when unread messages were deleted."""
    log, looks = Log(traffic), []
    points: list[tuple[int, Point]] = []
    ends: list[tuple[int, int]] = []
    while log.now < traffic.before + traffic.hours * HOUR:
        log.step()
        if log.now % LOOK_EACH:
            continue
        points.append((log.now, Point(0, log.low, log.committed, log.high, log.high)))
        points = points[-2 * WINDOW // LOOK_EACH :]
        ends.append((log.now, log.high))
        if log.now >= traffic.looks_after:
            looks.append(look(log, points, ends))
    while log.now < looks[-1].at + HORIZON:
        log.step()
    return looks, log.lost_at


def look(log: Log, points: list[tuple[int, Point]], ends: list[tuple[int, int]]) -> Look:
    unread = max(log.committed, log.low)
    limit = log.traffic.retention
    found = judge_partition(
        PartitionView(
            partition=0,
            points=[
                Point(at - log.now, one.low, one.committed, one.end, one.high) for at, one in points
            ],
            members=True,
            lost=0,
            retention=Retention(
                None if limit is None else timedelta(seconds=limit), log.traffic.bytes
            ),
            oldest_seconds=(log.now - log.find_stamp(unread) if unread < log.high else None),
            reached=None if limit is None else log.find_reached(limit),
            bytes=(log.high - log.low) * SIZE,
            timeline=[(at - log.now, end) for at, end in ends],
            window=WINDOW,
            horizon=HORIZON,
        )
    )
    return Look(log.now, found.seconds_to_loss, find_urgency(found.seconds_to_loss))


def steady(second: int) -> float:
    return 50.0


TRAFFICS = {
    "steady": Traffic(steady, lambda s: 20.0),
    "hot": Traffic(lambda s: 400.0, lambda s: 300.0),
    "stopped": Traffic(steady, lambda s: 0.0),
    "bursts": Traffic(lambda s: 300.0 if s % (20 * MINUTE) < MINUTE else 10.0, lambda s: 60.0),
    "old timestamps": Traffic(steady, lambda s: 20.0, stamp=lambda s: s - 5.5 * HOUR, hours=6),
    "clock ahead": Traffic(steady, lambda s: 20.0, stamp=lambda s: s + 59 * MINUTE),
    "clock behind": Traffic(steady, lambda s: 20.0, stamp=lambda s: s - 2 * HOUR),
    "by size": Traffic(steady, lambda s: 20.0, retention=None, bytes=50 * HOUR * 2 * SIZE),
    "slow commits": Traffic(steady, lambda s: 48.0, commit_each=5 * MINUTE),
    "hourly job": Traffic(
        steady, lambda s: 1_000.0 if s % HOUR < 5 * MINUTE else 0.0, retention=30 * HOUR
    ),
    "growth": Traffic(lambda s: 20.0 + s / 600, lambda s: 30.0),
    "drain": Traffic(steady, lambda s: 150.0 if s > 4 * HOUR else 0.0, looks_after=4.5 * HOUR),
}


@pytest.mark.parametrize("name", TRAFFICS)
def test_what_is_told_comes(name: str) -> None:
    """Within a factor of 1.5, or two checks of retention, in nine of ten looks; nobody is woken for
    a loss that does not come, and none within four hours comes untold."""
    looks, lost = watch(TRAFFICS[name])
    good, far = 0, 0
    for one in looks:
        comes, told = next((at - one.at for at in lost if at >= one.at), None), one.seconds_to_loss
        if told is None:
            assert comes is None or comes > 4 * HOUR, one
        elif comes is None:
            assert one.urgency is Urgency.LATER, one
        elif abs(told - comes) <= 2 * CHECK_EACH or comes / 1.5 <= told <= comes * 1.5:
            good += 1
        else:
            far += 1
    assert good >= 9 * far


def test_the_broker_tells_what_retention_reaches_whatever_the_clock(
    properties: dict[str, str], topic: Callable[..., str]
) -> None:
    """A hundred messages of an hour that lies half in the future, one each 36 s; and nothing."""
    name = topic(partitions=2)
    producer, now = make_producer(properties), round(time.time() * 1000)
    for number in range(100):
        producer.produce(name, b"v", None, 0, timestamp=now + (number - 50) * 36_000)
    assert producer.flush(60) == 0
    found = read_reached(
        make_admin(properties), name, [0, 1], timedelta(hours=2), Deadline(60), utc_now()
    )
    assert list(found) == [0]
    *before, last = found[0]
    assert last[0] == 100
    assert last[1] == pytest.approx(2 * HOUR + 49 * 36, abs=MINUTE)
    assert [offset for offset, _ in before[:3]] == [0, 0, 0], "no message is so old yet"
    for offset, at in before:
        assert offset == 0 or at == pytest.approx(2 * HOUR + (offset - 50.5) * 36, abs=MINUTE)
    assert before[-1][0] > 0


def test_a_topic_that_keeps_its_messages_for_ever_has_no_forecast(
    properties: dict[str, str], topic: Callable[..., str], group: str, ledger: Ledger
) -> None:
    """`retention.ms` is often the largest long there; a group is behind."""
    name = topic(partitions=1, config={"retention.ms": str(2**63 - 1)})
    publish(properties, name, {0: 9})
    set_offsets_raw(properties, group, name, {0: 2})
    told = look_once(ledger, properties, StreamStub(name, group))
    assert (told.lag, told.seconds_to_loss) == (7, None)


# The arithmetic, against runs by hand.

FAR = 1e6


def run_by_hand(
    expiry: list[tuple[float, float]], end: int, pace: float
) -> tuple[float | None, int]:
    """Each message on its own: deleted before the group is through with it, or read."""
    clock, lost, first = 0.0, 0, None
    for (begin, begin_at), (stop, stop_at) in pairwise(expiry):
        for offset in range(int(begin), int(stop)):
            share = (offset + 1 - begin) / (stop - begin)
            deleted_at = begin_at + share * (stop_at - begin_at)
            done_at = clock + 1 / pace if pace else float("inf")
            if deleted_at < done_at:
                first = deleted_at if first is None else first
                lost += offset < end
            else:
                clock = done_at
    return first, lost


@st.composite
def expiries(draw: st.DrawFn) -> list[tuple[float, float]]:
    offset, at = 0, draw(st.floats(0, 50))
    points = [(0.0, at)]
    for _ in range(draw(st.integers(1, 4))):
        offset += draw(st.integers(1, 400))
        at += draw(st.floats(0.01, 300))
        points.append((float(offset), at))
    return points


@given(expiries(), st.one_of(st.just(0.0), st.floats(0.05, 50)), st.floats(0, 1))
def test_a_race_ends_as_one_run_message_by_message(
    expiry: list[tuple[float, float]], pace: float, share: float
) -> None:
    end = int(expiry[-1][0] * share)
    first, lost = run_by_hand(expiry, end, pace)
    forecast = forecast_loss(expiry, end, pace, FAR)
    if first is None or forecast.seconds is None:
        assert lost <= 2
        assert forecast.lost <= 2
    else:
        # A message is a step by hand, and a point of a line here.
        steepest = max((b[1] - a[1]) / (b[0] - a[0]) for a, b in pairwise(expiry))
        margin = 3 * (steepest + (1 / pace if pace else 0))
        slower = (
            [abs(1 / pace - (b[1] - a[1]) / (b[0] - a[0])) for a, b in pairwise(expiry)]
            if pace
            else []
        )
        if all(each > 0.01 * steepest for each in slower):
            assert lost == pytest.approx(forecast.lost, abs=4 + 0.02 * end)
        assert forecast.seconds <= first + margin


@given(expiries(), st.floats(1.001, 3))
def test_the_pace_that_is_needed_loses_nothing_and_less_loses(
    expiry: list[tuple[float, float]], more: float
) -> None:
    end = int(expiry[-1][0])
    needed = forecast_loss(expiry, end, 0.0, FAR).needed_per_second
    if expiry[0][1] > 0:
        assert forecast_loss(expiry, end, needed * more, FAR).seconds is None
        assert forecast_loss(expiry, end, needed / more, FAR).seconds is not None


@given(expiries(), st.floats(0, 50), st.floats(0, 50))
def test_a_faster_group_loses_no_more_and_no_sooner(
    expiry: list[tuple[float, float]], one: float, other: float
) -> None:
    slow, fast = sorted((one, other))
    end = int(expiry[-1][0])
    lazy, quick = (forecast_loss(expiry, end, pace, FAR) for pace in (slow, fast))
    assert quick.lost <= lazy.lost + 1
    if quick.seconds is not None:
        assert lazy.seconds is not None
        assert lazy.seconds <= quick.seconds + 1e-6


def test_time_is_dated_by_the_message_and_goes_on_beyond_the_end() -> None:
    timeline = [(-100.0, 0), (-50.0, 500), (0.0, 1000)]
    expiry = date_by_time(timeline, 250, 1000, 120.0, produced_per_second=10.0, horizon=30.0)
    assert expiry == ((250.0, 45.0), (500.0, 70.0), (1000.0, 120.0), (1300.0, 150.0))
    # The message's own time is what retention goes by.
    older = date_by_time(timeline, 250, 1000, 120.0, oldest_seconds=110.0, horizon=30.0)
    assert older[0] == (250.0, 10.0)
    assert date_by_time([(-5.0, 600), (0.0, 1000)], 250, 1000, 120.0, horizon=30.0) == ()


def test_size_reaches_what_more_bytes_follow_than_are_kept() -> None:
    # 100 bytes each, 50,000 kept: 500 offsets behind the end; 10 offsets a second are written.
    expiry = date_by_size(700, 1000, 50_000, 100.0, produced_per_second=10.0, horizon=100.0)
    assert expiry == ((700.0, 20.0), (2000.0, 150.0))
    assert forecast_loss(expiry, 1000, 0.0, 100.0).seconds == pytest.approx(20.0)
    # Over the limit already: gone with the next check.
    over = date_by_size(300, 1000, 50_000, 100.0, produced_per_second=0.0, horizon=100.0)
    forecast = forecast_loss(over, 1000, 5.0, 100.0)
    assert (forecast.seconds, forecast.lost) == (0.0, 200)
    assert date_by_size(600, 1000, 50_000, 100.0, produced_per_second=0.0, horizon=9.0) == ()


def test_a_group_at_half_the_pace_is_caught_where_both_lines_meet() -> None:
    # Written 1,000 s ago till now at 10/s, kept 1,500 s, read at 5/s from now on.
    expiry = ((0.0, 500.0), (10_000.0, 1500.0))
    forecast = forecast_loss(expiry, 10_000, 5.0, FAR)
    # 5 t = 10 (t - 500): t = 1000; from there 5 of 10 are lost for the last 5,000 offsets.
    assert forecast.seconds == pytest.approx(1000.0)
    assert forecast.lost == 2500
    assert forecast.needed_per_second == pytest.approx(10_000 / 1500)
