"""Pause, resume, Ctrl-C, cancel, two runners, and outsiders while no runner guards the group."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from pathlib import Path

import pytest
from rich.console import Console

from backlogctl.errors import (
    BacklogError,
    InvalidTransition,
    LeaseHeld,
    Paused,
    Refused,
    VerificationFailed,
)
from backlogctl.fanout.launchers import Role
from backlogctl.fanout.relay.commits import (
    READ_BESIDE,
    REPEATED,
    UNDECIDED,
    CommitWithMetadata,
    Counters,
    Moved,
    find_moved_commits,
    write_counters,
)
from backlogctl.fanout.relay.interface import ConsumerCameBack
from backlogctl.replay.consumers.fleet import find_begin
from backlogctl.replay.engine.approval import approve_plan
from backlogctl.replay.engine.cancelling import cancel_work
from backlogctl.replay.engine.guards import refuse_active
from backlogctl.replay.engine.interrupts import Interrupts
from backlogctl.replay.engine.kind import Workspace
from backlogctl.replay.kinds.expand import canary, closing
from backlogctl.replay.kinds.expand.canary import CanaryFailed
from backlogctl.replay.kinds.expand.context import ExpandContext
from backlogctl.values import Cause, Certainty, Recovery, RecoveryState
from tests.kit.kafka import read_all, wait_until
from tests.kit.recoveries import open_desk, store_expand_plan, store_plan, take_over
from tests.replay.expand.oracle import (
    SETTINGS,
    await_handled,
    find_layout_problems,
    find_unhandled,
    judge,
    read_log,
)
from tests.replay.expand.world import PARTITIONS, WITHIN, World

SLOW = 5.0  # of each recovery consumer: the drain lasts until somebody has asked


def test_an_interrupt(world: World) -> None:
    """It ends the relays and the recovery's consumers, in one line, as a pause; `run` goes on."""
    recovery = world.plan_approved(rate=1)
    world.set_speed(Role.RECOVERY, SLOW)
    runner = world.start("run", recovery.id)
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


def test_what_a_canary_committed_while_its_runner_stood_still_is_not_nothing(world: World) -> None:
    """It is done, but for the last messages, which it commits only when it is ended."""
    recovery = world.plan_approved(rate=1)
    world.patch.setattr(canary, "NOTHING_SECONDS", 3.0)
    world.patch.setattr(canary, "COMMIT_SECONDS", 1.0)
    world.patch.setattr(closing, "STALL_SECONDS", 3.0)
    world.patch.setattr(closing, "LOOK_SECONDS", 0.5)
    world.set_wrong(Role.RECOVERY, LATE=str(world.directory / "late"))
    world.set_speed(Role.RECOVERY, 0)
    topic = recovery.plan["temporary"]["topic"]
    share = sum(recovery.plan["canary"]["partitions"].values())

    def stand_still() -> None:
        world.set_speed(Role.RECOVERY, None)
        wait_until(lambda: [line.topic for line in read_log(world)].count(topic) >= share)
        time.sleep(1.1)

    world.at("p4.7.canary.started", stand_still)
    world.run(recovery)
    step = world.open().ledger.steps.get(recovery.id, "canary")
    assert step is not None
    assert step.detail["at_least"], step.detail
    assert step.detail["handled"] > 0


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


OURS = write_counters(Counters("r-1", 5, 50, {0: 5}), 4)
OTHERS = write_counters(Counters("r-2", 5, 50, {0: 5}), 4)
UNSET: dict[str, str | None] = dict.fromkeys(SETTINGS)


@pytest.mark.parametrize("metadata", [None, "", "{", "[]", "7", '"r"', OTHERS])
def test_a_commit_without_our_counters_is_somebody_elses(metadata: str | None) -> None:
    ours = {number: CommitWithMetadata(15, OURS) for number in (0, 1, 2)}
    commits = {
        0: CommitWithMetadata(15, OURS),
        1: CommitWithMetadata(20, metadata),
        2: CommitWithMetadata(20, metadata, epoch=3),
        3: CommitWithMetadata(30, metadata),  # where it was when the consumers were stopped
        4: CommitWithMetadata(10, metadata),
    }
    begun = {0: 10, 1: 10, 2: 10, 3: 30, 4: 12}
    assert find_moved_commits(commits, ours, begun, "r-1") == (
        Moved(1, 15, 20, UNDECIDED),
        Moved(2, 15, 20, READ_BESIDE),
        Moved(4, 10, 12, REPEATED),
    )


def test_a_relay_that_has_committed_meanwhile_is_no_outsider() -> None:
    """The two commits of one transaction are read one after the other."""
    commits = {0: CommitWithMetadata(25, OURS)}
    assert find_moved_commits(commits, {0: CommitWithMetadata(15, OURS)}, {0: 10}, "r-1") == ()


def kill_in_the_drain(world: World) -> Recovery:
    """A runner that is killed while much is still to be relayed."""
    recovery = world.plan_approved(rate=1)
    world.set_speed(Role.RECOVERY, SLOW)
    killed = world.start("run", recovery.id, crash_at="p4.7.canary.relayed")
    killed.communicate(timeout=WITHIN)
    assert killed.returncode == -signal.SIGKILL
    return recovery


def find_left(world: World) -> set[tuple[int, int]]:
    """Partition and offset of each message that nobody handled."""
    handled = {(line.key, line.sequence) for line in read_log(world)}
    return {
        (message.partition() or 0, message.offset() or 0)
        for message in read_all(world.properties, world.topic, range(PARTITIONS))
        if ((message.key() or b"").decode(), int(message.value() or 0)) not in handled
    }


def test_a_reset_to_earliest_is_counted_and_told(world: World) -> None:
    recovery = kill_in_the_drain(world)
    world.reset_group("earliest")
    world.set_speed(Role.RECOVERY, None)
    world.run(recovery)
    await_handled(world)
    assert find_unhandled(world) == []
    assert find_layout_problems(world, recovery, UNSET, "verified") == []
    told = world.told.getvalue()
    assert "set the offsets of the group back" in told
    assert "are handled once more" in told


def test_a_group_that_is_reset_before_its_consumers_are_back(world: World) -> None:
    """All is drained, the runner is killed, and only then the group is set forward."""
    recovery = world.plan_approved()
    killed = world.start("run", recovery.id, crash_at="p4.9.guard.left")
    killed.communicate(timeout=WITHIN)
    world.publish(100)
    world.reset_group("latest")
    with pytest.raises(VerificationFailed, match="at most 100 messages were either read"):
        world.run(recovery)
    assert sum(gap.count or 0 for gap in world.open().ledger.gaps.list("orders")) == 100
    assert len(world.list_pids(Role.ORIGINAL)) == 2


def test_what_a_reader_committed_while_it_stopped_is_its_own() -> None:
    assert find_begin(10, CommitWithMetadata(15, None, epoch=3)) == 15
    assert find_begin(10, CommitWithMetadata(15, None)) == 10, "somebody set it"
    assert find_begin(10, CommitWithMetadata(5, None, epoch=3)) == 10


@pytest.mark.parametrize("way", ["run", "cancel"])
def test_a_reset_to_latest_right_after_the_consumers_were_stopped(world: World, way: str) -> None:
    """Nothing was relayed yet, and the group was not even watched: what was skipped is a gap."""
    recovery = world.plan_approved()
    killed = world.start("run", recovery.id, crash_at="p4.3.stopped")
    killed.communicate(timeout=WITHIN)
    assert killed.returncode == -signal.SIGKILL
    world.reset_group("latest")
    if way == "run":
        with pytest.raises(VerificationFailed, match="or skipped"):
            world.run(recovery)
    else:
        world.cancel(recovery)
    gaps = world.open().ledger.gaps.list("orders")
    assert {(gap.cause, gap.certainty) for gap in gaps} == {(Cause.SKIPPED, Certainty.POSSIBLE)}
    wait_until(lambda: not world.find_rest(), what="the rest is read")
    named = {(g.partition, at) for g in gaps for at in range(g.start or 0, g.end or 0)}
    assert find_left(world) == named
