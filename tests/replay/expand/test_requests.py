"""Pause, resume, Ctrl-C, cancel, two runners, and the canary."""

from __future__ import annotations

import json
import os
import signal
import threading
from pathlib import Path

import pytest
from rich.console import Console

from backlogctl.errors import BacklogError, InvalidTransition, LeaseHeld, Paused, Refused
from backlogctl.fanout.launchers import Role
from backlogctl.fanout.relay.interface import ConsumerCameBack
from backlogctl.replay.engine.approval import approve_plan
from backlogctl.replay.engine.cancelling import cancel_work
from backlogctl.replay.engine.guards import refuse_active
from backlogctl.replay.engine.interrupts import Interrupts
from backlogctl.replay.engine.kind import Workspace
from backlogctl.replay.kinds.expand import canary
from backlogctl.replay.kinds.expand.canary import CanaryFailed
from backlogctl.replay.kinds.expand.context import ExpandContext
from backlogctl.values import Recovery, RecoveryState
from tests.replay.expand.oracle import judge
from tests.replay.expand.world import WITHIN, World
from tests.replay.expand_makers import store_expand_plan
from tests.replay.makers import open_desk, store_plan, take_over

SLOW = 5.0  # of each recovery consumer: the drain lasts until somebody has asked


def test_pause_resume_and_interrupt(world: World) -> None:
    """Each ends the relays and the recovery's consumers, in one line; the next run goes on."""
    recovery = world.plan_approved(rate=1)
    world.set_speed(Role.RECOVERY, SLOW)
    runner = world.start("run", recovery.id)
    world.wait_for_drain(recovery, runner)
    world.call("pause", recovery.id)
    _, err = runner.communicate(timeout=WITHIN)
    assert runner.returncode == Paused.exit_code, err
    assert f"backlogctl resume {recovery.id}" in err
    assert world.read(recovery).state == "paused"
    assert world.list_processes() == {}
    assert world.call("run", recovery.id, "--json", code=4).error["code"] == "paused"

    runner = world.start("resume", recovery.id)
    world.wait_for_drain(recovery, runner)
    os.kill(runner.pid, signal.SIGINT)
    _, err = runner.communicate(timeout=WITHIN)
    assert runner.returncode == Paused.exit_code, err
    assert f"backlogctl run {recovery.id}" in err
    assert "Traceback" not in err
    assert world.read(recovery).detail["why"] == "interrupted"
    assert world.list_processes() == {}
    world.set_speed(Role.RECOVERY, None)
    world.run(recovery)
    assert judge(world, recovery) == []


def test_fault_43_and_44_a_live_run_is_told_from_another_process(world: World) -> None:
    """A second `run` is refused; `cancel` is an early cut over by the runner."""
    recovery = world.plan_approved(rate=1)
    world.set_speed(Role.RECOVERY, SLOW)
    runner = world.start("run", recovery.id, "--json")
    world.wait_for_drain(recovery, runner)
    with pytest.raises(LeaseHeld, match="is held by"):
        world.run(recovery)
    world.publish(400)
    cancelled = cancel_work(
        world.open(),
        recovery.id,
        wait=WITHIN,
        say=lambda _: world.set_speed(Role.RECOVERY, None),  # it was asked for
    )
    assert cancelled.state == "cancelled"
    out, err = runner.communicate(timeout=WITHIN)
    assert runner.returncode == 1, err
    assert json.loads(out)["error"]["code"] == "cancelled", out + err
    assert judge(world, recovery, state="cancelled") == []
    with pytest.raises(Refused, match="was cancelled"):
        world.run(recovery)


def test_a_canary_that_is_slow_or_does_nothing(world: World) -> None:
    recovery = world.plan_approved(rate=100)
    world.patch.setattr(canary, "NOTHING_SECONDS", 3.0)
    world.set_speed(Role.RECOVERY, 0)
    with pytest.raises(CanaryFailed, match="committed nothing within 3 s") as caught:
        world.run(recovery)
    assert str(world.fleet(Role.RECOVERY, recovery).directory) in caught.value.hint
    assert world.read(recovery).state == "failed"
    assert world.list_processes() == {}

    world.set_speed(Role.RECOVERY, 5)  # far from the half, wherever it is looked at
    with pytest.raises(Paused, match="the plan counts on 100"):
        world.run(recovery)
    paused = world.read(recovery)
    assert (paused.state, paused.detail["why"]) == (RecoveryState.PAUSED, "canary")
    assert world.list_processes() == {}

    world.at("p4.5.guard.joined", lambda: world.set_speed(Role.RECOVERY, None))
    world.run(recovery, resumed=True)
    assert "as said by `resume`" in world.told.getvalue()
    assert judge(world, recovery) == []


def test_a_canary_that_commits_every_five_seconds_is_not_taken_for_slow(world: World) -> None:
    recovery = world.plan_approved(rate=400)
    world.log.with_name(f"{world.log.name}.autocommit").touch()
    world.set_speed(Role.RECOVERY, 400)
    world.run(recovery)
    assert judge(world, recovery) == []
    step = world.open().ledger.steps.get(recovery.id, "canary")
    assert step is not None
    assert step.detail["at_least"], step.detail


def test_fault_44_two_approve_at_once(tmp_path: Path) -> None:
    recovery = store_expand_plan(open_desk(tmp_path))
    together = threading.Barrier(2)
    ends: list[BacklogError | Recovery] = []

    def approve(name: str, workspace: Workspace) -> None:
        planned = workspace.ledger.recoveries.get(recovery.id)
        together.wait()
        try:
            ends.append(approve_plan(workspace, planned, by=name))
        except BacklogError as error:
            ends.append(error)

    desks = {name: open_desk(tmp_path) for name in ("ada", "bob")}
    threads = [threading.Thread(target=approve, args=each) for each in desks.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (won,) = (end for end in ends if isinstance(end, Recovery))
    (told,) = (end for end in ends if isinstance(end, Refused))
    assert won.approved_by in ("ada", "bob")
    assert "approved" in told.message


@pytest.mark.parametrize("state", ["approved", "running", "paused", "failed"])
def test_one_recovery_of_a_topic_or_group_at_a_time(tmp_path: Path, state: str) -> None:
    """A failed expansion has stopped half way: nothing else begins on its topic or group."""
    workspace = open_desk(tmp_path)
    ledger = workspace.ledger
    expansion = store_expand_plan(workspace)
    approve_plan(workspace, expansion, by="ada")
    for step in {"approved": (), "running": ("running",)}.get(state, ("running", state)):
        ledger.recoveries.advance(expansion.id, RecoveryState(step), "ada")
    with pytest.raises(InvalidTransition, match=f"{expansion.id} .* is {state}"):
        refuse_active(workspace, workspace.config.stream("orders"))
    for topic in ("orders", "elsewhere"):  # the same topic; another one with the same group
        other = store_plan(workspace, topic=topic)
        with pytest.raises(InvalidTransition, match=expansion.id):
            approve_plan(workspace, other, by="ada")


class GuardThatLost:
    """A session whose guard was put out of the group."""

    def check(self) -> None:
        """Raises ConsumerCameBack."""
        raise ConsumerCameBack("a consumer came back", subject="group service")


@pytest.mark.parametrize("taken", [True, False])
def test_fault_02_consumers_that_another_runner_started_are_no_intruders(
    tmp_path: Path, taken: bool
) -> None:
    """A runner that slept for long says that its lease is gone, whatever it notices first."""
    desk = open_desk(tmp_path)
    recovery = approve_plan(desk, store_expand_plan(desk), by="ada")
    with desk.ledger.leases.hold(recovery.id) as lease:
        context = ExpandContext(
            desk, recovery, desk.config.stream("orders"), lease, Interrupts(), Console(quiet=True)
        )
        context.closing, context._requests_at = True, float("inf")
        context.__dict__["session"] = GuardThatLost()
        if taken:
            take_over(desk, recovery.id)
        with pytest.raises(LeaseHeld if taken else ConsumerCameBack):
            context.tick()
