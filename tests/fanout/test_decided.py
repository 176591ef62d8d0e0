"""Open transactions on a topic, which hide what is committed behind them."""

from __future__ import annotations

import pytest

from backlog.errors import HangingTransaction
from backlog.kafka.clients import make_producer
from fanout.decided import await_decided, find_undecided
from sandbox.embedded import EmbeddedKafka
from tests.conftest import MakeTopic
from tests.kafka_tools import properties_of, publish


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
