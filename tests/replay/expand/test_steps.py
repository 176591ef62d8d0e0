"""Each step's verbs, what cancel gives back, and how things stand after a bad end."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer
from rich.console import Console

from backlogctl.errors import Refused
from backlogctl.fanout.launchers import Role
from backlogctl.fanout.retention import restore_retention
from backlogctl.kafka.admin import delete_topic, describe_group_state
from backlogctl.ledger import OPERATOR
from backlogctl.ledger.steps import has_stopped_consumers
from backlogctl.replay.engine.interrupts import Interrupts
from backlogctl.replay.kinds.expand.closing import remove_temporary_topic
from backlogctl.replay.kinds.expand.context import ExpandContext
from backlogctl.replay.kinds.expand.steps import STEPS, close_layout
from backlogctl.replay.present.status import find_status
from backlogctl.values import Recovery, RecoveryState, Step
from tests.kit.kafka import join
from tests.replay.expand.oracle import judge
from tests.replay.expand.world import REPLICAS, WITHIN, World


@contextlib.contextmanager
def at_work(world: World, recovery: Recovery) -> Iterator[ExpandContext]:
    """A runner's context, with the lease."""
    workspace = world.open()
    with workspace.ledger.leases.hold(recovery.id) as lease:
        context = ExpandContext(
            workspace=workspace,
            recovery=workspace.ledger.recoveries.get(recovery.id),
            stream=workspace.config.stream("orders"),
            lease=lease,
            interrupts=Interrupts(),
            console=Console(file=world.told),
        )
        context.open()
        try:
            yield context
        except BaseException as error:
            context.close(error)
            raise
        context.close(None)


NAMES = [
    "check_source",
    "hold_retention",
    "create_topic",
    "stop_consumers",
    "canary",
    "drain",
    "cut_over",
    "restore",
    "verify",
    "remove_topic",
]


def take(context: ExpandContext, step: Step[ExpandContext]) -> None:
    """A step as the runner takes it, and started once more, as after a crash."""
    step.validate(context)
    context.begin(step.name)
    step.start(context)
    step.start(context)
    step.complete(context)
    context.end(step.name)


def test_each_step_may_be_started_again(world: World) -> None:
    """Over all ten; a topic that was deleted is not made again."""
    recovery = world.plan_approved(rate=0.001)
    assert [step.name for step in STEPS] == NAMES
    with at_work(world, recovery) as context:
        context.workspace.ledger.recoveries.advance(recovery.id, RecoveryState.RUNNING, "tester")
        for step in STEPS:
            if step.name == "remove_topic":
                step.start(context)  # a second start finds it gone
            take(context, step)
            if step.name not in NAMES[-3:]:
                world.publish(40)
        context.workspace.ledger.recoveries.advance(recovery.id, RecoveryState.VERIFIED, "tester")
    world.release_holds()  # much came meanwhile: the retention stayed raised for who reads it
    assert judge(world, recovery) == []


@pytest.mark.parametrize("last", ["hold_retention", "create_topic", "stop_consumers", "canary"])
def test_cancel_gives_back_what_the_steps_took(world: World, last: str) -> None:
    """Whatever step it comes after; what was relayed is handled first."""
    recovery = world.plan_approved(rate=0.001)
    with at_work(world, recovery) as context:
        ledger = context.workspace.ledger
        ledger.recoveries.advance(recovery.id, RecoveryState.RUNNING, "tester")
        for step in STEPS[: NAMES.index(last) + 1]:
            take(context, step)
        close_layout(context)
        # Much is unread still, so it stays raised for a while, for whoever reads it.
        (hold,) = ledger.holds.list(open_only=True)
        assert hold.holder == OPERATOR
        restore_retention(ledger, context.admin, hold)
        assert not has_stopped_consumers(ledger.steps.list(recovery.id))
    assert len(world.list_pids(Role.ORIGINAL)) == 2
    assert world.list_pids(Role.RECOVERY, recovery) == []


def test_a_temporary_topic_that_was_deleted_is_not_made_again(world: World) -> None:
    """Its group may have commits, which would skip what is in the new one."""
    recovery = world.plan_approved()
    (step,) = (step for step in STEPS if step.name == "create_topic")
    with at_work(world, recovery) as context:
        for _ in range(2):
            step.start(context)
        step.complete(context)
        for _ in range(2):
            remove_temporary_topic(context)
        with pytest.raises(Refused, match="deleted already"):
            step.start(context)


def test_a_group_that_could_not_be_deleted_goes_with_the_next_run(world: World) -> None:
    recovery = world.plan_approved()
    group, topic = recovery.plan["recovery_group"], recovery.plan["temporary"]["topic"]
    members: list[Consumer] = []
    world.at("p4.10.verified", lambda: members.append(join(world.properties, group, topic)))
    world.run(recovery)
    told = " ".join(world.told.getvalue().split())
    assert f"group {group} is still there: could not delete it: the group is active" in told
    members[0].close()
    world.publish(400)
    again = world.plan_approved()
    world.run(again)
    assert describe_group_state(world.properties, group).state == "dead"
    assert judge(world, again) == []


SLOW = 5.0  # of each recovery consumer, messages a second


def show(world: World, recovery_id: str) -> dict[str, Any]:
    found = world.call("show", recovery_id, "--json").document["standing"]
    assert isinstance(found, dict)
    return found


def test_a_consumer_that_came_back_ends_with_who_reads_and_what_is_where(world: World) -> None:
    """The same in the error, `show`, `status` and `consumers status`; `consumers stop` knows us."""
    recovery = world.plan_approved(rate=1)
    world.set_speed(Role.RECOVERY, SLOW)
    runner = world.start("run", recovery.id, "--json")
    world.wait_for_drain(recovery, runner)

    # While it runs: a runner is at it, and our guard is no stranger in the group.
    seen = show(world, recovery.id)
    assert seen["reads"] == "recovery"
    assert seen["recovery_consumers"] == recovery.plan["consumers"]
    assert seen["runner"]
    assert seen["next_commands"] == [f"backlogctl show {recovery.id} --watch"]
    stopped = world.call("consumers", "stop", "orders", "--json")
    assert stopped.document["members"] == []
    assert len(stopped.document["guards"]) == 1
    assert "still has" not in stopped.err

    world.start_intruder()
    out, err = runner.communicate(timeout=WITHIN)
    assert runner.returncode == 1, err

    told = json.loads(out)
    assert told["error"]["code"] == "consumer_came_back", told
    standing = told["standing"]
    assert standing["state"] == "failed"
    assert standing["reads"] == "originals"  # the intruder is a member of that group
    assert standing["originals"] == 1
    assert standing["stopped"] == f"the {REPLICAS} consumers of group {world.group}"
    only = standing["temporary"]
    assert only["topic"] == recovery.plan["temporary"]["topic"]
    assert 0 < only["messages"] <= 1_600
    assert standing["retention_held"] == []
    assert standing["next_commands"] == [f"backlogctl run {recovery.id}"]

    # On record, for the page and the report, which do not ask the brokers.
    workspace = world.open()
    kept = find_status(workspace, world.read(recovery), ask=False)
    assert kept == standing

    said = world.call("show", recovery.id).out
    assert "only in the temporary topic" in said
    (status,) = world.call("status", "--json", "orders").document["streams"]
    assert [one["recovery"] for one in status["standings"]] == [recovery.id]
    left = show(world, recovery.id)["temporary"]["messages"]
    assert status["standings"][0]["temporary"]["messages"] == left
    assert f"backlogctl run {recovery.id}" in world.call("status", "orders").out
    consumers = world.call("consumers", "status", "orders")
    assert f"{recovery.id} is failed" in consumers.out
    assert f"backlogctl run {recovery.id}" in consumers.out


def test_a_runner_that_was_killed_is_told_by_everybody_who_looks(world: World) -> None:
    """Nobody works on it; its local consumers read on what was relayed."""
    recovery = world.plan_approved(rate=1)
    world.set_speed(Role.RECOVERY, SLOW)
    runner = world.start("run", recovery.id)
    world.wait_for_drain(recovery, runner)
    os.kill(runner.pid, signal.SIGKILL)
    runner.wait(WITHIN)

    standing = show(world, recovery.id)
    assert (standing["state"], standing["runner"]) == ("running", None)
    assert standing["reads"] == "recovery"
    assert standing["recovery_consumers"] == recovery.plan["consumers"]
    assert standing["temporary"]["messages"] > 0
    assert standing["next_commands"] == [f"backlogctl run {recovery.id}"]
    for command in (("show", recovery.id), ("consumers", "status", "orders")):
        said = world.call(*command).out
        assert "nobody works on it" in " ".join(said.replace("│", " ").split())

    world.set_speed(Role.RECOVERY, None)
    world.run(recovery)
    assert judge(world, recovery) == []
    assert world.call("show", recovery.id, "--json").document["standing"] is None


def test_what_is_in_the_temporary_topic_is_unknown_once_that_is_gone(world: World) -> None:
    recovery = world.plan_approved(rate=1)
    world.set_speed(Role.RECOVERY, SLOW)
    runner = world.start("run", recovery.id, "--json")
    world.wait_for_drain(recovery, runner)
    known = world.open().ledger.temporary_topics.get(recovery.id)
    assert known is not None
    assert known.topic_id is not None
    delete_topic(world.properties, known.name, known.topic_id)
    out, _ = runner.communicate(timeout=WITHIN)

    standing = json.loads(out)["standing"]
    assert standing["reads"] == "nobody"
    assert standing["temporary"]["messages"] is None
    assert "is gone" in standing["problem"]
    assert standing["temporary"]["last"]["messages"] > 0
    assert standing["temporary"]["last"]["at"]
