"""Open transactions on a topic, which hide what is committed behind them."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka.cimpl import NewTopic

from backlogctl.errors import HangingTransaction
from backlogctl.fanout.quiet import await_decided, find_undecided
from backlogctl.fanout.unread import count_records
from backlogctl.kafka.admin import list_offsets
from backlogctl.kafka.clients import make_admin, make_producer
from backlogctl.sandbox.embedded import EmbeddedKafka
from tests.conftest import MakeTopic
from tests.kafka_tools import properties_of, publish, wait_until


def test_an_open_transaction_is_waited_for_and_named(
    kafka: EmbeddedKafka, topic: MakeTopic, unique: str
) -> None:
    properties, name = properties_of(kafka.bootstrap), topic(partitions=2)
    await_decided(properties, name, 2, lambda: None, within=90)
    settings = {"transactional.id": f"open-{unique}", "transaction.timeout.ms": 600_000}
    producer = make_producer(properties, settings)
    producer.init_transactions(90)
    producer.begin_transaction()
    producer.produce(name, b"open", partition=1)
    assert producer.flush(90) == 0
    publish(properties, name, {1: 3})  # committed, and hidden behind it
    assert find_undecided(properties, name, 2) == {1: 0}
    with pytest.raises(HangingTransaction, match="partitions 1 at offset 0"):
        await_decided(properties, name, 2, lambda: None, within=0.3)
    producer.commit_transaction(90)
    await_decided(properties, name, 2, lambda: None, within=90)
    assert find_undecided(properties, name, 2) == {}


def test_fault_11_a_commit_without_a_leader_is_left_out_and_seen(tmp_path: Path) -> None:
    """KAFKA-20734: a partition that has no leader when a transaction commits gets no marker.

    The commit is answered all the same. What lies there is undecided, and an abort of the next
    transaction takes it along: only a count of what is there shows that.
    """
    with EmbeddedKafka.start(tmp_path / "kafka", brokers=2, heap="256m") as kafka:
        properties = properties_of(kafka.bootstrap)
        admin = make_admin(properties)
        places = [[2], [1]]  # of the partitions 0 and 1; the first broker is the controller
        made = admin.create_topics([NewTopic("t", len(places), replica_assignment=places)])
        made["t"].result(30)

        def find_leader() -> int:
            return admin.list_topics("t", 10).topics["t"].partitions[0].leader

        def count() -> dict[int, int]:
            return count_records(properties, "t", list_offsets(admin, "t", [0, 1], "latest"))

        wait_until(lambda: find_leader() == 2, what="partition 0 has a leader")
        producer = make_producer(properties, {"transactional.id": "t"})
        producer.init_transactions(60)
        producer.begin_transaction()
        for partition in (0, 1):
            producer.produce("t", b"committed", partition=partition)
        assert producer.flush(60) == 0
        kafka.kill(2)
        wait_until(lambda: find_leader() == -1, what="partition 0 has no leader")
        producer.commit_transaction(60)
        kafka.restart(2)
        wait_until(lambda: find_leader() == 2, what="partition 0 has a leader again")
        with pytest.raises(HangingTransaction, match="partitions 0 at offset 0"):
            await_decided(admin, "t", 2, lambda: None, within=5)
        producer.begin_transaction()
        producer.produce("t", b"aborted", partition=0)
        assert producer.flush(60) == 0
        producer.abort_transaction(60)
        await_decided(admin, "t", 2, lambda: None)
        assert count() == {0: 0, 1: 1}, "Kafka mended it: take it out of the docs' limits"
