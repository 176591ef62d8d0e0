"""Admin verbs against a real broker."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest
from confluent_kafka import TopicPartition

from backlogctl.clock import Deadline
from backlogctl.errors import ClusterUnreachable, ConfigurationError, KafkaFailure
from backlogctl.kafka import admin as verbs
from backlogctl.kafka.clients import make_admin, make_consumer
from backlogctl.kafka.errors import GroupActive, TopicMissing
from backlogctl.sandbox.embedded import EmbeddedKafka
from tests.conftest import MakeTopic
from tests.kafka_tools import commit, join, properties_of, publish


def test_a_topic_is_described_with_its_id_and_settings(
    properties: dict[str, str], topic: MakeTopic
) -> None:
    name = topic(partitions=3, config={"retention.ms": "12345", "cleanup.policy": "compact"})
    info = verbs.describe_topic(properties, name)
    assert (info.name, info.partitions, info.replication) == (name, 3, 1)
    assert len(info.topic_id) == 22
    assert info.config["retention.ms"] == "12345"
    assert info.config["cleanup.policy"] == "compact"
    assert {"max.message.bytes", "message.timestamp.type"} <= set(info.config)


def test_a_topic_is_created_once(properties: dict[str, str], unique: str) -> None:
    admin = make_admin(properties)
    made = verbs.create_topic(admin, f"made-{unique}", partitions=2, config={"segment.ms": "60000"})
    again = verbs.create_topic(admin, f"made-{unique}", partitions=2, exist_ok=True)
    assert made == again
    with pytest.raises(KafkaFailure, match="TOPIC_ALREADY_EXISTS"):
        verbs.create_topic(admin, f"made-{unique}", partitions=2)


def test_a_missing_topic_is_a_clear_error(kafka: EmbeddedKafka, unique: str) -> None:
    with pytest.raises(TopicMissing, match=f"nothing-{unique}.*{kafka.bootstrap}"):
        verbs.read_topic_id(properties_of(kafka.bootstrap), f"nothing-{unique}")


def test_offsets_of_a_thousand_partitions_come_in_one_call(
    properties: dict[str, str], topic: MakeTopic, group: str
) -> None:
    name, admin = topic(partitions=1000), make_admin(properties)
    assert verbs.list_offsets(admin, name, range(1000), "latest") == dict.fromkeys(range(1000), 0)
    nothing = verbs.committed_offsets(admin, group, name, range(1000))
    assert nothing == dict.fromkeys(range(1000))


def test_every_group_that_commits_is_listed(
    kafka: EmbeddedKafka, topic: MakeTopic, group: str
) -> None:
    properties, name = properties_of(kafka.bootstrap), topic(partitions=2)
    publish(properties, name, {0: 5, 1: 5})
    commit(properties, f"{group}-classic", name, {0: 3})
    newer = join(properties, f"{group}-newer", name, group_protocol="consumer")
    newer.commit(offsets=[TopicPartition(name, 1, 2)], asynchronous=False)
    simple = make_consumer(properties, {"group.id": f"{group}-assigned"})
    simple.assign([TopicPartition(name, 0, 0)])
    simple.commit(offsets=[TopicPartition(name, 0, 4)], asynchronous=False)
    other = topic(partitions=1)
    verbs.set_group_offsets(properties, f"{group}-other", other, {0: 0})

    assert verbs.list_topic_readers(properties, name).known == {
        f"{group}-assigned": {0: 4},
        f"{group}-classic": {0: 3},
        f"{group}-newer": {1: 2},
    }
    newer.close()
    simple.close()


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_group_that_reads_and_has_not_committed_is_listed(
    kafka: EmbeddedKafka, topic: MakeTopic, group: str, protocol: str
) -> None:
    properties, name = properties_of(kafka.bootstrap), topic(partitions=1)
    member = join(properties, group, name, group_protocol=protocol)
    other = join(properties, f"{group}-elsewhere", topic(partitions=1), group_protocol=protocol)
    assert verbs.list_topic_readers(properties, name).known == {group: {}}
    member.close()
    other.close()


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_fault_25_offsets_of_an_active_group_are_refused_by_member(
    kafka: EmbeddedKafka, topic: MakeTopic, group: str, protocol: str
) -> None:
    properties, name = properties_of(kafka.bootstrap), topic(partitions=1)
    member = join(properties, group, name, group_protocol=protocol, client_id="order-service-7")
    with pytest.raises(GroupActive, match=r"order-service-7 at 127\.0\.0\.1"):
        verbs.set_group_offsets(properties, group, name, {0: 0})
    state = verbs.describe_group_state(properties, group)
    assert state.is_active
    assert [each.client_id for each in state.members] == ["order-service-7"]
    assert state.type == protocol
    member.close()
    verbs.set_group_offsets(properties, group, name, {0: 0})
    assert verbs.committed_offsets(properties, group, name, [0]) == {0: 0}


def test_offsets_of_a_partition_that_is_not_there_are_refused(
    properties: dict[str, str], topic: MakeTopic, group: str
) -> None:
    with pytest.raises(TopicMissing, match=r"\[7\] do not exist"):
        verbs.set_group_offsets(properties, group, topic(), {0: 0, 7: 0})


def test_a_group_nobody_knows_is_dead(properties: dict[str, str], group: str) -> None:
    assert verbs.describe_group_state(properties, group) == verbs.GroupState("dead", (), "classic")


@pytest.mark.parametrize("address", ["127.0.0.1:1", "no-such-host.invalid:9092"])
def test_fault_28_an_unreachable_cluster_is_named_within_the_limit(address: str) -> None:
    started = time.monotonic()
    with pytest.raises(ClusterUnreachable, match=rf"{address} answered within 1\.5 s") as caught:
        verbs.describe_topic(properties_of(address), "orders", Deadline(1.5))
    assert time.monotonic() - started < 15  # without its own limit 30
    assert caught.value.retryable


def test_fault_28_nothing_is_printed_on_stderr() -> None:
    code = (
        "from backlogctl.clock import Deadline\n"
        "from backlogctl.errors import ClusterUnreachable\n"
        "from backlogctl.kafka.admin import read_topic_id\n"
        "try:\n"
        "    read_topic_id({'bootstrap.servers': '127.0.0.1:1'}, 't', Deadline(1))\n"
        "except ClusterUnreachable as error:\n"
        "    print(error.code)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("unreachable\n", "")


def test_a_property_that_is_not_one_is_a_configuration_error() -> None:
    with pytest.raises(ConfigurationError, match="bogus"):
        make_admin({"bootstrap.servers": "localhost:1", "bogus": "1"})
