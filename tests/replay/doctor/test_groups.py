"""Groups: who has which partitions, of which type, and what they lost."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka import Consumer, TopicPartition

from backlogctl.kafka.clients import make_consumer, make_producer
from backlogctl.kafka.groups import describe_group_state
from backlogctl.monitoring.doctor.checks import CheckFinding, CheckLevel
from backlogctl.sandbox.embedded import EmbeddedKafka
from tests.conftest import MakeTopic
from tests.kafka_tools import join, properties_of, publish, set_offsets_raw, wait_until
from tests.replay.doctor.world import examine, make_workspace


@contextmanager
def joined(properties: dict[str, str], group: str, topics: list[list[str]]) -> Iterator[None]:
    """Members with these subscriptions, all of them assigned."""
    members: list[Consumer] = []
    try:
        for names in topics:
            member = make_consumer({**properties, "group.id": group})
            member.subscribe(names)
            members.append(member)

        def settled() -> bool:
            for member in members:
                member.poll(0.1)
            state = describe_group_state(properties, group)
            wanted = {name for names in topics for name in names}
            given = {name for one in state.members for name in one.partitions}
            return (
                state.state == "stable" and len(state.members) == len(members) and given == wanted
            )

        wait_until(settled, what="the members share the partitions")
        yield
    finally:
        for member in members:
            member.close()


def test_members_without_work(
    properties: dict[str, str], topic: MakeTopic, unique: str, tmp_path: Path
) -> None:
    name, group = topic(partitions=1), f"group-{unique}"
    with joined(properties, group, [[name], [name], [name]]):
        finding = examine(make_workspace(tmp_path, properties, name, group))["idle-members"]
    assert finding.level is CheckLevel.WARNS
    assert finding.found == f"2 of 3 members have no partition: {name} has 1"


def test_partitions_that_no_member_has(
    properties: dict[str, str], topic: MakeTopic, unique: str, tmp_path: Path
) -> None:
    """Its members subscribe to another topic only."""
    name, other, group = topic(partitions=2), topic(partitions=2), f"group-{unique}"
    with joined(properties, group, [[other]]):
        finding = examine(make_workspace(tmp_path, properties, name, group))["unassigned"]
    assert finding.level is CheckLevel.LOSES
    assert "2 partitions of" in finding.found
    assert "(0, 1) are assigned to none of its 1 member" in finding.found


def test_partitions_shared_out_unevenly(
    kafka: EmbeddedKafka, topic: MakeTopic, unique: str, tmp_path: Path
) -> None:
    """One member reads another topic beside this one, all by itself."""
    name, other, group = topic(partitions=2), topic(partitions=6), f"group-{unique}"
    properties = {
        **properties_of(kafka.bootstrap),
        "partition.assignment.strategy": "range",
    }
    with joined(properties, group, [[name], [name, other]]):
        found = examine(make_workspace(tmp_path, properties_of(kafka.bootstrap), name, group))
    assert found["assignment-skew"].level is CheckLevel.WARNS
    assert "one member has 7 partitions, another 1" in found["assignment-skew"].found


def test_a_group_that_stands_still(
    properties: dict[str, str], topic: MakeTopic, unique: str, tmp_path: Path
) -> None:
    """Retention will take what it does not read: `status` says the same."""
    name, group = topic(partitions=1, config={"retention.ms": "3600000"}), f"group-{unique}"
    publish(properties, name, {0: 20})
    set_offsets_raw(properties, group, name, {0: 5})
    finding = examine(make_workspace(tmp_path, properties, name, group))["group-course"]
    assert finding.level is CheckLevel.LOSES
    assert "15 behind" in finding.found
    assert finding.commands[0] == "backlogctl hold orders --for 6h"


def test_retention_by_size_goes_by_what_is_written(
    properties: dict[str, str], topic: MakeTopic, unique: str, tmp_path: Path
) -> None:
    """Some 1,000 bytes a second into 100 kB: less than two minutes, whatever retention.ms says."""
    name, group = topic(partitions=1, config={"retention.bytes": "100000"}), f"group-{unique}"
    workspace = make_workspace(tmp_path, properties, name, group)
    stop = threading.Event()

    def write() -> None:
        producer = make_producer(properties)
        while not stop.wait(0.1):
            producer.produce(name, b"x" * 100)
            producer.poll(0)
        producer.flush(30)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        found: dict[str, CheckFinding] = {}

        def is_known() -> bool:
            found.update(examine(workspace))
            return "retention.bytes" in getattr(found.get("retention"), "found", "")

        wait_until(is_known, what="the rate is known")
    finally:
        stop.set()
        writer.join(60)
    assert found["retention"].level is CheckLevel.LOSES
    assert "retention.bytes 100.0 kB a partition" in found["retention"].found


def test_rebalances_without_static_membership(
    properties: dict[str, str], topic: MakeTopic, unique: str, tmp_path: Path
) -> None:
    """Samples of the window saw it rebalancing; those were made while a member was slow to come."""
    name, group = topic(partitions=2), f"group-{unique}"
    publish(properties, name, {0: 3})
    workspace = make_workspace(tmp_path, properties, name, group)
    member = join(properties, group, name)
    late = make_consumer({**properties, "group.id": group})
    try:
        # It does not poll: the broker waits for it, up to its poll interval.
        late.subscribe([name])
        late.poll(0.5)

        def seen_rebalancing() -> bool:
            late.poll(0.2)
            examine(workspace)
            samples = workspace.ledger.samples.history("orders")
            return any("rebalancing" in one.group_state for one in samples)

        wait_until(seen_rebalancing, what="a sample sees the rebalance")

        def settled() -> bool:
            member.poll(0.1)
            late.poll(0.1)
            return describe_group_state(properties, group).state == "stable"

        wait_until(settled, what="the group is stable again")
        finding = examine(workspace)["static-membership"]
    finally:
        late.close()
        member.close()
    assert finding.level is CheckLevel.WARNS
    assert "it was rebalancing in" in finding.found


def test_a_reader_that_assigns_is_no_member(
    properties: dict[str, str], topic: MakeTopic, unique: str, tmp_path: Path
) -> None:
    name, group = topic(partitions=1), f"group-{unique}"
    publish(properties, name, {0: 3})
    reader = make_consumer({**properties, "group.id": group})
    reader.assign([TopicPartition(name, 0, 0)])
    reader.commit(offsets=[TopicPartition(name, 0, 3)], asynchronous=False)
    found = examine(make_workspace(tmp_path, properties, name, group))
    reader.close()
    assert not {"unassigned", "idle-members", "assignment-skew"} & set(found)
