"""Recoveries of streams that other people's clients read: each message is handled, by its record."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from backlogctl.clock import Deadline
from backlogctl.fanout.launchers import Role
from backlogctl.kafka.admin import create_topic, describe_group_state, list_offsets
from backlogctl.kafka.clients import Admin
from backlogctl.kafka.raw_fetch import fetch_batches
from backlogctl.values import OffsetRange, Recovery
from tests.clients.test_zoo import POISON, make_poison
from tests.clients.zoo import Client, Place
from tests.kit.kafka import read_all, wait_until
from tests.kit.processes import ROOT
from tests.kit.shop import DONE, LOST, TOTAL, Shop, offload
from tests.replay.conftest import empty_shop
from tests.replay.expand.conftest import MakeWorld, make_world
from tests.replay.expand.oracle import SETTINGS, find_copy_problems, find_layout_problems
from tests.replay.expand.world import PARTITIONS, World
from tests.replay.redrive.world import carry_out, plan, read_sent, run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["empty_shop", "make_world"]

# Whose groups have members: the others cannot be read by several consumers.
MEMBERS = (
    *("java-range", "java-cooperative", "java-map", "java-async", "java-kip848"),
    *("spring-record", "spring-batch", "spring-manual"),
    *("franz", "sarama", "kafkajs", "librdkafka", "kafka-python"),
)
LETTERS = ("connect-sink", "streams", "spring-retry")
SLOW_MS = 200
# As many people's consumers: after each poll, and what is refused is logged.
COMMITS_POLLS, REFUSED = "enable.auto.commit=false", "RebalanceInProgressException"
# The only one that each client knows by itself.
CODEC = "gzip"


def read_record(path: Path) -> list[Place]:
    """What consumers of one topic handled."""
    lines = path.read_text().splitlines() if path.exists() else []
    return [(int(partition), int(offset)) for partition, offset in map(str.split, lines)]


def list_codecs(world: World, recovery: Recovery) -> set[str]:
    """Those of the temporary topic."""
    topic, count = recovery.plan["temporary"]["topic"], recovery.plan["temporary"]["partitions"]
    ends = list_offsets(world.properties, topic, range(count), "latest")
    ranges = [OffsetRange(number, 0, end) for number, end in ends.items()]
    found = fetch_batches(world.properties, topic, ranges)
    return {one.codec for batches in found for one in batches.headers if not one.is_control}


class ZooWorld:
    """The world of expansions, whose consumers are those of a client."""

    def __init__(self, world: World, kind: str, *settings: str) -> None:
        self.world, self.record = world, world.directory / "record"
        world.set_consumers(
            command=[
                sys.executable,
                "-m",
                "tests.clients.zoo",
                kind,
                str(self.record),
                str(SLOW_MS),
                *settings,
            ],
            environment={"PYTHONPATH": str(ROOT)},
        )
        world.publish(1_200, compression_type=CODEC)
        world.start_originals()

    def handled(self, topic: str) -> list[Place]:
        return read_record(Path(f"{self.record}.{topic}"))

    def find_handled(self) -> set[tuple[str, int]]:
        """(key, sequence) of what was handled from the stream's own topic."""
        places = set(self.handled(self.world.topic))
        return {
            ((message.key() or b"").decode(), int(message.value() or 0))
            for message in read_all(self.world.properties, self.world.topic, range(PARTITIONS))
            if (message.partition(), message.offset()) in places
        }

    def check_handled(self, recovery: Recovery) -> None:
        """All that was relayed was handled by its consumers, and the rest by those of before."""
        world = self.world
        copied = world.list_copied()
        assert copied
        assert len(set(self.handled(recovery.plan["temporary"]["topic"]))) == len(copied)
        wanted = {(key, n) for key, count in world.produced.items() for n in range(count)}
        wait_until(lambda: self.find_handled() | copied == wanted, 120, "all is handled")
        assert find_copy_problems(world, recovery) == []
        assert find_layout_problems(world, recovery, dict.fromkeys(SETTINGS), "verified", "") == []


@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", MEMBERS)
def test_an_expansion_of_its_consumers(make_world: MakeWorld, kind: str) -> None:
    zoo = ZooWorld(make_world(backlog=0, start=False), kind)
    world = zoo.world
    wait_until(lambda: zoo.handled(world.topic), 120, "its consumers work")
    recovery = world.plan_approved()
    codecs: set[str] = set()
    world.at("p4.9.fenced", lambda: codecs.update(list_codecs(world, recovery)))
    world.run(recovery)
    assert codecs == {CODEC}
    zoo.check_handled(recovery)


@pytest.mark.timeout(600)
def test_fault_118_commits_that_a_rebalance_refused(make_world: MakeWorld) -> None:
    """A consumer is killed. Until its session ends the others go on, and their commits are refused;
    then nothing more comes, and nobody commits what they handled last."""
    zoo = ZooWorld(make_world(backlog=0, start=False), "java-cooperative", COMMITS_POLLS)
    world = zoo.world
    wait_until(lambda: zoo.handled(world.topic), 120, "its consumers work")
    recovery = world.plan_approved()
    group, count = recovery.plan["recovery_group"], recovery.plan["consumers"]
    logs = world.fleet(Role.RECOVERY, recovery).directory

    def is_together() -> bool:
        now = describe_group_state(world.properties, group)
        return now.state == "stable" and sum(bool(m.partitions) for m in now.members) == count

    def is_refused() -> bool:
        return any(REFUSED in log.read_text() for log in logs.glob("consumer-*.log"))

    def lose_commits() -> None:
        wait_until(is_together, 120, "they work together")
        for log in logs.glob("consumer-*.log"):
            log.write_text("")  # they may have been refused while they came together
        os.kill(world.list_pids(Role.RECOVERY, recovery)[-1], signal.SIGKILL)
        with world.publishing(each_second=20):
            wait_until(is_refused, 60, "a commit is refused")
        assert not is_together()

    world.at("p4.7.consumers.started", lose_commits)
    world.run(recovery)
    told = world.told.getvalue()
    assert told.count("are started again, once") == 1
    assert "cannot handle" not in told
    zoo.check_handled(recovery)


# Each in a group of its own: they handle what is put back for one of them.
TOGETHER = {
    "those that most have": (
        *("java-range", "java-kip848", "java-assign", "spring-record", "franz"),
        *("sarama", "kafkajs", "librdkafka", "kafka-python"),
    ),
    "the others": (
        *("java-cooperative", "java-map", "java-async", "spring-batch", "spring-manual"),
        *("spring-retry", "streams", "connect-sink", "flink", "spark"),
    ),
}


@pytest.mark.timeout(900)
@pytest.mark.parametrize("kinds", TOGETHER.values(), ids=TOGETHER)
def test_what_is_put_back_is_handled_once(
    empty_shop: Shop,
    spark: SparkSession,
    admin: Admin,
    tmp_path: Path,
    record_property: Callable[[str, object], None],
    kinds: Sequence[str],
) -> None:
    """By a rebuild, and from the archive of an offload."""
    shop, unread = empty_shop, TOTAL - DONE - LOST
    shop.lose_orders()
    shop.write_config(deliver="topic")  # for all groups, as the command asks
    out = f"{shop.topic}-out"
    create_topic(admin, out, partitions=1, replication=1, deadline=Deadline(90))
    with ExitStack() as stack:
        clients = []
        for kind in kinds:
            record_property("client", kind)
            place = (kind, shop.bootstrap, shop.topic, f"{shop.group}-{kind}")
            client = Client(*place, record=tmp_path / f"{kind}.record", out=out, dlq=out)
            clients.append(stack.enter_context(client))
        for client in clients:
            client.await_handled(unread)
        rebuilt = shop.call("plan", "rebuild", "orders", "--json").document["id"]
        run(shop, rebuilt)
        shop.check_same_set()
        for client in clients:
            client.await_handled(unread + LOST)
        archive = offload(shop, spark)
        put_back = carry_out(shop, "--from", f"archive:{archive}")
        assert put_back["counts"]["staged"] == unread + LOST
        for client in clients:
            client.await_handled(2 * (unread + LOST))
            client.stop()
            assert len(client.handled()) == 2 * (unread + LOST), client.kind


@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", LETTERS)
def test_its_dead_letters_are_put_back(
    empty_shop: Shop, spark: SparkSession, admin: Admin, tmp_path: Path, kind: str
) -> None:
    """The letter goes where it came from, as it was; its topic keeps it."""
    del spark
    shop, out = empty_shop, f"{empty_shop.topic}-out"
    dead = f"{shop.topic}-dlt" if kind == "spring-retry" else f"{shop.topic}-dead"
    for name in (out, dead):
        create_topic(admin, name, partitions=1, replication=1, deadline=Deadline(90))
    make_poison(shop.properties, shop.topic)
    record = tmp_path / "record"
    place = (kind, shop.bootstrap, shop.topic, shop.group)
    with Client(*place, record=record, out=out, dlq=dead) as client:
        client.await_handled(10)
        wait_until(
            lambda: list_offsets(shop.properties, dead, [0], "latest") == {0: 1}, what="it is dead"
        )
        client.stop()
    shop.write_config(source=None)
    planned = carry_out(shop, "--from", f"dlq:{dead}", "--all")
    assert planned["counts"]["staged"] == 1
    (sent,) = read_sent(shop)
    assert (sent.partition, sent.value, sent.headers) == (0, b"poison", ())
    # It is known by the place that its headers name.
    refused = plan(shop, "--from", "log", "--offsets", f"0:{POISON}", code=5)
    assert "put back already" in refused["message"]
