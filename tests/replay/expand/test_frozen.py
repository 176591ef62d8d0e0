"""Fault 2 of an expansion: a run stands still in mid-relay, and wakes up when all has run out.

The run alone, or its machine: with its relays, in the middle of a transaction, and the consumers.
Meanwhile end the guard's session, the relays' transactions and the recovery's lease.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterable
from contextlib import suppress

import pytest

from backlogctl.errors import KafkaFailure, LeaseHeld
from backlogctl.fanout.launchers import Role
from backlogctl.fanout.unread import Lags
from backlogctl.kafka.clients import make_admin
from backlogctl.kafka.markers import find_hidden
from backlogctl.replay.consumers.fleet import BrokerRetry
from backlogctl.replay.kinds.expand import closing
from backlogctl.replay.kinds.expand.context import ExpandContext
from backlogctl.values import Recovery
from tests.kit.kafka import wait_until
from tests.kit.recoveries import PAST, change_ledger
from tests.replay.expand.oracle import judge, read_log
from tests.replay.expand.test_faults import SLOW
from tests.replay.expand.world import WITHIN, World

pytestmark = pytest.mark.timeout(900)

WHO = pytest.mark.parametrize("who", ["run", "machine"])
# The canary lasts 15 s at the planned speed: in three times that, a consumer would be too slow.
PLANNED, FROZEN_SECONDS = 60.0, 45.0


def send(pids: Iterable[int], what: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, what)


def list_undecided(world: World, recovery: Recovery) -> dict[int, int]:
    layout = recovery.plan["temporary"]
    return find_hidden(
        make_admin(world.properties), layout["topic"], dict.fromkeys(range(layout["partitions"]))
    )


def stop_relays(world: World, recovery: Recovery) -> list[int]:
    """In the middle of a transaction."""
    relays = world.list_relays()
    while True:
        world.publish(20)
        send(relays, signal.SIGSTOP)
        if list_undecided(world, recovery):
            return relays
        send(relays, signal.SIGCONT)


def freeze(
    world: World, recovery: Recovery, run: subprocess.Popen[str], others: list[int]
) -> list[int]:
    """The run and these processes stand still, until all has run out; those to wake up."""
    send(others, signal.SIGSTOP)
    world.freeze(run, recovery)
    change_ledger(world.open(), f"UPDATE backlog_recoveries SET lease_until = '{PAST}'")
    wait_until(lambda: not list_undecided(world, recovery), what="its transactions are aborted")
    wait_until(lambda: not world.find_members(), what="the guard's session has ended")
    return [run.pid, *others]


def start_drain(world: World) -> tuple[Recovery, subprocess.Popen[str]]:
    recovery = world.plan_approved(rate=1)
    world.set_speed(Role.RECOVERY, SLOW)
    run = world.start("run", recovery.id, "--json")
    world.wait_for_drain(recovery, run)
    return recovery, run


def wake_up(world: World, pids: list[int], run: subprocess.Popen[str], code: int = 0) -> None:
    send(pids, signal.SIGCONT)
    world.publish(100)
    world.set_speed(Role.RECOVERY, None)
    out, err = run.communicate(timeout=WITHIN)
    assert run.returncode == code, (out, err)


def test_a_call_that_was_under_way_says_nothing_of_the_brokers() -> None:
    """They may have answered; who slept did not hear it."""
    said: list[str] = []
    failures = [KafkaFailure("timed out", subject="topic orders", retryable=True)]

    def ask() -> int:
        if failures:
            raise failures.pop()
        return 7

    brokers = BrokerRetry(lambda: None, said.append)
    assert brokers.ask(ask) == 7
    assert brokers.away > 0.0, "and nobody is measured meanwhile"
    assert said == []


@WHO
def test_fault_02_it_wakes_up_in_the_drain_and_goes_on(world: World, who: str) -> None:
    recovery, run = start_drain(world)
    others = []
    if who == "machine":
        others = [*stop_relays(world, recovery), *world.list_pids(Role.RECOVERY, recovery)]
    wake_up(world, freeze(world, recovery, run, others), run)
    assert judge(world, recovery) == []


@WHO
def test_fault_02_it_wakes_up_in_the_canary_and_calls_nobody_slow(world: World, who: str) -> None:
    """What the consumer did meanwhile, and when, nobody saw."""
    recovery = world.plan_approved(rate=PLANNED)
    topic = recovery.plan["temporary"]["topic"]
    world.set_speed(Role.RECOVERY, PLANNED)  # it is not through before the run stands still
    run = world.start("run", recovery.id, "--json")
    wait_until(lambda: any(line.topic == topic for line in read_log(world)), what="the canary")
    others = []
    if who == "machine":
        others = [*world.list_relays(), *world.list_pids(Role.RECOVERY, recovery)]
    began = time.monotonic()
    pids = freeze(world, recovery, run, others)
    time.sleep(max(0.0, began + FROZEN_SECONDS - time.monotonic()))  # what it measures is time
    wake_up(world, pids, run)
    assert judge(world, recovery) == []


def test_fault_02_its_relays_wake_up_in_a_transaction_while_another_relays(world: World) -> None:
    recovery, run = start_drain(world)
    pids = freeze(world, recovery, run, stop_relays(world, recovery))
    world.at("p4.7.consumers.started", lambda: wake_up(world, pids, run, LeaseHeld.exit_code))
    world.run(recovery)
    assert judge(world, recovery) == []


def test_fault_02_it_wakes_up_when_all_was_cancelled_and_starts_nobody(world: World) -> None:
    """Where it stands still behind its look at the lease: there it is made to lose all."""
    recovery = world.plan_approved(rate=1)
    world.set_speed(Role.RECOVERY, SLOW)
    world.patch.setattr(closing, "LOOK_SECONDS", 0.0)
    sample, starting = ExpandContext.sample, [True]
    world.at("p4.7.consumers.started", starting.clear)

    def sleep(context: ExpandContext) -> Lags:
        if starting:
            return sample(context)
        context.session.abandon()
        context.session.leave()
        context.lease._stopped.set()
        change_ledger(world.open(), f"UPDATE backlog_recoveries SET lease_until = '{PAST}'")
        world.set_speed(Role.RECOVERY, None)
        world.call("cancel", recovery.id)
        context.lease._good_until = 0.0
        raise KafkaFailure("timed out", retryable=True)

    world.patch.setattr(ExpandContext, "sample", sleep)
    with pytest.raises(LeaseHeld):
        world.run(recovery)
    assert "started again" not in world.told.getvalue()
    assert judge(world, recovery, state="cancelled") == []
