"""Groups and who reads, and what the newest batches say."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from backlogctl.clock import Deadline, utc_now
from backlogctl.kafka.admin import list_offsets
from backlogctl.kafka.clients import make_admin, make_consumer, make_producer
from backlogctl.kafka.coordinator import describe_group_state
from backlogctl.monitoring.doctor.checks import CheckFinding, CheckLevel
from backlogctl.monitoring.doctor.facts import Topic
from backlogctl.monitoring.doctor.producers import judge_producers
from backlogctl.monitoring.producers import reader
from backlogctl.monitoring.producers.reader import NewestLog, read_newest_log
from backlogctl.sandbox.embedded import EmbeddedKafka
from tests.conftest import MakeTopic
from tests.kit.kafka import join, leave_at, properties_of, publish, set_offsets_raw, wait_until
from tests.monitoring.producers.makers import Log, fold
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
    workspace = make_workspace(tmp_path, properties, name, group)
    # Nobody ever joined it: whoever reads it would not be seen.
    unseen = examine(workspace)["group-course"]
    assert unseen.level is CheckLevel.UNKNOWN
    assert "whether anybody reads is not known" in unseen.found
    assert unseen.commands[0] == "backlogctl hold orders --for 6h"
    leave_at(properties, group, name, {0: 5})
    finding = examine(workspace)["group-course"]
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


CHECKS = ("not-idempotent", "epoch-restarted", "sequence-jump", "hot-partition")


@pytest.fixture
def look(properties: dict[str, str], tmp_path: Path) -> Callable[[str], dict[str, CheckFinding]]:
    """Examines a topic: its findings of the log, and what could not be read."""

    def make(topic: str) -> dict[str, CheckFinding]:
        found = examine(make_workspace(tmp_path, properties, topic))
        return {name: one for name, one in found.items() if name in (*CHECKS, "unread")}

    return make


def test_a_producer_that_waits_for_nobody(
    kafka: EmbeddedKafka, topic: MakeTopic, look: Callable[[str], dict[str, CheckFinding]]
) -> None:
    name, properties = topic(partitions=2), properties_of(kafka.bootstrap)
    publish(properties, name, {0: 30})
    careless = Producer({**properties, "acks": "0", "enable.idempotence": False})
    for number in range(10):
        careless.produce(name, b"value", partition=number % 2)
    assert careless.flush(60) == 0
    # Nobody says when acks=0 has arrived.
    wait_until(
        lambda: sum(list_offsets(properties, name, (0, 1), "latest").values()) == 40,
        what="all are there",
    )
    seen = look(name)
    assert list(seen) == ["not-idempotent"]
    found = seen["not-idempotent"]
    assert found.level is CheckLevel.WARNS
    assert "10 of 40 messages have no producer id" in found.found
    assert "Looked at the newest 40 messages" in found.found
    assert "of 2 partitions" in found.found
    assert found.commands == ("backlogctl audit producers orders",)


def test_transactions_that_abort_and_restart_are_well(
    kafka: EmbeddedKafka, topic: MakeTopic, look: Callable[[str], dict[str, CheckFinding]]
) -> None:
    name, properties = topic(partitions=1), properties_of(kafka.bootstrap)
    for start in range(3):
        producer = make_producer(properties, {"transactional.id": f"tx-{name}"})
        producer.init_transactions(60)
        for aborts in (False, True):
            producer.begin_transaction()
            producer.produce(name, str(start).encode(), partition=0)
            assert producer.flush(60) == 0
            if aborts:
                producer.abort_transaction(60)
            else:
                producer.commit_transaction(60)
    assert look(name) == {}


def test_a_key_that_has_almost_everything(
    kafka: EmbeddedKafka,
    topic: MakeTopic,
    look: Callable[[str], dict[str, CheckFinding]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of each partition about as much is looked at; how much each got is known all the same."""
    name, properties = topic(partitions=3), properties_of(kafka.bootstrap)
    producer = make_producer(properties, {"linger.ms": 0, "batch.num.messages": 20})
    for number in range(1_500):
        producer.produce(name, b"value", b"hot", partition=2 if number % 10 else number // 10 % 2)
        if number % 20 == 0:
            producer.flush(60)
    assert producer.flush(60) == 0
    monkeypatch.setattr(reader, "_LEAST_OFFSETS", 100)
    monkeypatch.setattr(reader, "BYTES_EACH", 1)
    seen = look(name)
    assert list(seen) == ["hot-partition"]
    assert seen["hot-partition"].level is CheckLevel.WARNS
    assert "Partition 2 has 90% of the messages, 2.7 times its share" in seen["hot-partition"].found
    assert "1,500 offsets" in seen["hot-partition"].found


def test_an_empty_topic_says_nothing(
    topic: MakeTopic, look: Callable[[str], dict[str, CheckFinding]]
) -> None:
    assert look(topic(partitions=2)) == {}


def test_only_the_newest_part_is_read(
    kafka: EmbeddedKafka, topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, properties = topic(partitions=2), properties_of(kafka.bootstrap)
    publish(properties, name, {0: 400})
    publish(properties, name, {1: 5})
    monkeypatch.setattr(reader, "BYTES_EACH", 500)
    monkeypatch.setattr(reader, "_LEAST_OFFSETS", 20)
    admin = make_admin(properties)
    seen = read_newest_log(admin, properties, name, (0, 1), 10.0, Deadline(60))
    first, second = seen.profile.partitions
    assert (first.start, first.end, second.messages) == (350, 400, 5)
    # A batch that the part begins in is read whole.
    assert 50 <= first.messages <= 400
    assert seen.written == {0: 400, 1: 5}
    assert not seen.is_cut
    # Without time it says so, and nothing more.
    monkeypatch.setattr(reader, "LOOK_SECONDS", 0.0)
    assert read_newest_log(admin, properties, name, (0, 1), 10.0, Deadline(60)).is_cut


def test_an_epoch_that_was_raised_is_told_with_what_it_may_mean() -> None:
    log = Log()
    for epoch in (0, 0, 1, 2):
        log.append(epoch=epoch, sequence=0 if epoch else None)
    profile = fold([log])
    seen = NewestLog(profile, is_cut=True, written={0: log.end}, since=utc_now())
    topic = Topic("orders", "localhost:9092", {}, {})
    (found,) = judge_producers("orders", topic, seen)
    assert (found.check, found.level) == ("epoch-restarted", CheckLevel.UNKNOWN)
    assert "1 more of the kind" in found.found
    assert "not all that was asked for" in found.found
    assert "may be missing" in found.found
    assert list(judge_producers("orders", topic, replace(seen, profile=fold([Log()])))) == []
