"""What other people's clusters and clients are like: limits, quotas, large messages, static members,
two groups on one topic, a broker that is away.

What they handle is judged as in any expansion.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from backlogctl.clock import Deadline
from backlogctl.errors import Refused
from backlogctl.fanout.launchers import Role
from backlogctl.fanout.retention import RETENTION_MS
from backlogctl.kafka.admin import alter_topic_config, create_topic
from backlogctl.kafka.clients import make_admin, make_producer
from backlogctl.monitoring.doctor.facts import list_brokers
from backlogctl.replay.kinds import EXPAND
from backlogctl.sandbox.embedded import EmbeddedKafka
from backlogctl.values import Recovery
from tests.kit.java import run_line, write_script
from tests.kit.kafka import wait_until
from tests.kit.refusing import Api, Refusing, start_refusing
from tests.kit.transactions import set_quotas
from tests.replay.expand.conftest import MakeWorld
from tests.replay.expand.oracle import await_handled, find_disorder, find_unhandled, judge
from tests.replay.expand.world import CONSUMER, KEYS, PARTITIONS, REPLICAS, World

LARGE = 5_000_000


def test_fault_129_groups_take_fewer_members(make_world: MakeWorld, tmp_path: Path) -> None:
    with EmbeddedKafka.start(tmp_path / "kafka", properties={"group.max.size": "3"}) as kafka:
        world = make_world(bootstrap=kafka.bootstrap)
        recovery = world.plan_approved(rate=1)
        plan = EXPAND.read_plan(recovery)
        assert (plan.consumers, plan.temporary.partitions) == (3, 4)
        assert "the brokers' `group.max.size` keeps it at 3 consumers" in plan.warnings
        world.run(recovery)
        assert judge(world, recovery) == []
        world.end()


def test_fault_182_a_cluster_that_changes_no_settings(
    make_world: MakeWorld, kafka: EmbeddedKafka
) -> None:
    """What was planned while it did is refused before anything begins, and is cancelled; where
    retention need not be raised, all goes on."""
    with start_refusing(kafka.bootstrap) as proxy:
        world = make_world(bootstrap=proxy.bootstrap)
        direct = {"bootstrap.servers": kafka.bootstrap}
        alter_topic_config(direct, world.topic, {RETENTION_MS: "300000"})
        held = world.plan_approved(rate=1)
        assert EXPAND.read_plan(held).hold.needed
        proxy.refusals.refuse(Refusing.MISSING, [Api.INCREMENTAL_ALTER_CONFIGS])
        with pytest.raises(Refused, match="has to be raised, and cannot be"):
            world.run(held)
        assert len(world.list_pids(Role.ORIGINAL)) == REPLICAS
        assert world.cancel(held).state == "cancelled"
        assert world.open().ledger.holds.list(stream=world.stream) == ()
        alter_topic_config(direct, world.topic, {RETENTION_MS: None})
        recovery = world.plan_approved(rate=1)
        world.run(recovery)
        assert judge(world, recovery) == []
        world.end()


def test_large_messages(make_world: MakeWorld) -> None:
    """Of 5 MB, which the topic takes and the brokers' default does not."""
    limit = {"max.message.bytes": str(2 * LARGE)}
    world = make_world(backlog=200, config=limit)
    larger = {"partitioner": "murmur2_random", "message.max.bytes": str(2 * LARGE)}
    producer = make_producer(world.properties, larger)
    for _ in range(8):
        key = f"k{world.produced.total() % KEYS}"
        value = str(world.produced[key])
        producer.produce(world.topic, value, key, headers={"scan": b"x" * LARGE})
        world.produced[key] += 1
        assert producer.flush(90) == 0
    recovery = world.plan_approved(rate=1)
    world.run(recovery)
    assert judge(world, recovery) == []


def test_quotas_that_throttle_everybody(make_world: MakeWorld, tmp_path: Path) -> None:
    with EmbeddedKafka.start(tmp_path / "kafka") as kafka:
        world = make_world(bootstrap=kafka.bootstrap)
        write_script(tmp_path / "kafka-configs.sh", "ConfigCommand")
        run_line(
            f"kafka-configs.sh --bootstrap-server {kafka.bootstrap} --alter --entity-type clients "
            "--entity-default --add-config producer_byte_rate=8000,consumer_byte_rate=20000",
            tmp_path,
        )
        recovery = world.plan_approved(rate=1)
        world.run(recovery)
        assert judge(world, recovery) == []
        events = world.open().ledger.events.list(recovery.id)
        said = [event.detail["message"] for event in events if event.action == "said"]
        assert any("brokers throttled the relays for" in message for message in said)
        world.end()


def test_relays_that_keep_to_a_share_of_a_quota(make_world: MakeWorld, tmp_path: Path) -> None:
    """The plan says so, its times are with that, and nobody is throttled."""
    with EmbeddedKafka.start(tmp_path / "kafka") as kafka:
        world = make_world(bootstrap=kafka.bootstrap)
        set_quotas(world.properties, {"client-id": "backlogctl"}, {"producer_byte_rate": 8000.0})
        place = world.directory / "backlog.yaml"
        document = json.loads(place.read_text())
        document["streams"]["orders"]["limits"] = {"quota_share": "50 %"}
        place.write_text(json.dumps(document))
        recovery = world.plan_approved(rate=1000)
        plan = EXPAND.read_plan(recovery)
        assert plan.writes == (
            "at most 4.0 kB/s: 50 % of the quota of user ANONYMOUS with client.id backlogctl, "
            "8.0 kB/s (`limits.quota_share`)"
        )
        told = next(one for one in plan.warnings if one.startswith("`limits.quota_share` lets"))
        assert "so the drain takes" in told
        world.run(recovery)
        assert judge(world, recovery) == []
        events = world.open().ledger.events.list(recovery.id)
        said = [event.detail["message"] for event in events if event.action == "said"]
        assert f"the relays write {plan.writes}" in said
        assert not [message for message in said if "throttled" in message]
        world.end()


def test_static_members(make_world: MakeWorld) -> None:
    """They do not leave their group: it is empty when their sessions are over (KIP-345)."""
    world = make_world(start=False)
    document = json.loads((world.directory / "backlog.yaml").read_text())
    environment = document["streams"]["orders"]["consumers"]["environment"]
    world.set_consumers(environment={**environment, "STATIC": "yes"})
    world.start_originals()
    wait_until(lambda: "order-service-original" in world.find_members(), what="they have joined")
    recovery = world.plan_approved(rate=1)
    world.run(recovery)
    assert judge(world, recovery) == []


def test_two_groups_of_one_topic(make_world: MakeWorld, tmp_path: Path) -> None:
    """Both are expanded, the second one while the first one's drain is held."""
    world = make_world()
    other = World(
        tmp_path / "other", world.bootstrap, world.topic, f"{world.group}-audit", world.patch,
        stream="audit",
    )  # fmt: skip
    other.directory.mkdir()
    other.produced = world.produced
    place = world.directory / "backlog.yaml"
    document = json.loads(place.read_text())
    document["streams"]["audit"] = {
        **document["streams"]["orders"],
        "group": other.group,
        "consumers": {
            **document["streams"]["orders"]["consumers"],
            "command": [sys.executable, str(CONSUMER)],
            "environment": {"ORDER_LOG": str(other.log), "LOGIN": "{}"},
        },
    }
    place.write_text(json.dumps(document))
    (other.directory / "backlog.yaml").symlink_to(place)
    other.start_originals()
    wait_until(lambda: "order-service-original" in other.find_members(), what="they have joined")
    first = world.plan_approved(rate=1)
    found: list[Recovery] = []

    def expand_the_other() -> None:
        second = other.plan_approved(rate=1)
        other.run(second)
        found.append(second)

    world.at("p4.7.consumers.started", expand_the_other)
    world.run(first)
    assert judge(world, first) == []
    await_handled(other)
    assert find_unhandled(other) == find_disorder(other) == []
    assert str(other.read(found[0]).state) == "verified"


def test_a_broker_of_two_is_away(make_world: MakeWorld, tmp_path: Path) -> None:
    """The copy has as many replicas as the topic: brokers place them on who is away too."""
    with EmbeddedKafka.start(tmp_path / "kafka", brokers=2, heap="384m") as kafka:
        name = "orders-of-two-brokers"
        create_topic(kafka.client_properties, name, partitions=PARTITIONS, replication=2)
        world = make_world(backlog=0, bootstrap=kafka.bootstrap, start=False)
        world.topic = name
        world.write_config()
        world.publish(400)
        world.start_originals()
        kafka.kill(2)
        admin = make_admin(world.properties)
        wait_until(lambda: len(list_brokers(admin, Deadline(30.0))) == 1, what="it is known")
        recovery = world.plan_approved(rate=1)
        world.run(recovery)
        assert judge(world, recovery) == []
        world.end()
