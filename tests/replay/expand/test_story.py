"""The whole story, as people run it."""

from __future__ import annotations

from backlogctl.fanout.launchers import Role
from backlogctl.kafka.admin import committed_offsets
from backlogctl.kafka.clients import make_producer
from tests.kafka_tools import set_offsets_raw
from tests.replay.expand.conftest import MakeWorld
from tests.replay.expand.oracle import (
    await_handled,
    find_disorder,
    find_layout_problems,
    find_unhandled,
    judge,
)
from tests.replay.expand.world import World


def test_fault_64_by_the_command_line_with_nothing_shortened(make_world: MakeWorld) -> None:
    """Set retention is raised and given back; another group's offsets are left alone."""
    world = make_world(config={"retention.ms": "600000"})
    world.set_speed(Role.ORIGINAL, 5)  # the backlog outlasts the start of three commands
    audit = f"{world.group}-audit"
    set_offsets_raw(world.properties, audit, world.topic, {0: 5, 1: 7})
    planned = world.call("plan", "expand", "orders", "--rate", "20", "--json", whole=True).document
    assert planned["other_groups"] == [audit]
    world.call("approve", planned["id"], "--by", "Ada", whole=True)
    done = world.call("run", planned["id"], "--json", whole=True).document
    assert done["state"] == "verified"
    assert done["counts"]["relayed"] == done["counts"]["handled"] > 1000
    rate = done["counts"]["drained_per_second"]
    assert rate is None or rate > 0, "None where it took less than two samples"
    again = world.call("run", planned["id"], "--json", whole=True).document
    assert again["already_done"]
    shown = world.call("show", planned["id"], "--json", whole=True).document
    assert shown["events_intact"]
    report = world.call("report", planned["id"], "--json", whole=True).document
    relayed = done["counts"]["relayed"]
    assert report["unexplained"]["told"] == (
        f"Nothing: relayed = written = handled, {relayed:,} messages."
    )
    assert sum(row[2] for row in report["verification"]["partitions"]) == relayed
    assert report["steps"][-1]["step"] == "remove_topic"
    assert report["burndown"]
    assert report["record"]["intact"]

    recovery = world.open().ledger.recoveries.get(planned["id"])
    await_handled(world)
    assert find_unhandled(world) == []
    assert find_disorder(world) == []
    retention = {"retention.ms": "600000", "retention.bytes": None}
    assert find_layout_problems(world, recovery, retention, "verified") == []
    assert committed_offsets(world.properties, audit, world.topic, range(2)) == {0: 5, 1: 7}


def test_producers_go_on_meanwhile(world: World) -> None:
    """What was aborted last in the temporary topic stays in its lag, and is no backlog."""
    recovery = world.plan_approved(rate=40)
    world.set_speed(Role.RECOVERY, 100)
    aborted: list[str] = []

    def abort_some() -> None:
        topic = recovery.plan["temporary"]["topic"]
        producer = make_producer(world.properties, transactional_id=f"other-{topic}")
        producer.init_transactions(90)
        producer.begin_transaction()
        for _ in range(500):
            producer.produce(topic, b"0", b"aborted", 0)
        producer.flush(90)
        producer.abort_transaction(90)
        aborted.append(topic)

    world.at("p4.9.fenced", abort_some)
    with world.publishing(each_second=100):  # the consumers are faster, also on a busy machine
        world.run(recovery)
    assert aborted
    assert judge(world, recovery) == []
    assert "cut over" in world.told.getvalue()
