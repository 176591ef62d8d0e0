"""`plan expand --try`: one consumer on an empty topic, before anybody is stopped."""

from __future__ import annotations

import pytest

from backlogctl.errors import Refused
from backlogctl.fanout.launchers import Role
from backlogctl.kafka.admin import describe_group_state
from backlogctl.kafka.topics import read_metadata
from backlogctl.replay.kinds.expand import canary
from backlogctl.replay.kinds.expand.canary import CanaryFailed
from tests.kit.kafka import join, wait_until
from tests.replay.expand.world import World


@pytest.fixture(autouse=True)
def _as_it_was(world: World) -> object:
    """Whatever a try ends with: nobody was stopped, and nothing is left of it."""
    before = world.list_pids(Role.ORIGINAL)
    yield
    assert world.list_pids(Role.ORIGINAL) == before
    assert len(world.list_processes()) == len(before) + 1, "and their supervisor"
    topics = read_metadata(world.properties).topics
    assert f"{world.topic}.recovery.try" not in topics


def test_it_crashes(world: World) -> None:
    world.set_wrong(Role.RECOVERY, CRASH="boom")
    with pytest.raises(CanaryFailed, match=r"exit code 1(.|\n)*boom") as caught:
        world.plan(try_one=True)
    assert "Nobody was stopped" in str(caught.value)
    assert world.open().ledger.recoveries.list() == ()


def test_it_joins_the_original_group(world: World) -> None:
    world.set_wrong(Role.RECOVERY, BACKLOG_GROUP=world.group, BACKLOG_TOPIC=world.topic)
    world.set_speed(Role.RECOVERY, 1)
    with pytest.raises(CanaryFailed, match=r"ignores BACKLOG_GROUP.*order-service-recovery"):
        world.plan(try_one=True)


def test_it_reads_the_original_topic(world: World) -> None:
    """It begins at its end: nothing of it is handled twice."""
    world.set_wrong(Role.RECOVERY, BACKLOG_TOPIC=world.topic)
    with pytest.raises(CanaryFailed, match="ignores BACKLOG_TOPIC"):
        world.plan(try_one=True)
    handled = world.log.read_text().splitlines() if world.log.exists() else []
    assert len(handled) == len({line.rsplit(" ", 1)[0] for line in handled})


def test_one_that_is_in_no_group_is_unknown(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.set_wrong(Role.RECOVERY, MANNER="assign")
    monkeypatch.setattr(canary, "SEEN_SECONDS", 4.0)
    plan = world.plan(try_one=True).plan
    assert "was seen in no group" in plan["tried"]
    assert any("what it reads is not known" in warning for warning in plan["warnings"])


def test_it_does_as_it_should_and_takes_over_what_a_killed_one_left(world: World) -> None:
    process = world.start("plan", "expand", "orders", "--rate", "20", "--try")
    group = f"{world.group}.recovery.try"
    wait_until(lambda: describe_group_state(world.properties, group).is_active, what="it joined")
    process.kill()
    process.wait()
    plan = world.plan(try_one=True)
    assert plan.plan["tried"].startswith(
        f"one consumer joined group {group} and read {world.topic}.rec"
    )
    assert "and nothing else" in plan.plan["tried"]
    assert describe_group_state(world.properties, group).state == "dead"
    assert "tried" in world.call("show", plan.id).out


def test_two_tries_at_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody in the try's group is not ours to end."""
    monkeypatch.setattr(canary, "_LEAVE_SECONDS", 1.0)
    other = join(world.properties, f"{world.group}.recovery.try", world.topic)
    with pytest.raises(Refused, match="somebody is in it"):
        world.plan(try_one=True)
    other.close()
