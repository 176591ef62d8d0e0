"""What is said of a consumer's speed, by how it commits; no Kafka, and a clock of its own."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from backlogctl.fanout.layout import cut_canary
from backlogctl.fanout.speed import Speed, Trial
from backlogctl.replay.kinds.expand.canary import SLOW_SHARE

_TICK = 0.1
PLANNED = st.floats(1, 20_000)
STARTS = st.floats(0.2, 30)  # seconds from its launch to its group's first member
WAITS = st.floats(0, 3.5)  # from there to its first message
PHASES = st.floats(0, 1)  # of the commit interval, when the first message comes


def watch(
    planned: float, speed: float, interval: float, starts: float, waits: float, phase: float
) -> Speed:
    """A consumer of `speed` messages a second that commits at each end of an interval."""
    share = cut_canary({0: 10**9}, planned).messages
    trial, now, joined = Trial(share, 0.0), 0.0, False
    first = starts + waits
    while True:
        now += _TICK
        if not joined and now >= starts:
            trial, joined = Trial(share, now), True
        committed = now
        if interval:
            done = int((now - first) / interval + phase)
            committed = first + (done - phase) * interval
        left = max(0, share - int(speed * max(0.0, committed - first)))
        trial = trial.note(now, left)
        if left == 0:
            return trial.measure(now, drained=True)
        if trial.is_enough(now, planned):
            return trial.measure(now, drained=False)
        assert now < 1000


def is_refused(speed: Speed, planned: float) -> bool:
    return speed.known and speed.rate < SLOW_SHARE * planned


@given(PLANNED, st.floats(0.7, 50), st.sampled_from([0, 1, 5]), STARTS, WAITS, PHASES)
def test_who_is_as_fast_as_planned_is_never_refused(
    planned: float, times: float, interval: float, starts: float, waits: float, phase: float
) -> None:
    found = watch(planned, planned * times, interval, starts, waits, phase)
    assert not is_refused(found, planned)


@given(PLANNED, st.floats(0.02, 0.35), st.sampled_from([0, 1, 5]), STARTS, WAITS, PHASES)
def test_who_is_far_slower_is_refused(
    planned: float, times: float, interval: float, starts: float, waits: float, phase: float
) -> None:
    found = watch(planned, planned * times, interval, starts, waits, phase)
    assert is_refused(found, planned)


def test_who_commits_once_and_stands_still_is_slow() -> None:
    trial = Trial(1000, 10.0).note(12.0, 900)
    assert not trial.is_enough(26.0, 50)
    assert trial.is_enough(27.0, 50)
    assert trial.measure(27.0, drained=False) == Speed(100, 17.0)


def test_one_commit_of_all_is_a_lower_bound() -> None:
    assert Trial(1000, 10.0).note(15.0, 0).measure(15.0, drained=True).to_json() == {
        "handled": 1000,
        "seconds": 5.0,
        "messages_per_second": 200.0,
        "at_least": True,
    }
    assert Trial(1000, 10.0).note(40.0, 0).measure(40.0, drained=True).known
