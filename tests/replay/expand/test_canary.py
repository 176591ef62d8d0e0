"""The first consumer of the recovery does not do as it should: what is said, and how soon."""

from __future__ import annotations

import time

import pytest

from backlogctl.fanout.launchers import Role
from backlogctl.replay.kinds.expand.canary import CanaryFailed
from tests.replay.expand.oracle import judge
from tests.replay.expand.world import World


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


def test_it_joins_the_original_group(world: World) -> None:
    recovery = world.plan_approved()
    world.set_wrong(Role.RECOVERY, BACKLOG_GROUP=world.group, BACKLOG_TOPIC=world.topic)
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
