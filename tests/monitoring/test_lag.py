"""Lag, loss, forecasts, clocks that differ, and what time is left."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backlogctl.clock import utc_now
from backlogctl.ledger import Ledger
from backlogctl.monitoring.offsets import bulk_look, sampler
from backlogctl.monitoring.offsets.bulk_look import CLOCK_NOISE, measure_clock_skew
from backlogctl.monitoring.offsets.gaps import find_gaps
from backlogctl.monitoring.offsets.lag import read_retention, read_size_limit
from backlogctl.monitoring.offsets.observation import observe_stream
from backlogctl.monitoring.offsets.timeline import READ_SLACK, bound_times, date_loss, estimate_time
from backlogctl.monitoring.verdict.status import GroupStatus, PartitionStatus, Retention, Verdict
from backlogctl.monitoring.verdict.summary import summarize_group
from backlogctl.monitoring.watch.look import StreamContext, assess_stream
from backlogctl.values import Cause, GapState, PartitionSample, Sample, TimeBounds
from tests.kit.kafka import StreamStub, commit, publish
from tests.kit.ledger import NOON, make_gap
from tests.monitoring.test_gaps import START, sample

# Offsets to times by stored samples.

HIGHS = {0: 0, 60: 100, 120: 100, 180: 300}
SAMPLES = [sample(second, 0, 0, high) for second, high in HIGHS.items()]


def at(second: float) -> datetime:
    return START + timedelta(seconds=second)


def test_bounds_are_the_newest_sample_before_and_the_oldest_after() -> None:
    assert bound_times(SAMPLES, 0, 100, 200) == TimeBounds(at(120), at(180) + READ_SLACK)
    assert bound_times(SAMPLES, 0, 50, 100) == TimeBounds(at(0), at(60) + READ_SLACK)
    assert bound_times(SAMPLES, 0, 50, 101) == TimeBounds(at(0), at(180) + READ_SLACK)


def test_what_the_samples_do_not_reach_is_unknown() -> None:
    assert bound_times(SAMPLES[1:], 0, 50, 400) == TimeBounds(None, None)
    assert bound_times([], 0, 0, 1) == TimeBounds(None, None)
    assert bound_times(SAMPLES, 7, 0, 1) == TimeBounds(None, None)


def test_samples_of_an_earlier_topic_do_not_count() -> None:
    old: list[Sample] = [sample(-60, 0, 0, 40, topic_id="old")]
    assert bound_times([*old, *SAMPLES[1:]], 0, 50, 60) == TimeBounds(None, at(60) + READ_SLACK)


def test_a_time_in_between_is_estimated_by_place() -> None:
    assert estimate_time(SAMPLES, 0, 199) == at(150)
    assert estimate_time(SAMPLES, 0, 300) is None
    assert estimate_time(SAMPLES[1:], 0, 5) is None


def test_a_loss_is_dated_by_the_first_sample_that_missed_it() -> None:
    gap = replace(make_gap(10, 20, topic_id="id-1"), detected_at=at(100))
    samples = [sample(20, 10, 5, 30), sample(30, 11, 5, 30), sample(40, 25, 5, 30)]
    assert date_loss(samples, gap) == at(30)
    assert date_loss(samples[:1], gap) == at(100), "when it was found"
    assert date_loss(samples, replace(gap, topic_id="other")) == at(100)
    assert date_loss(samples, replace(gap, partition=1)) == at(100)
    assert date_loss(samples, replace(gap, start=None, end=None)) == at(100)


FIELDS = {
    "stream",
    "group",
    "verdict",
    "partitions",
    "lag",
    "lost",
    "seconds_to_drain",
    "seconds_to_loss",
}
PARTITION_FIELDS = {"partition", "log_start", "committed", "end", "lag", "lag_seconds", "lost"}


def build_status(*arguments: Any, **named: Any) -> dict[str, Any]:
    return assess_stream(*arguments, **named).to_json()


def test_a_recorded_gap_is_counted_once_until_it_is_verified() -> None:
    now = sample(0, 20, 10, 50)
    (gap,) = find_gaps([], now).gaps
    assert build_status(now, "read_committed", gaps=[gap])["lost"] == 10
    verified = replace(gap, state=GapState.VERIFIED)
    assert build_status(now, "read_committed", gaps=[verified])["lost"] == 0
    passed = sample(30, 20, 45, 50)
    assert build_status(passed, "read_committed", gaps=[gap])["lost"] == 10
    assert gap.cause is Cause.EXPIRED


def test_a_gap_of_another_group_is_not_this_groups_loss() -> None:
    now = sample(0, 20, 30, 50)
    (gap,) = find_gaps([], sample(0, 20, 10, 50)).gaps
    assert build_status(now, "read_committed", gaps=[gap])["lost"] == 10
    other = replace(gap, group="the-old-name")
    assert build_status(now, "read_committed", gaps=[other])["lost"] == 0


def test_fault_21_a_total_is_unknown_while_a_written_partition_is() -> None:
    known, unknown = PartitionSample(0, 0, 50, 50, 50), PartitionSample(1, 0, None, 50, 50)
    now = replace(sample(0, 0, 50, 50), partitions=(known, unknown))
    status = build_status(now, "read_committed")
    assert (status["verdict"], status["lag"], status["lost"]) == ("unknown", None, None)
    assert status["seconds_to_drain"] is None
    # What is known is "at least" that much.
    behind = replace(now, partitions=(replace(known, low=20, committed=10), unknown))
    status = build_status(behind, "read_committed")
    assert (status["lag"], status["lag_at_least"], status["lost"]) == (None, 30, 10)
    idle = replace(now, partitions=(known, replace(unknown, lso=0, high=0)))
    assert build_status(idle, "read_committed")["lag"] == 0


@pytest.mark.parametrize("committed", [None, 0])
def test_fault_27_an_idle_partition_gives_no_nan_and_no_stall(committed: int | None) -> None:
    history = [sample(n, 0, committed, 0) for n in range(3)]
    status = build_status(sample(3, 0, committed, 0), "read_committed", history)
    assert status["verdict"] == "ok"
    assert "NaN" not in json.dumps(status)
    assert "Infinity" not in json.dumps(status)


@pytest.mark.parametrize(
    ("low", "committed", "high", "tails", "told"),
    [
        (0, 10, 50, (), ("lagging", 40, 0)),
        (20, 10, 50, (), ("lost", 30, 10)),
        (0, None, 50, (), ("unknown", None, None)),
        # How much is unread is not known then: an end may be a wrong answer.
        (0, 60, 50, (), ("beyond_end", None, 0)),
        (0, 49, 50, {0}, ("ok", 0, 0)),
    ],
    ids=["behind", "overtaken", "fault 21: no commit", "fault 22: beyond the end", "empty tail"],
)
def test_a_single_sample_tells_what_it_can(
    low: int, committed: int | None, high: int, tails: Collection[int], told: tuple[object, ...]
) -> None:
    around = StreamContext(tails=frozenset(tails))
    status = build_status(sample(0, low, committed, high), "read_committed", around=around)
    assert (status["verdict"], status["lag"], status["lost"]) == told
    assert set(status) >= FIELDS
    assert set(status["partitions"][0]) >= PARTITION_FIELDS
    left = 0.0 if status["lag"] == 0 else None
    assert (status["seconds_to_drain"], status["partitions"][0]["lag_seconds"]) == (left, left)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"retention.ms": "3600000"}, timedelta(hours=1)),
        ({"retention.ms": "-1"}, None),
        ({"retention.ms": "3600000", "cleanup.policy": "compact"}, None),
        ({}, None),
    ],
)
def test_retention_is_read_from_the_topic(
    config: dict[str, str], expected: timedelta | None
) -> None:
    assert read_retention(config) == expected
    assert read_retention({"retention.ms": str(2**63 - 1)}) is not None


def test_the_size_limit_is_read_from_the_topic() -> None:
    assert read_size_limit({"retention.bytes": "1000"}) == 1000
    assert read_size_limit({"retention.bytes": "-1"}) is None
    assert read_size_limit({"retention.bytes": "9", "cleanup.policy": "compact"}) is None
    assert Retention().bytes is None


SECONDS = st.floats(0, 60).map(lambda value: timedelta(seconds=value))
AHEAD = st.floats(-86400, 86400).map(lambda value: timedelta(seconds=value))


@dataclass
class World:
    """A host's clock, and a ledger that takes its time before and after it looks at its own."""

    before: timedelta
    after: timedelta
    ahead: timedelta
    clock: datetime = NOON

    def now(self) -> datetime:
        there = self.clock + self.before + self.ahead
        self.clock += self.before + self.after
        return there

    def measure(self) -> timedelta:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(bulk_look, "utc_now", lambda: self.clock)
            return measure_clock_skew(self)  # type: ignore[arg-type]


@given(SECONDS, SECONDS)
def test_fault_41_a_ledger_that_answers_late_is_not_ahead(
    before: timedelta, after: timedelta
) -> None:
    assert World(before, after, timedelta(0)).measure() == timedelta(0)


@given(SECONDS, SECONDS, AHEAD)
def test_fault_41_a_clock_that_is_ahead_is_told_as_exactly_as_it_can_be(
    before: timedelta, after: timedelta, ahead: timedelta
) -> None:
    found = World(before, after, ahead).measure()
    if found:
        assert abs(found - ahead) <= (before + after) / 2 + timedelta(microseconds=1)  # rounding
    else:
        assert abs(ahead) <= max(before, after) + CLOCK_NOISE


def test_fault_41_hosts_whose_clocks_differ_make_one_timeline(
    properties: dict[str, str],
    topic: Callable[..., str],
    group: str,
    ledger: Ledger,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name = topic(partitions=1)
    stream = StreamStub(name, group)
    for round_ in range(3):
        publish(properties, name, {0: 10})
        commit(properties, group, name, {0: 10 * round_ + 5})
        slow = timedelta(minutes=5) if round_ % 2 else timedelta(0)
        for module in (bulk_look, sampler):
            monkeypatch.setattr(module, "utc_now", lambda slow=slow: utc_now() - slow)
        observe_stream(ledger, stream, properties)
    history = ledger.samples.history("orders")
    assert [one.partitions[0].committed for one in history] == [5, 15, 25]
    status = assess_stream(history[-1], "read_committed", history)
    assert status.verdict == "lagging", "no rewind"


@pytest.mark.parametrize(
    ("state", "commits", "verdict"),
    [
        ("simple", {60: (5, 9)}, "losing"),  # it stood for an hour, as two samples show
        ("simple", {60: (5, 5)}, "lagging"),  # it had read all
        ("simple", {90: (5, 9), 60: (5, 5), 5: (5, 9)}, "lagging"),
        ("simple", {5: (5, 9)}, "lagging"),
        ("simple", {60: (5, 9), 5: (4, 9)}, "lagging"),  # it moved
        ("empty", {5: (5, 9)}, "losing"),
    ],
)
def test_a_reader_that_is_not_seen_is_gone_once_its_commit_stood(
    state: str, commits: dict[int, tuple[int, int]], verdict: str
) -> None:
    """However far apart the samples are."""
    now = utc_now()
    place = ("orders", "main", "orders", "job", "id-1")
    seen = [
        Sample(*place, now - timedelta(minutes=ago), (PartitionSample(0, 0, at, end, end),), state)
        for ago, (at, end) in {**commits, 0: (5, 9)}.items()
    ]
    around = StreamContext(Retention(timedelta(hours=2)), oldest={0: now - timedelta(minutes=90)})
    told = assess_stream(seen[-1], "read_committed", seen[:-1], around=around)
    assert told.verdict == verdict


PART = PartitionStatus(2, 0, 800_000, 2_000_000, 1_200_000, 3000.0, 0)


def summarize(*parts: PartitionStatus, **known: object) -> GroupStatus:
    settings: dict[str, object] = {
        "stream": "orders",
        "cluster": "main",
        "topic": "orders",
        "group": "order-service",
        "group_state": "stable",
        "taken_at": utc_now(),
        "written": [True] * len(parts),
        "consumers": 3,
        "has_consumers": True,
        "has_source": True,
    }
    return summarize_group(parts, **{**settings, **known})  # type: ignore[arg-type]


def test_whether_a_reader_that_never_joins_is_at_work_is_not_known_at_first() -> None:
    """A group without members looks deserted then, and its messages may be gone soon."""
    lagging = Verdict.LAGGING
    part = replace(PART, verdict=lagging, course=lagging, seconds_retained=1_200.0)
    doubt = "whether anybody reads is not known, look again"
    at_first = summarize(part, group_state="simple")
    assert "retention reaches it in 20 min at the earliest; no commit was seen" in at_first.sentence
    assert doubt in at_first.sentence
    assert at_first.next_commands == ("backlogctl hold orders --for 6h", "backlogctl status orders")
    later = replace(part, seconds_retained=80_000.0)
    assert summarize(later, group_state="simple").next_commands == ()
    assert summarize(part, group_state="stable").next_commands == ()
    moving = replace(part, consumed_per_second=4.0)
    assert doubt not in summarize(moving, group_state="simple").sentence
    assert summarize(moving, group_state="simple").next_commands == ()
    read = replace(part, lag=0)
    assert summarize(read, group_state="simple").next_commands == ()
    # Nothing was committed for the whole window.
    losing = replace(part, verdict=Verdict.LOSING, course=Verdict.LOSING, seconds_to_loss=60.0)
    assert doubt in summarize(losing, group_state="simple").sentence
    assert doubt not in summarize(losing, group_state="empty").sentence, "its members have left"


def test_a_group_that_has_just_been_left_is_held_before_retention_gets_there() -> None:
    """Its pace of before says nothing now; and what is lost already is not all that will be."""
    lagging = Verdict.LAGGING
    left = replace(
        PART, verdict=lagging, course=lagging, seconds_retained=1_200.0, consumed_per_second=4.0
    )
    hold = "backlogctl hold orders --for 6h"
    told = summarize(left, group_state="empty")
    assert told.sentence.endswith(
        "in 20 min at the earliest, nobody is in the group; too few samples to say more"
    )
    assert told.next_commands[0] == hold
    for verdict in (Verdict.OK, Verdict.WARN):  # it was winning, or not, until just now
        then = replace(left, verdict=verdict, course=verdict, seconds_to_drain=5160.0)
        told = summarize(then, group_state="empty")
        assert "nobody is in the group" in told.sentence
        assert "drained" not in told.sentence
        assert told.next_commands[0] == hold
        assert hold not in summarize(then, group_state="stable").next_commands
    for state in ("stable", "empty"):
        moment = 0.0 if state == "empty" else 60.0
        lost = replace(left, verdict=Verdict.LOST, lost=43, seconds_retained=moment)
        told = summarize(lost, group_state=state)
        assert (told.next_commands[0] == hold) is (state == "empty")
        when = "now" if state == "empty" else "in 1 min at the earliest"
        assert told.sentence.endswith(f"1.2 M behind, retention reaches it {when}")
        assert "backlogctl plan rebuild orders" in told.next_commands


LOSING = replace(
    PART,
    verdict=Verdict.LOSING,
    course=Verdict.LOSING,
    seconds_to_drain=11_400.0,
    seconds_to_loss=6000.0,
    loss_by="time",
    expected_loss=571_234,
    needed_per_second=300.0,
    consumed_per_second=100.0,
    produced_per_second=50.0,
)


def test_a_loss_to_come_is_told_with_what_would_win() -> None:
    idle = [replace(PART, partition=n, lag=0, committed=2_000_000) for n in (0, 1)]
    status = summarize(*idle, LOSING)
    assert status.sentence == (
        "orders/2: 1.2 M behind, drained in 3 h 10 min, retention reaches it in 1 h 40 min at the "
        "earliest: about 570,000 will be lost; 9 consumers would win; act within the hour"
    )
    assert status.next_commands == (
        "backlogctl hold orders --for 6h",
        "backlogctl plan expand orders",
    )
    assert (status.lag, status.seconds_to_drain) == (1_200_000, 11_400.0)
    assert summarize(*idle, LOSING, consumers=None).consumers_to_win is None


@pytest.mark.parametrize(
    ("seconds", "urgency", "told"),
    [
        (0.0, "now", "retention may take it with its next check"),
        (20.0, "now", "retention reaches it in 20 s at the earliest"),
        (3_600.0, "soon", "in 1 h at the earliest"),
        (85_620.0, "later", "retention reaches it in 23 h 47 min at the earliest"),
    ],
)
def test_a_loss_tomorrow_is_not_told_as_one_within_the_minute(
    seconds: float, urgency: str, told: str
) -> None:
    status = summarize(replace(LOSING, seconds_to_loss=seconds), consumers=None)
    assert told in status.sentence
    words = {"now": "act now", "soon": "act within the hour", "later": "there is time to act"}
    assert status.sentence.endswith(f"; {words[urgency]}")
    assert status.to_json()["urgency"] == urgency
    assert summarize(replace(PART, lag=0)).to_json()["urgency"] is None


@pytest.mark.parametrize(
    ("to_loss", "to_drain", "held", "length"),
    [
        (20.0, None, 0.0, "6h"),
        (85_620.0, None, 0.0, "2d"),
        (6_000.0, 11_400.0, 0.0, "6h"),
        (600.0, 30_000.0, 0.0, "24h"),
        (20.0, None, 200_000.0, "3d"),
        (20.0, 40 * 86_400.0, 0.0, "60d"),
    ],
)
def test_a_hold_lasts_until_all_is_read(
    to_loss: float, to_drain: float | None, held: float, length: str
) -> None:
    losing = replace(LOSING, seconds_to_loss=to_loss, seconds_to_drain=to_drain)
    status = summarize(losing, seconds_held=held)
    assert status.next_commands[0] == f"backlogctl hold orders --for {length}"


def test_a_total_is_unknown_where_a_part_is() -> None:
    """80 in one partition, and another of 100 messages without a commit."""
    known = replace(PART, partition=0, lag=80, verdict=Verdict.STOP, course=Verdict.STOP)
    unknown = PartitionStatus(
        1, 0, None, 100, None, None, None, verdict=Verdict.UNKNOWN, course=Verdict.UNKNOWN
    )
    status = summarize(known, unknown)
    assert (status.lag, status.lag_at_least) == (None, 80)
    assert status.seconds_to_drain is None
    assert status.sentence.endswith("; what is unread, or lost, of partition 1 is unknown")
    fine = replace(known, verdict=Verdict.OK, course=Verdict.OK)
    assert summarize(fine, unknown).sentence.endswith("; the others are 80 behind")
    never_written = summarize(fine, unknown, written=[True, False])
    assert (never_written.lag, never_written.lag_at_least) == (80, None)


def test_what_goes_on_comes_before_what_is_lost() -> None:
    lost = replace(LOSING, verdict=Verdict.LOST, lost=700)
    status = summarize(lost)
    assert (status.verdict, status.course) == (Verdict.LOST, Verdict.LOSING)
    assert status.sentence.startswith("orders/2: 700 messages lost at most; 1.2 M behind")
    assert status.next_commands == (
        "backlogctl hold orders --for 6h",
        "backlogctl plan expand orders",
        "backlogctl plan rebuild orders",
        "backlogctl gaps orders",
    )


def test_one_partition_that_never_drains_leaves_no_time_for_all() -> None:
    stuck = replace(PART, verdict=Verdict.STALL, course=Verdict.STALL)
    assert summarize(LOSING, replace(stuck, partition=1)).seconds_to_drain is None
    # Nor do the few of a partition that keeps up.
    keeps_up = replace(
        PART,
        partition=1,
        seconds_to_drain=None,
        lag=90_000,
        consumed_per_second=9000.0,
        produced_per_second=9000.0,
    )
    assert summarize(LOSING, keeps_up).seconds_to_drain == 11_400.0
    fine = replace(keeps_up, verdict=Verdict.OK, course=Verdict.OK)
    assert summarize(fine).sentence == "orders: 90,000 behind, keeping up"
    # A few messages that come and go do not decide.
    small = replace(stuck, partition=1, lag=7)
    assert summarize(LOSING, small).seconds_to_drain == 11_400.0


@pytest.mark.parametrize(
    ("verdict", "told"),
    [
        (
            Verdict.STOP,
            "1.2 M behind, nobody is in the group, and nothing was committed for 10 min",
        ),
        (Verdict.STALL, "1.2 M behind, and the committed offset did not move for 10 min"),
        (Verdict.WARN, "1.2 M behind, and the lag did not fall for 10 min"),
        (Verdict.REWIND, "the committed offset went back; 1.2 M behind"),
        (Verdict.BEYOND_END, "the committed offset 800,000 is beyond the end of the log"),
        (Verdict.LAGGING, "1.2 M behind; too few samples to say more"),
    ],
)
def test_each_verdict_has_its_words(verdict: Verdict, told: str) -> None:
    status = summarize(replace(PART, verdict=verdict, course=verdict))
    assert status.sentence == f"orders/2: {told}"


def test_a_group_that_is_well_and_one_without_a_stream() -> None:
    done = replace(PART, lag=0)
    assert summarize(done).sentence == "orders: nothing unread"
    assert summarize(done).next_commands == ()
    foreign = summarize(LOSING, stream="", group="it's; rm -rf /")
    assert foreign.next_commands == (
        """backlogctl status --cluster main --group 'it'"'"'s; rm -rf /'""",
    )
    assert summarize(done, topic="invoices", stream="").sentence == "invoices: nothing unread"
