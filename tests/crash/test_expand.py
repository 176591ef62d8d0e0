"""Fault 1 of an expansion: killed after every step of P4, run again or cancelled, nothing lost."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time

import pytest

from backlogctl.fanout.launchers import Role
from backlogctl.replay.engine.brakes import CancelRequested
from backlogctl.values import Recovery
from tests.crash.points import RUNNER_POINTS
from tests.kit.kafka import wait_until
from tests.replay.expand.oracle import judge, read_log
from tests.replay.expand.world import WITHIN, World

pytestmark = pytest.mark.timeout(900)

# So slow that retention would win: it is raised, from unset.
HOLDING = 0.001
# Each point once: a cancel is the end of a world, runs go on in the same one.
CANCELLED = RUNNER_POINTS[1::4]
RUN_AGAIN = [point for point in RUNNER_POINTS if point not in CANCELLED]


def kill_at(world: World, recovery: Recovery, point: str) -> None:
    """A run whose process group is killed at a point; its relays and consumers are in others."""
    killed = world.start("run", recovery.id, crash_at=point)
    out, err = killed.communicate(timeout=WITHIN)
    assert killed.returncode == -signal.SIGKILL, f"{point} was not reached: {out} {err}"
    assert world.read(recovery).state == "running"


@pytest.mark.parametrize("points", [RUN_AGAIN[::3], RUN_AGAIN], ids=["every third", "each"])
def test_fault_01_killed_at_one_step_after_the_other(world: World, points: list[str]) -> None:
    """Each run begins where the one before was killed, and comes to the next point."""
    recovery = world.plan_approved(rate=HOLDING)
    for point in points:
        kill_at(world, recovery, point)
        world.publish(40)
    world.run(recovery)
    world.release_holds()
    assert judge(world, recovery) == []


@pytest.mark.parametrize("point", CANCELLED)
def test_fault_01_43_killed_at_a_step_and_cancelled(world: World, point: str) -> None:
    """The other points: nothing is left that is only in the temporary topic."""
    recovery = world.plan_approved(rate=HOLDING)
    kill_at(world, recovery, point)
    world.publish(120)
    world.cancel(recovery)
    assert judge(world, recovery, state="cancelled") == []


def test_fault_01_43_a_cancel_that_is_killed_is_finished_by_the_next_run(world: World) -> None:
    recovery = world.plan_approved(rate=HOLDING)
    kill_at(world, recovery, "p4.6.relays.started")
    killed = world.start("cancel", recovery.id, crash_at="p4.9.originals.started")
    killed.communicate(timeout=WITHIN)
    assert killed.returncode == -signal.SIGKILL
    world.publish(120)
    with pytest.raises(CancelRequested):
        world.run(recovery)
    assert judge(world, recovery, state="cancelled") == []


def test_fault_01_a_canary_that_was_read_to_its_end_meanwhile(world: World) -> None:
    """Control records alone are no share that a consumer could handle."""
    recovery = world.plan_approved()
    killed = world.start("run", recovery.id, crash_at="p4.7.canary.started")
    killed.communicate(timeout=WITHIN)
    assert killed.returncode == -signal.SIGKILL
    topic = recovery.plan["temporary"]["topic"]

    def count_read() -> int:
        # A rebalance may have one message handled twice.
        return len({(line.key, line.sequence) for line in read_log(world) if line.topic == topic})

    wait_until(lambda: count_read() == 500, what="the canary is read")
    # The rest is read by somebody else: the second run has no share to relay.
    world.start_originals()
    world.set_speed(Role.ORIGINAL, None)
    wait_until(lambda: not world.find_rest(), what="the rest is read")
    world.launcher.stop(world.fleet(Role.ORIGINAL), lambda: None)
    world.run(recovery)
    assert judge(world, recovery, whole=False, ordered=False) == []


def test_fault_01_13_relays_and_consumers_killed_in_the_drain(world: World) -> None:
    """The run goes on by itself, over relays that die and a group that is rebalanced."""
    recovery = world.plan_approved(rate=5)
    relays: list[int] = []
    consumers: list[int] = []

    def find_young() -> list[int]:
        """Consumers that took the place of those that were killed."""
        return [pid for pid in world.list_pids(Role.RECOVERY, recovery) if pid not in consumers]

    def kill() -> None:
        limit = time.monotonic() + WITHIN
        try:
            for _ in range(3):
                world.publish(200)
                while len(young := find_young()) < 2 and time.monotonic() < limit:
                    time.sleep(0.1)
                relayed = world.list_relays()
                for pid in (*relayed, *young[:2]):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                relays.extend(relayed)
                consumers.extend(young[:2])
                time.sleep(0.7)
        finally:
            world.set_speed(Role.RECOVERY, None)

    killer = threading.Thread(target=kill)

    def begin() -> None:
        world.set_speed(Role.RECOVERY, 10)  # the drain goes on, and does not end meanwhile
        killer.start()

    world.set_speed(Role.RECOVERY, 100)
    world.at("p4.7.consumers.started", begin)
    world.run(recovery)
    killer.join()
    assert relays
    assert len(consumers) == 6
    assert judge(world, recovery) == []
