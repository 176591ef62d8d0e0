"""Faults of an expansion, by their number in the design's list."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import pytest
from confluent_kafka.cimpl import NewPartitions

from backlogctl.errors import KafkaFailure, LeaseHeld, PlanStale, Refused
from backlogctl.fanout.launchers import Role
from backlogctl.fanout.quiet import GroupStillCommits
from backlogctl.fanout.relay import pool, session
from backlogctl.fanout.relay.interface import ConsumerCameBack
from backlogctl.kafka.admin import create_topic, list_offsets, read_topic_id
from backlogctl.kafka.clients import make_admin
from backlogctl.kafka.errors import GroupActive
from backlogctl.replay.consumers import fleet
from backlogctl.sandbox.embedded import EmbeddedKafka
from backlogctl.values import Recovery
from tests.kit.kafka import delete_topic, wait_until
from tests.kit.recoveries import PAST, change_ledger
from tests.replay.expand.conftest import MakeWorld
from tests.replay.expand.oracle import SETTINGS, find_layout_problems, judge, read_log
from tests.replay.expand.world import WITHIN, World

SLOW = 5.0  # of each recovery consumer: the drain lasts until the test lets it go


def make_anew(world: World, topic: str, partitions: int) -> None:
    """Deletes a topic and creates another one of its name."""
    delete_topic(world.properties, topic)
    made: list[str] = []

    def create() -> bool:
        made.append(create_topic(world.properties, topic, partitions=partitions, exist_ok=True))
        return read_topic_id(world.properties, topic)[0] == made[-1]

    wait_until(create, what="it is made anew")


def check_nothing_was_made(world: World) -> None:
    names = make_admin(world.properties).list_topics(timeout=10).topics
    assert [name for name in names if name.startswith(f"{world.topic}.")] == []


def check_nothing_was_relayed(world: World, recovery: Recovery) -> None:
    layout = recovery.plan["temporary"]
    ends = list_offsets(world.properties, layout["topic"], range(layout["partitions"]), "latest")
    assert set(ends.values()) == {0}


@pytest.mark.parametrize("moment", ["in the drain", "after the end"])
def test_fault_02_a_stopped_runner_wakes_up_after_another_has_taken_over(
    world: World, moment: str
) -> None:
    recovery = world.plan_approved(rate=1)
    world.set_speed(Role.RECOVERY, SLOW)
    first = world.start("run", recovery.id, "--json")
    world.wait_for_drain(recovery, first)
    world.freeze(first, recovery)
    with pytest.raises(LeaseHeld):
        world.run(recovery)
    change_ledger(world.open(), f"UPDATE backlog_recoveries SET lease_until = '{PAST}'")

    def wake_up() -> None:
        before = world.list_pids(Role.RECOVERY, recovery)
        os.kill(first.pid, signal.SIGCONT)
        out, err = first.communicate(timeout=WITHIN)
        assert first.returncode == LeaseHeld.exit_code, (out, err)
        assert '"lease_held"' in out
        assert world.list_pids(Role.RECOVERY, recovery) == before
        world.publish(100)
        world.set_speed(Role.RECOVERY, None)

    if moment == "in the drain":
        world.at("p4.7.consumers.started", wake_up)
    else:
        world.set_speed(Role.RECOVERY, None)
    world.run(recovery)
    if moment == "after the end":
        wake_up()
    assert judge(world, recovery) == []


@pytest.mark.parametrize("point", ["p4.7.canary.started", "p4.7.consumers.started"])
def test_fault_11_brokers_restart(make_world: MakeWorld, tmp_path: Path, point: str) -> None:
    """In the canary they are waited for, and it is said since when."""
    with EmbeddedKafka.start(tmp_path / "kafka") as kafka:
        world = make_world(bootstrap=kafka.bootstrap)
        recovery = world.plan_approved(rate=1)
        world.set_speed(Role.RECOVERY, SLOW)
        canary = "canary" in point

        killed, ended = threading.Event(), threading.Event()

        def restart() -> None:
            kafka.kill()
            killed.set()
            if canary:
                wait_until(lambda: "have not answered since" in world.told.getvalue())
            kafka.restart()
            world.publish(100)
            world.set_speed(Role.RECOVERY, None)
            ended.wait()  # the broker ends with the thread that started it

        other = threading.Thread(target=restart)

        def begin() -> None:
            other.start()
            assert killed.wait(WITHIN)

        world.at(point, begin)
        try:
            world.run(recovery)
            assert judge(world, recovery) == []
            assert not canary or "answer again, after" in world.told.getvalue()
        finally:
            world.end()
            ended.set()
            other.join()


def test_fault_11_brokers_that_stay_away(make_world: MakeWorld, tmp_path: Path) -> None:
    """As those whose disk is full: the run ends, and the next one goes on."""
    with EmbeddedKafka.start(tmp_path / "kafka") as kafka:
        world = make_world(bootstrap=kafka.bootstrap)
        recovery = world.plan_approved(rate=1)
        world.set_speed(Role.RECOVERY, SLOW)
        for module in (fleet, pool, session):
            world.patch.setattr(module, "PATIENCE_SECONDS", 3.0)
        world.at("p4.7.consumers.started", kafka.kill)
        began = time.monotonic()
        with pytest.raises(KafkaFailure):
            world.run(recovery)
        assert time.monotonic() - began < 2 * WITHIN
        assert world.read(recovery).state == "failed"
        kafka.restart()
        world.set_speed(Role.RECOVERY, None)
        world.run(recovery)
        assert judge(world, recovery) == []
        world.end()


def test_fault_15_a_topic_made_anew_before_the_run(world: World) -> None:
    recovery = world.plan_approved()
    make_anew(world, world.topic, 2)
    with pytest.raises(PlanStale, match="created again"):
        world.run(recovery)
    assert world.read(recovery).state == "approved"
    assert len(world.list_pids(Role.ORIGINAL)) == 2
    check_nothing_was_made(world)


@pytest.mark.parametrize("again", [True, False])
def test_fault_15_a_topic_deleted_in_the_drain(world: World, again: bool) -> None:
    """It stops; what was copied is handled all the same, and the layout restored."""
    recovery = world.plan_approved(rate=1)
    world.set_speed(Role.RECOVERY, SLOW)

    def replace() -> None:
        if again:
            make_anew(world, world.topic, 2)
        else:
            delete_topic(world.properties, world.topic)

    world.at("p4.7.consumers.started", replace)
    with pytest.raises(PlanStale, match="was deleted"):
        world.run(recovery)
    assert world.read(recovery).state == "failed"
    assert world.list_processes() == {}
    with pytest.raises(PlanStale):
        world.run(recovery)
    world.set_speed(Role.RECOVERY, None)
    assert world.cancel(recovery).state == "cancelled"
    if again:
        unset = dict.fromkeys(SETTINGS)
        wait_until(lambda: not find_layout_problems(world, recovery, unset, "cancelled"))
    check_nothing_was_made(world)
    assert len(world.list_pids(Role.ORIGINAL)) == 2
    handled = {(line.key, line.sequence) for line in read_log(world)}
    assert world.list_copied() <= handled


def add_partition(world: World) -> None:
    admin = make_admin(world.properties)
    admin.create_partitions([NewPartitions(world.topic, 3)])[world.topic].result(60)
    wait_until(lambda: read_topic_id(world.properties, world.topic)[1] == 3)


def test_fault_16_partitions_added_after_the_plan(world: World) -> None:
    recovery = world.plan_approved()
    add_partition(world)
    with pytest.raises(PlanStale, match="3 partitions"):
        world.run(recovery)
    assert world.read(recovery).state == "approved"
    world.cancel(recovery)
    assert world.plan().plan["temporary"]["partitions"] == 6


def test_fault_16_partitions_added_in_the_drain(world: World) -> None:
    recovery = world.plan_approved(rate=1)
    world.set_speed(Role.RECOVERY, SLOW)
    world.at("p4.7.consumers.started", lambda: add_partition(world))
    with pytest.raises(PlanStale, match="3 partitions"):
        world.run(recovery)
    world.set_speed(Role.RECOVERY, None)
    assert world.cancel(recovery).state == "cancelled"
    assert judge(world, recovery, state="cancelled") == []


def test_fault_25_a_group_that_does_not_get_empty(world: World) -> None:
    world.stop_within = "2s"
    world.write_config()
    recovery = world.plan_approved()
    member = world.start_intruder()
    wait_until(lambda: "order-service-intruder" in world.find_members())
    with pytest.raises(GroupActive, match="order-service-intruder at"):
        world.run(recovery)
    member.terminate()
    member.wait(WITHIN)
    assert world.read(recovery).state == "failed"
    check_nothing_was_relayed(world, recovery)
    world.publish(800)
    wait_until(lambda: not world.find_members(), what="the group is empty")
    world.run(recovery)
    assert judge(world, recovery) == []


def test_fault_66_a_consumer_that_is_no_member_still_commits(world: World) -> None:
    recovery = world.plan_approved()
    with (
        world.silent_intruder("p4.3.stopped"),
        pytest.raises(GroupStillCommits, match="still running") as caught,
    ):
        world.run(recovery)
    (intruder,) = world.started
    intruder.terminate()
    intruder.wait(WITHIN)
    assert "stop it" in caught.value.hint
    assert world.read(recovery).state == "failed"
    check_nothing_was_relayed(world, recovery)
    world.run(recovery)
    assert judge(world, recovery) == []


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_fault_65_a_consumer_comes_back_in_the_drain(world: World, protocol: str) -> None:
    """The run stops and names it; when it is gone the run goes on, and nothing is lost."""
    recovery = world.plan_approved(rate=1)
    world.set_speed(Role.RECOVERY, SLOW)

    def come_back() -> None:
        world.start_intruder(protocol)
        with world.publishing(each_second=300):
            wait_until(lambda: "order-service-intruder" in world.find_members())

    world.at("p4.7.consumers.started", come_back)
    with pytest.raises(ConsumerCameBack, match="order-service-intruder at"):
        world.run(recovery)
    assert world.read(recovery).state == "failed"
    world.publish(100)
    intruder = world.started[-1]
    intruder.terminate()
    intruder.wait(WITHIN)
    world.set_speed(Role.RECOVERY, None)
    world.run(recovery)
    assert judge(world, recovery, whole=False, ordered=False) == []


def test_fault_60_a_temporary_topic_that_somebody_made_anew(world: World) -> None:
    """Never a topic of another id is deleted; cancel restores all else."""
    recovery = world.plan_approved(rate=1)
    name = recovery.plan["temporary"]["topic"]
    world.at("p4.10.verified", lambda: make_anew(world, name, 4))
    with pytest.raises(Refused, match="left alone"):
        world.run(recovery)
    assert world.read(recovery).state == "failed"
    assert len(world.list_pids(Role.ORIGINAL)) == 2
    with pytest.raises(PlanStale, match="was replaced"):
        world.run(recovery)
    delete_topic(world.properties, name)
    assert world.cancel(recovery).state == "cancelled"
    check_nothing_was_made(world)
    assert len(world.list_pids(Role.ORIGINAL)) == 2
    assert world.list_processes(without=(Role.ORIGINAL,)) == {}
    assert world.open().ledger.holds.list(open_only=True) == ()
