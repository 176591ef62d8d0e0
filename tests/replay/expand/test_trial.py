"""The first consumer of a recovery: how fast it is, and what is said where it does wrong."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backlogctl.clock import Deadline
from backlogctl.errors import BacklogError, LeaseHeld, UsageError
from backlogctl.fanout.launchers import Role
from backlogctl.fanout.layout import cut_canary
from backlogctl.fanout.relay.guard import GroupGuard, find_others
from backlogctl.fanout.speed import Speed, Trial
from backlogctl.kafka.admin import describe_group_state
from backlogctl.replay.consumers.fleet import CONSUMERS_STAY, CleanupErrors
from backlogctl.replay.engine.brakes import INTERRUPTED, OPERATOR, CancelRequested, PausedBecause
from backlogctl.replay.kinds.expand import planning
from backlogctl.replay.kinds.expand.canary import SLOW_SHARE, CanaryFailed
from backlogctl.replay.kinds.expand.context import ExpandContext
from backlogctl.replay.kinds.expand.kind import KIND as EXPAND
from backlogctl.replay.kinds.expand.plan import ExpandOptions
from backlogctl.replay.kinds.expand.planning import plan_expand
from tests.kit.kafka import wait_until
from tests.replay.expand.oracle import judge
from tests.replay.expand.world import REPLICAS, World

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


def test_it_crashes_at_once(world: World) -> None:
    """Told within seconds, with its exit code and its last lines, without secrets."""
    world.patch.setenv("SHOP_KEY", "hunter2-hunter2")
    world.set_consumers(environment={"ORDER_LOG": str(world.log), "SHOP_KEY": "${env:SHOP_KEY}"})
    recovery = world.plan_approved()
    world.set_wrong(Role.RECOVERY, CRASH="boom: key is hunter2-hunter2")
    began: list[float] = []
    world.at("p4.3.stopped", lambda: began.append(time.monotonic()))
    with pytest.raises(CanaryFailed, match=r"exit code 1(.|\n)*boom") as caught:
        world.run(recovery)
    assert time.monotonic() - began[0] < 20
    assert "hunter2" not in str(caught.value)
    assert "BACKLOG_TOPIC" not in caught.value.hint
    assert world.list_processes() == {}

    world.set_wrong(Role.RECOVERY)
    world.run(recovery)
    assert judge(world, recovery) == []


@pytest.mark.parametrize("early", [False, True], ids=["late", "before the guard"])
def test_it_joins_the_original_group(
    world: World, monkeypatch: pytest.MonkeyPatch, early: bool
) -> None:
    recovery = world.plan_approved()
    world.set_wrong(Role.RECOVERY, BACKLOG_GROUP=world.group, BACKLOG_TOPIC=world.topic)
    join = GroupGuard.join

    def join_late(guard: GroupGuard, *rest: Any) -> Any:
        wait_until(
            lambda: find_others(world.properties, world.group, Deadline(30.0)), what="it is there"
        )
        return join(guard, *rest)

    if early:  # as on a machine where it starts slowly: the group was quiet until then
        monkeypatch.setattr(ExpandContext, "await_quiet", lambda *_, **__: None)
        monkeypatch.setattr(GroupGuard, "join", join_late)
    with pytest.raises(CanaryFailed, match=r"ignores BACKLOG_GROUP.*order-service-recovery"):
        world.run(recovery)
    assert world.list_processes() == {}


def test_it_reads_the_original_topic(world: World) -> None:
    recovery = world.plan_approved()
    world.set_wrong(Role.RECOVERY, BACKLOG_TOPIC=world.topic)
    world.set_speed(Role.RECOVERY, 20)
    with pytest.raises(CanaryFailed, match="ignores BACKLOG_TOPIC") as caught:
        world.run(recovery)
    assert world.topic in str(caught.value)
    assert world.list_processes() == {}


def plan_without_rate(world: World) -> tuple[float, list[str]]:
    """The rate of one consumer, and what was said."""
    wait_until(
        lambda: len(describe_group_state(world.properties, world.group).members) == REPLICAS,
        what="the consumers have joined",
    )
    workspace, said = world.open(), list[str]()
    recovery = plan_expand(
        workspace, workspace.config.stream(world.stream), ExpandOptions(), say=said.append
    )
    return EXPAND.read_plan(recovery).rate_per_consumer, said


def test_healthy_consumers_that_nobody_has_watched(world: World) -> None:
    rate, said = plan_without_rate(world)
    assert rate == pytest.approx(5.0, rel=0.4)
    assert any("how fast its consumers are" in text for text in said)


def test_consumers_that_commit_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "LONGEST_SECONDS", 6.0)
    world.set_speed(Role.ORIGINAL, 0)
    with pytest.raises(UsageError, match=r"it has 2 members, which committed nothing( in \d+ s)?"):
        plan_without_rate(world)


def fail(error: BacklogError) -> None:
    """What ends consumers raises it."""
    raise error


def test_a_failure_is_noted_and_told_last() -> None:
    left = CleanupErrors()
    with left.noting(CONSUMERS_STAY):
        fail(BacklogError("they hang", subject="group orders"))
    assert CONSUMERS_STAY in left
    with pytest.raises(BacklogError, match="could not be ended: they hang"):
        left.refuse("by hand")


@pytest.mark.parametrize(
    "asked",
    [
        CancelRequested("it was cancelled while it ran"),
        PausedBecause(OPERATOR, "paused"),
        PausedBecause(INTERRUPTED, "interrupted"),
        LeaseHeld("another runner has it"),
    ],
)
def test_a_request_to_stop_is_no_failure(asked: BacklogError) -> None:
    """As a `cancel` that comes while the recovery's consumers end: it was told as their failure."""
    left = CleanupErrors()
    with pytest.raises(type(asked)), left.noting(CONSUMERS_STAY):
        fail(asked)
    assert CONSUMERS_STAY not in left
    left.refuse("by hand")
