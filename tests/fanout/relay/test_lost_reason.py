"""A fatal error whose reason the client has lost: the producer is asked for it."""

from __future__ import annotations

import pytest

from backlogctl.errors import KafkaFailure, ProducerFenced
from backlogctl.fanout.relay.commits import fence_relays
from backlogctl.fanout.relay.interface import SourceRange
from backlogctl.fanout.relay.records import _Relay
from tests.fanout.relay.conftest import MakeWorld


def lose() -> None:
    raise SystemError("<method 'flush'> returned NULL without setting an exception")


def test_a_reason_that_the_client_has_lost_is_asked_for(make_world: MakeWorld) -> None:
    here = make_world(partitions=1)
    task = here.task(b"")
    relay = _Relay(task, SourceRange(0, 0), lambda _: None, lambda: False)
    with pytest.raises(KafkaFailure, match="gave no reason") as none:
        relay._call(lose, "write")
    assert none.value.retryable
    producer = relay._producer = relay._make_producer()
    producer.init_transactions(90)
    producer.begin_transaction()
    producer.produce(task.target, b"v", b"k", 0)
    assert producer.flush(90) == 0
    fence_relays(here.properties, "backlog", here.source, [0])
    with pytest.raises(ProducerFenced):
        relay._call(lose, "write")
