"""A plan looks itself how fast consumers are that nobody has watched."""

from __future__ import annotations

import pytest

from backlogctl.errors import UsageError
from backlogctl.fanout.launchers import Role
from backlogctl.kafka.admin import describe_group_state
from backlogctl.replay.kinds.expand import planning
from backlogctl.replay.kinds.expand.kind import KIND as EXPAND
from backlogctl.replay.kinds.expand.plan import ExpandOptions
from backlogctl.replay.kinds.expand.planning import plan_expand
from tests.kafka_tools import wait_until
from tests.replay.expand.world import REPLICAS, World


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
