"""Open transactions on a real broker: whose they are, and how they are aborted (KIP-664)."""

from __future__ import annotations

from datetime import timedelta

import pytest

from backlogctl.clock import utc_now
from backlogctl.errors import KafkaFailure, Refused
from backlogctl.kafka.admin import list_offsets
from backlogctl.kafka.clients import make_producer
from backlogctl.kafka.transactions import (
    OpenTransaction,
    TransactionFate,
    abort_transaction,
    find_transactional,
    read_open_transactions,
)
from tests.conftest import MakeTopic
from tests.kit.kafka import move_log_start, publish, read_all
from tests.kit.transactions import leave_open, run_transactions, write_hanging
from tests.spark_backfill.injection.doing import open_transaction


def read_stable_end(properties: dict[str, str], topic: str) -> int:
    return list_offsets(properties, topic, [0], "latest", "read_committed")[0]


def test_a_transaction_that_its_producer_left_is_named_and_ended_by_its_coordinator(
    properties: dict[str, str], topic: MakeTopic, unique: str
) -> None:
    name, other = topic(partitions=2), topic(partitions=1)
    publish(properties, name, {0: 10})
    leave_open(properties, name, f"left-{unique}", count=3)
    publish(properties, name, {0: 20, 1: 5})
    (found,) = read_open_transactions(properties, name, range(2))
    assert (found.topic, found.partition, found.start) == (name, 0, 10)
    assert (found.transactional_id, found.fate) == (f"left-{unique}", TransactionFate.ONGOING)
    assert found.timeout_seconds == 900.0
    assert found.started_at is not None
    assert found.ends_by == found.started_at + timedelta(minutes=15)
    assert abs(utc_now() - found.started_at) < timedelta(minutes=5)
    assert found.last_written is not None
    assert found.partitions == ((name, 0),)
    assert f"left-{unique}" in found.producer
    assert read_open_transactions(properties, other, [0]) == ()
    assert read_stable_end(properties, name) == 10

    how = abort_transaction(properties, found)
    assert "coordinator" in how
    assert read_open_transactions(properties, name, [0, 1]) == ()
    assert read_stable_end(properties, name) == 34, "three messages of it, and its marker"
    assert len(read_all(properties, name, [0])) == 30, "what it wrote is never read"
    with pytest.raises(Refused, match="not open any more"):
        abort_transaction(properties, found)


def test_the_producer_of_an_aborted_transaction_cannot_go_on(
    properties: dict[str, str], topic: MakeTopic
) -> None:
    name = topic(partitions=1)
    with open_transaction(properties, name, 0) as producer:
        (found,) = read_open_transactions(properties, name, [0])
        abort_transaction(properties, found)
        with pytest.raises(Exception, match=r"(?i)fenced|epoch"):
            producer.commit_transaction(90)
    assert read_all(properties, name, [0]) == []


def test_a_hanging_transaction_is_told_from_others_and_ended_on_its_partition(
    properties: dict[str, str], topic: MakeTopic
) -> None:
    name = topic(partitions=1)
    publish(properties, name, {0: 4})
    write_hanging(properties, name, producer_id=900_007, epoch=3, count=5)
    publish(properties, name, {0: 6})
    (found,) = read_open_transactions(properties, name, [0])
    assert found.fate is TransactionFate.HANGING
    assert (found.producer_id, found.producer_epoch, found.start) == (900_007, 3, 4)
    assert (found.transactional_id, found.coordinator_epoch, found.ends_by) == (None, None, None)
    with pytest.raises(Refused, match="not open any more"):
        abort_transaction(properties, OpenTransaction(name, 0, 4, 900_008, 3))
    how = abort_transaction(properties, found)
    assert "marker" in how
    assert read_stable_end(properties, name) == 16
    assert len(read_all(properties, name, [0])) == 10


def test_the_leader_remembers_who_wrote_in_transactions_when_all_of_it_is_gone(
    properties: dict[str, str], topic: MakeTopic, unique: str
) -> None:
    name = topic(partitions=3)
    end = run_transactions(properties, name, f"tx-{unique}", (3, False))
    idempotent = make_producer(properties, {"enable.idempotence": True})
    for _ in range(4):
        idempotent.produce(name, b"v", partition=1)
    assert idempotent.flush(90) == 0
    move_log_start(properties, name, {0: end, 1: 4})
    assert find_transactional(properties, name, range(3)) == {0: True, 1: False, 2: False}


def test_a_login_that_kafka_python_cannot_do_is_said() -> None:
    kerberos = {"bootstrap.servers": "127.0.0.1:1", "security.protocol": "SASL_PLAINTEXT"}
    with pytest.raises(KafkaFailure, match=r"cannot be asked for with sasl\.mechanism GSSAPI"):
        read_open_transactions(kerberos, "orders", [0])
