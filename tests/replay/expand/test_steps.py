"""Each step's four verbs. SIGKILL in each of them: tests/crash/test_expand.py."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
from rich.console import Console

from backlog.errors import Refused
from backlog.ledger import OPERATOR
from backlog.values import Recovery, RecoveryState
from fanout.launchers import Role
from fanout.retention import give_back
from replay.expand_context import ExpandContext
from replay.interrupts import Interrupts
from replay.steps.expand import STEPS
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


def test_each_step_is_taken_back_and_done_again(world: World) -> None:
    """Start, rollback, start, complete, over all ten; a topic that was deleted is not made again."""
    recovery = world.plan_approved(rate=0.001)
    assert [step.name for step in STEPS] == [
        "check_source",
        "hold_retention",
        "stop_consumers",
        "create_topic",
        "canary",
        "drain",
        "cut_over",
        "restore",
        "verify",
        "remove_topic",
    ]
    with at_work(world, recovery) as context:
        context.workspace.ledger.recoveries.advance(recovery.id, RecoveryState.RUNNING, "tester")
        for step in STEPS:
            step.validate(context)
            context.begin(step.name)
            step.start(context)
            if step.name != "create_topic":
                step.rollback(context)
                check_taken_back(world, context, step.name)
                step.start(context)
            step.complete(context)
            context.end(step.name)
            world.publish(40)
        context.workspace.ledger.recoveries.advance(recovery.id, RecoveryState.VERIFIED, "tester")
    assert judge(world, recovery) == []


def check_taken_back(world: World, context: ExpandContext, step: str) -> None:
    ledger = context.workspace.ledger
    if step == "hold_retention":
        # Much is unread still, so it stays raised for a while, for whoever reads it.
        (hold,) = ledger.holds.list(open_only=True)
        assert hold.holder == OPERATOR
        give_back(ledger, context.admin, hold)
    if step == "stop_consumers":
        assert len(world.list_pids(Role.ORIGINAL)) == 2
    if step in ("canary", "drain"):
        assert context.find_unread() == {}
        assert world.list_pids(Role.RECOVERY, context.recovery) == []


def test_a_temporary_topic_that_was_taken_back_is_not_made_again(world: World) -> None:
    """Its group may have commits, which would skip what is in the new one."""
    recovery = world.plan_approved()
    (step,) = (step for step in STEPS if step.name == "create_topic")
    with at_work(world, recovery) as context:
        for _ in range(2):
            step.start(context)
        step.complete(context)
        step.rollback(context)
        step.rollback(context)
        with pytest.raises(Refused, match="deleted already"):
            step.start(context)
