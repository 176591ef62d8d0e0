"""The whole story, as people run it."""

from __future__ import annotations

from tests.replay.expand.oracle import judge
from tests.replay.expand.world import World


def test_in_process(world: World) -> None:
    recovery = world.plan_approved()
    world.run(recovery)
    assert judge(world, recovery) == []
