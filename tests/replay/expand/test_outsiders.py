"""Somebody moves the offsets of one of the two groups, or comes back and reads, unseen."""

from __future__ import annotations

import signal
from typing import Literal

import pytest

from backlogctl.clock import Deadline
from backlogctl.errors import Paused, VerificationFailed
from backlogctl.fanout.launchers import Role
from backlogctl.kafka import admin as verbs
from backlogctl.replay.consumers import copy_group, outsiders
from backlogctl.replay.consumers.copy_group import SET_FORWARD, UNTOLD
from backlogctl.values import Cause, Certainty, Recovery
from tests.kit.kafka import wait_until
from tests.replay.expand.oracle import (
    SETTINGS,
    await_handled,
    find_layout_problems,
    find_unhandled,
)
from tests.replay.expand.test_requests import SLOW, find_left, kill_in_the_drain
from tests.replay.expand.world import WITHIN, World

UNSET: dict[str, str | None] = dict.fromkeys(SETTINGS)


def leave_in_the_drain(world: World, moment: Literal["paused", "killed"]) -> Recovery:
    """Much is copied and not handled, and no consumer is there."""
    recovery = world.plan_approved(rate=1)
    world.set_speed(Role.RECOVERY, SLOW)
    runner = world.start("run", recovery.id)
    world.wait_for_drain(recovery, runner)
    if moment == "killed":
        runner.send_signal(signal.SIGKILL)
        runner.communicate(timeout=WITHIN)
        return recovery
    world.call("pause", recovery.id)
    _, err = runner.communicate(timeout=WITHIN)
    assert runner.returncode == Paused.exit_code, err
    assert f"backlogctl resume {recovery.id}" in err
    assert world.read(recovery).state == "paused"
    assert world.list_processes() == {}
    return recovery


def set_to_latest(world: World, recovery: Recovery) -> None:
    """The recovery's group, as `kafka-consumer-groups --reset-offsets --to-latest` does it."""
    topic, group = recovery.plan["temporary"]["topic"], recovery.plan["recovery_group"]
    world.launcher.stop(world.fleet(Role.RECOVERY, recovery), lambda: None)
    numbers = range(recovery.plan["temporary"]["partitions"])
    empty = lambda: not verbs.describe_group_state(world.properties, group).is_active  # noqa: E731
    wait_until(empty, what="the recovery's group is empty")
    ends = verbs.list_offsets(world.properties, topic, numbers, "latest", "read_committed")
    verbs.set_group_offsets(world.properties, group, topic, ends)


def list_actions(world: World, recovery: Recovery) -> set[str]:
    return {event.action for event in world.open().ledger.events.list(recovery.id)}


@pytest.mark.parametrize("moment", ["paused", "killed"])
@pytest.mark.parametrize("is_logged", [True, False])
def test_fault_114_the_recovery_group_is_set_forward(
    world: World, moment: Literal["paused", "killed"], is_logged: bool
) -> None:
    """Nothing is lost, and yet it is not verified: the copy stays until somebody says so."""
    recovery = leave_in_the_drain(world, moment)
    set_to_latest(world, recovery)
    world.set_speed(Role.RECOVERY, None)
    if not is_logged:  # as without READ on the log of commits
        world.patch.setattr(copy_group, "read_commit_history", lambda *_, **__: None)
    with pytest.raises(VerificationFailed, match="while none of its consumers") as caught:
        world.run(recovery, resumed=True)
    assert world.read(recovery).state == "failed"
    topic = recovery.plan["temporary"]["topic"]
    assert verbs.read_topic_id(world.properties, topic, Deadline(30.0))
    assert (SET_FORWARD if is_logged else UNTOLD) in list_actions(world, recovery)
    await_handled(world)
    assert find_unhandled(world) == []
    assert caught.value.next_commands == (f"backlogctl cancel {recovery.id}",)
    assert world.call("cancel", recovery.id).code == 0
    assert find_layout_problems(world, recovery, UNSET, "cancelled") == []


def test_fault_114_a_cancel_after_it_loses_nothing(world: World) -> None:
    recovery = leave_in_the_drain(world, "paused")
    set_to_latest(world, recovery)
    world.set_speed(Role.RECOVERY, None)
    assert world.cancel(recovery).state == "cancelled"
    await_handled(world)
    assert find_unhandled(world) == []
    assert SET_FORWARD in list_actions(world, recovery)
    assert find_layout_problems(world, recovery, UNSET, "cancelled") == []


def test_fault_114_it_is_set_forward_while_the_runner_works(world: World) -> None:
    """None of its consumers runs, and somebody is quicker than the runner."""
    recovery = world.plan_approved(rate=1)
    world.set_speed(Role.RECOVERY, SLOW)

    def set_forward() -> None:
        set_to_latest(world, recovery)
        world.set_speed(Role.RECOVERY, None)

    world.at("p4.7.consumers.started", set_forward)
    with pytest.raises(VerificationFailed, match="while none of its consumers"):
        world.run(recovery)
    await_handled(world)
    assert find_unhandled(world) == []
    assert SET_FORWARD in list_actions(world, recovery)


def test_fault_114_commits_without_an_epoch_are_not_taken_for_somebody_elses(world: World) -> None:
    """The recovery's own consumers, which go on when the runner is killed."""
    world.set_wrong(Role.RECOVERY, NO_EPOCH="1")
    recovery = world.plan_approved(rate=1)
    world.set_speed(Role.RECOVERY, SLOW)
    runner = world.start("run", recovery.id)
    world.wait_for_drain(recovery, runner)
    runner.send_signal(signal.SIGKILL)
    runner.communicate(timeout=WITHIN)
    world.set_speed(Role.RECOVERY, None)
    assert world.run(recovery).state == "verified"
    assert list_actions(world, recovery).isdisjoint({SET_FORWARD, UNTOLD})
    await_handled(world)
    assert find_unhandled(world) == []


def read_some(world: World, manner: str) -> int:
    """A consumer that names its offsets itself comes back, handles some hundreds, and leaves."""
    wait_until(lambda: not world.find_members(), what="the group is empty")
    before = world.find_rest()
    intruder = world.start_intruder(manner, NO_EPOCH="1")
    wait_until(lambda: world.find_rest() < before - 200, what="it handles some")
    intruder.terminate()
    intruder.wait(WITHIN)
    wait_until(lambda: not world.find_members(), what="it is gone")
    return before - world.find_rest()


def test_fault_115_a_member_that_came_back_has_read_what_it_committed(world: World) -> None:
    """Though its commits have no leader epoch: nothing is lost, and nothing is put back."""
    recovery = kill_in_the_drain(world)
    many = read_some(world, "classic")
    world.publish(100)
    world.set_speed(Role.RECOVERY, None)
    assert world.run(recovery).state == "verified"
    assert world.open().ledger.gaps.list("orders") == ()
    assert "are its own, and are not relayed" in world.told.getvalue()
    await_handled(world)
    assert find_unhandled(world) == []
    assert many
    assert find_layout_problems(world, recovery, UNSET, "verified") == []


@pytest.mark.parametrize("manner", ["assign", "classic"])
def test_fault_115_whether_somebody_read_or_skipped_is_not_known(world: World, manner: str) -> None:
    """Nobody was in the group; or somebody, and the log of commits may not be read."""
    recovery = kill_in_the_drain(world)
    if manner == "classic":
        world.patch.setattr(outsiders, "read_commit_history", lambda *_, **__: None)
    many = read_some(world, manner)
    world.set_speed(Role.RECOVERY, None)
    with pytest.raises(VerificationFailed, match="either read by a consumer that came back"):
        world.run(recovery)
    gaps = world.open().ledger.gaps.list("orders")
    assert {(gap.cause, gap.certainty) for gap in gaps} == {(Cause.SKIPPED, Certainty.POSSIBLE)}
    assert sum(gap.count or 0 for gap in gaps) == many
    await_handled(world)
    assert find_left(world) == set()
    assert world.cancel(recovery).state == "cancelled"
    assert find_layout_problems(world, recovery, UNSET, "cancelled") == []
