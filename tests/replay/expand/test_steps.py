"""Each step's verbs, and what cancel gives back. SIGKILL in each of them: tests/crash/test_expand.py."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer
from rich.console import Console

from backlogctl.errors import Refused
from backlogctl.fanout.launchers import Role
from backlogctl.fanout.retention import restore_retention
from backlogctl.kafka.admin import describe_group_state
from backlogctl.ledger import OPERATOR
from backlogctl.ledger.steps import has_stopped_consumers
from backlogctl.replay.engine.interrupts import Interrupts
from backlogctl.replay.kinds.expand.closing import remove_temporary_topic
from backlogctl.replay.kinds.expand.context import ExpandContext
from backlogctl.replay.kinds.expand.steps import STEPS, close_layout
from backlogctl.values import Recovery, RecoveryState, Step
from tests.kafka_tools import join
from tests.replay.expand.oracle import judge
from tests.replay.expand.world import World


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
