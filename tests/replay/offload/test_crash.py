"""Fault 1: killed once, then run again to the end."""

from __future__ import annotations

import os
import random
import signal
import time
from functools import partial

import pytest

from tests.kafka_tools import wait_until
from tests.replay.offload.world import OffloadWorld, await_fresh, judge_offload

# One after which a cancel goes back, and those around what cannot be taken back. All of them, one
# after the other in one recovery, are in tests/crash/test_offload.py.
POINTS = ("p5.2.stopped", "p5.4.archived", "p5.5.moved", "p5.6.before")


@pytest.mark.parametrize("point", POINTS)
def test_fault_01_killed_after_a_step_and_run_again(world: OffloadWorld, point: str) -> None:
    recovery = world.plan_approved()
    killed = world.start("run", recovery.id, crash_at=point)
    out, err = killed.communicate(timeout=150)
    assert killed.returncode == -9, f"{point} was not reached: {out} {err}"
    assert world.read(recovery).state == "running"
    world.run(recovery)
    assert judge_offload(world, recovery) == []
    await_fresh(world, 40)


@pytest.mark.parametrize("seed", [1, 2])
def test_fault_01_killed_in_the_middle_of_the_archive(world: OffloadWorld, seed: int) -> None:
    """Twice, at random moments; what is whole is not read again, and none of it twice."""
    chance = random.Random(seed)
    recovery = world.plan_approved()
    for _ in range(2):
        attempts = find_attempts(world, recovery.id)
        if attempts == 100:
            break
        runner = world.start("run", recovery.id)
        wait_until(partial(has_begun, world, recovery.id, attempts), what="it archives")
        time.sleep(chance.uniform(0.0, 12.0))  # the moment is what is drawn
        if runner.poll() is None:
            os.killpg(runner.pid, signal.SIGKILL)
        runner.communicate(timeout=150)
    world.run(recovery)
    assert judge_offload(world, recovery) == []
    await_fresh(world, 40)


def has_begun(world: OffloadWorld, recovery_id: str, attempts: int) -> bool:
    """Whether it was begun once more."""
    return find_attempts(world, recovery_id) > attempts


def find_attempts(world: OffloadWorld, recovery_id: str) -> int:
    """How often the archive was begun, or 100 where it is there."""
    step = world.open().ledger.steps.get(recovery_id, "archive")
    if step is None:
        return 0
    return 100 if step.is_complete else step.attempts
