"""Each client reads all that there is, its record says so, and it commits as the table says."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition

from backlogctl.clock import Deadline
from backlogctl.kafka.admin import create_topic
from backlogctl.kafka.clients import Admin
from backlogctl.sandbox.embedded import EmbeddedKafka
from tests.clients.zoo import KINDS, Client
from tests.kit.kafka import properties_of, publish, wait_until

TOPIC, PARTITIONS, EACH = "clients", 3, 100
EVERY = {(partition, offset) for partition in range(PARTITIONS) for offset in range(EACH)}


@pytest.fixture(scope="module")
def full(kafka: EmbeddedKafka, admin: Admin) -> Iterator[str]:
    """A topic that holds messages."""
    create_topic(admin, TOPIC, partitions=PARTITIONS, replication=1, deadline=Deadline(90))
    # Some clients know no lz4.
    plain: dict[str, Any] = {"compression.type": "none"}
    publish(properties_of(kafka.bootstrap), TOPIC, dict.fromkeys(range(PARTITIONS), EACH), **plain)
    yield TOPIC
    admin.delete_topics([TOPIC])[TOPIC].result(60)


def read_commits(admin: Admin, group: str) -> dict[int, TopicPartition]:
    """Of the full topic."""
    asked = [
        ConsumerGroupTopicPartitions(group, [TopicPartition(TOPIC, p) for p in range(PARTITIONS)])
    ]
    answer = admin.list_consumer_group_offsets(asked)[group].result(30)
    return {one.partition: one for one in answer.topic_partitions if one.offset >= 0}


@pytest.mark.parametrize("name", KINDS)
def test_reads_everything_and_commits_in_its_own_way(
    kafka: EmbeddedKafka, admin: Admin, full: str, group: str, tmp_path: Path, name: str
) -> None:
    kind = KINDS[name]
    expected = {} if kind.epoch is None else dict.fromkeys(range(PARTITIONS), EACH)

    def read_offsets() -> dict[int, int]:
        return {partition: at.offset for partition, at in read_commits(admin, group).items()}

    record = tmp_path / "record"
    with Client(name, kafka.bootstrap, full, group, record=record, commit_ms=200) as client:
        client.await_handled(len(EVERY))
        members = admin.describe_consumer_groups([group])[group].result(30).members
        assert bool(members) is kind.has_members
        wait_until(lambda: read_offsets() == expected, what="it commits while it runs")
        client.stop()
    assert sorted(client.handled()) == sorted(EVERY)
    assert read_offsets() == expected
    epochs = {at.leader_epoch is not None for at in read_commits(admin, group).values()}
    assert epochs == ({kind.epoch} if expected else set())
