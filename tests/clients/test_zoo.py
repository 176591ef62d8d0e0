"""Each client reads all that there is, its record says so, and it commits as the table says."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition

from backlogctl.clock import Deadline
from backlogctl.kafka.admin import create_topic, list_offsets
from backlogctl.kafka.clients import Admin, make_producer
from backlogctl.ledger import Ledger
from backlogctl.monitoring.offsets.timeline import WINDOW
from backlogctl.monitoring.verdict.status import Verdict
from backlogctl.monitoring.watch.look import HORIZON, look_at_stream
from backlogctl.sandbox.embedded import EmbeddedKafka
from tests.clients import building
from tests.clients.zoo import JOBS, KINDS, Client
from tests.conftest import MakeTopic
from tests.kit.kafka import StreamStub, properties_of, publish, read_all, wait_until

TOPIC, PARTITIONS, EACH = "clients", range(3), 100
EVERY = [(partition, offset) for partition in PARTITIONS for offset in range(EACH)]
WATCH = SimpleNamespace(window=WINDOW, horizon=HORIZON)
POISON = 7  # its offset, in partition 0


@pytest.fixture(scope="module")
def full(kafka: EmbeddedKafka, admin: Admin) -> Iterator[str]:
    """A topic that holds messages."""
    create_topic(admin, TOPIC, partitions=3, replication=1, deadline=Deadline(90))
    publish(properties_of(kafka.bootstrap), TOPIC, dict.fromkeys(PARTITIONS, EACH))
    yield TOPIC
    admin.delete_topics([TOPIC])[TOPIC].result(60)


def read_commits(admin: Admin, group: str, topic: str = TOPIC) -> dict[int, TopicPartition]:
    """By partition."""
    asked = [TopicPartition(topic, partition) for partition in PARTITIONS]
    request = [ConsumerGroupTopicPartitions(group, asked)]
    answer = admin.list_consumer_group_offsets(request)[group].result(30)
    return {one.partition: one for one in answer.topic_partitions if one.offset >= 0}


def read_offsets(admin: Admin, group: str, topic: str = TOPIC) -> dict[int, int]:
    """Committed ones by partition."""
    return {number: one.offset for number, one in read_commits(admin, group, topic).items()}


def describe(admin: Admin, group: str) -> Any:
    """A group, which need not exist: its members, its assignor."""
    return admin.describe_consumer_groups([group])[group].result(30)


@pytest.mark.parametrize("name", KINDS)
def test_reads_everything_and_commits_in_its_own_way(
    kafka: EmbeddedKafka,
    admin: Admin,
    full: str,
    group: str,
    ledger: Ledger,
    tmp_path: Path,
    name: str,
) -> None:
    kind = KINDS[name]
    expected = {} if kind.epoch is None else dict.fromkeys(PARTITIONS, EACH)
    record = tmp_path / "record"
    with Client(name, kafka.bootstrap, full, group, record=record, commit_ms=200) as client:
        client.await_handled(len(EVERY))
        described = describe(admin, group)
        assert bool(described.members) is bool(kind.assignor)
        assert described.partition_assignor == kind.assignor
        wait_until(lambda: read_offsets(admin, group) == expected, what="it has committed")
        told = look_at_stream(
            ledger, StreamStub(full, group), properties_of(kafka.bootstrap), WATCH
        )
        client.stop()
    # Of what is never committed to Kafka nobody knows.
    assert told.status.lag == (0 if expected else None)
    assert told.status.verdict == (Verdict.OK if expected else Verdict.UNKNOWN)
    assert ledger.gaps.list("orders") == ()
    assert sorted(client.handled()) == EVERY
    assert read_offsets(admin, group) == expected
    epochs = {one.leader_epoch is not None for one in read_commits(admin, group).values()}
    assert epochs == ({kind.epoch} if expected else set())
    assert bool(describe(admin, group).members) is not kind.leaves
    if name == "mirror-maker":
        mirrored = list_offsets(
            properties_of(kafka.bootstrap), f"source.{full}", PARTITIONS, "latest"
        )
        assert mirrored == dict.fromkeys(PARTITIONS, EACH)


@pytest.mark.parametrize("name", JOBS)
def test_a_job_reads_to_the_end_commits_and_leaves(
    properties: dict[str, str],
    admin: Admin,
    topic: MakeTopic,
    group: str,
    tmp_path: Path,
    name: str,
) -> None:
    orders, record = topic(), tmp_path / "record"
    visit = partial(Client, name, properties["bootstrap.servers"], orders, group, record=record)
    for count in (50, 120):
        publish(properties, orders, {0: 50, 2: count - 50 or 1})
        with visit(once=True) as job:
            job.wait()
        ends = list_offsets(properties, orders, (0, 2), "latest")
        assert sorted(job.handled()) == [(p, at) for p in (0, 2) for at in range(ends[p])]
        committed = read_offsets(admin, group, orders)
        assert {p: at for p, at in committed.items() if at} == ends
        assert not describe(admin, group).members


def test_a_killed_client_leaves_what_it_committed_and_another_goes_on(
    kafka: EmbeddedKafka, admin: Admin, full: str, group: str, tmp_path: Path
) -> None:
    start = partial(Client, "librdkafka", kafka.bootstrap, full, group, record=tmp_path / "record")
    # The dead member's session need not be waited for long.
    with start(delay_ms=20, commit_ms=100, settings={"session.timeout.ms": "3000"}) as client:
        client.await_handled(50)
        wait_until(lambda: read_offsets(admin, group), what="something is committed")
        client.kill()
        assert not client.is_running
        handled = set(client.handled())
    assert len(handled) < len(EVERY)
    committed = read_offsets(admin, group)
    with start() as client:
        client.await_handled(len(EVERY))
        client.stop()
    again = client.handled()[len(handled) :]
    # A commit that was on its way when it was killed may have come after we looked.
    starts = {p: min((at for q, at in again if q == p), default=EACH) for p in PARTITIONS}
    read = {p: sum(q == p for q, _ in handled) for p in PARTITIONS}
    assert all(committed.get(p, 0) <= starts[p] <= read[p] for p in PARTITIONS)
    assert sorted(again) == [(p, at) for p, at in EVERY if at >= starts[p]]


def make_poison(properties: dict[str, str], topic: str) -> None:
    """Ten messages, of which one cannot be handled."""
    producer = make_producer(properties)
    for number in range(10):
        producer.produce(topic, b"poison" if number == POISON else b"value", partition=0)
    assert producer.flush(90) == 0


@pytest.mark.parametrize(
    ("name", "header"),
    [
        ("connect-sink", "__connect.errors.offset"),
        ("streams", "__streams.errors.offset"),
        ("spring-retry", "kafka_original-offset"),
    ],
)
def test_poison_goes_to_a_dead_letter_topic(
    properties: dict[str, str], topic: MakeTopic, group: str, tmp_path: Path, name: str, header: str
) -> None:
    orders, out = topic(1), topic(1)
    dead = f"{orders}-dlt" if name == "spring-retry" else topic(1)
    make_poison(properties, orders)
    client = Client(
        name,
        properties["bootstrap.servers"],
        orders,
        group,
        record=tmp_path / "record",
        out=out,
        dlq=dead,
    )
    with client:
        client.await_handled(10)
        if name == "spring-retry":
            client.await_handled(1, of=f"{orders}-retry")
            client.await_handled(1, of=dead)
        wait_until(
            lambda: list_offsets(properties, dead, [0], "latest") == {0: 1}, what="it is dead"
        )
        client.stop()
    (message,) = read_all(properties, dead, [0])
    assert message.value() == b"poison"
    assert header in dict(message.headers() or [])
    if name == "streams":
        assert len(read_all(properties, out, [0])) == 9


def test_every_client_has_a_locked_version() -> None:
    for name, kind in KINDS.items():
        assert kind.version[0].isdigit(), name


def test_what_a_client_does_not_know_is_refused(tmp_path: Path) -> None:
    start = partial(Client, bootstrap="", topic="", record=tmp_path / "record")
    with pytest.raises(AssertionError, match="kafkajs is no job"):
        start("kafkajs", once=True)
    with pytest.raises(AssertionError, match="sarama takes no settings"):
        start("sarama", settings={"session.timeout.ms": "3000"})


def test_a_tool_that_is_missing_is_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(building, "TOOLS", tmp_path)
    with pytest.raises(AssertionError, match=r"no Go 1\.26 or newer here"):
        building.find_go()
    with pytest.raises(AssertionError, match="no npm here"):
        building.find("npm")
