"""Batches of ranges, while logs and leaders move."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import pytest

from backlogctl.clock import Deadline
from backlogctl.errors import KafkaFailure
from backlogctl.kafka import raw_fetch
from backlogctl.kafka.admin import create_topic
from backlogctl.kafka.clients import make_admin, make_producer
from backlogctl.kafka.raw_fetch import BatchHeader, FetchedBatches, fetch_batches
from backlogctl.sandbox.embedded import EmbeddedKafka
from backlogctl.values import OffsetRange
from tests.conftest import MakeTopic
from tests.kafka_tools import move_log_start, properties_of, publish

_LARGE = 100_000
_PLAIN = {"compression.type": "none"}
_HUGE = {"message.max.bytes": "12000000"}


def collect(found: Iterable[FetchedBatches]) -> dict[int, list[BatchHeader]]:
    headers: defaultdict[int, list[BatchHeader]] = defaultdict(list)
    for one in found:
        headers[one.partition] += one.headers
    return headers


def test_ranges_of_several_partitions(kafka: EmbeddedKafka, topic: MakeTopic) -> None:
    name, properties = topic(4), properties_of(kafka.bootstrap)
    for _ in range(3):
        publish(properties, name, {0: 100, 1: 50, 3: 10})
    ranges = [
        OffsetRange(0, 0, 300),
        OffsetRange(1, 60, 120),
        OffsetRange(2, 0, 0),
        OffsetRange(3, 0, 10),
    ]
    headers = collect(fetch_batches(properties, name, ranges))
    assert sum(one.record_count for one in headers[0]) == 300
    # A batch counts that the range overlaps, and no other.
    assert headers[1][0].base_offset <= 60 <= headers[1][0].last_offset
    assert headers[1][-1].base_offset < 120 <= headers[1][-1].last_offset + 1
    assert 2 not in headers
    assert sum(one.record_count for one in headers[3]) == 10


def test_more_than_one_answer_holds(properties: dict[str, str], topic: MakeTopic) -> None:
    """Batches larger than what a request asks for, too."""
    name = topic(3, {"max.message.bytes": "12000000"})
    value = os.urandom(_LARGE)
    publish({**properties, **_PLAIN}, name, {0: 120, 1: 90}, value=value)
    publish({**properties, **_PLAIN, **_HUGE}, name, {0: 2}, value=os.urandom(6_000_000))
    found = list(fetch_batches(properties, name, [OffsetRange(0, 0, 122), OffsetRange(1, 0, 90)]))
    assert len(found) > 4
    headers = collect(found)
    for partition, count in ((0, 122), (1, 90)):
        assert headers[partition][0].base_offset == 0
        for before, after in zip(headers[partition], headers[partition][1:], strict=False):
            assert after.base_offset == before.last_offset + 1
        assert headers[partition][-1].last_offset == count - 1


def test_an_open_transaction_is_seen(kafka: EmbeddedKafka, topic: MakeTopic, unique: str) -> None:
    name, properties = topic(1), properties_of(kafka.bootstrap)
    producer = make_producer(properties, {"transactional.id": unique})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(name, b"value", partition=0)
    producer.flush(30)
    (one,) = collect(fetch_batches(properties, name, [OffsetRange(0, 0, 1)]))[0]
    assert one.is_transactional
    producer.abort_transaction(30)


def test_the_log_start_moves_on(kafka: EmbeddedKafka, topic: MakeTopic) -> None:
    name, properties = topic(1), properties_of(kafka.bootstrap)
    publish({**properties, **_PLAIN}, name, {0: 120}, value=os.urandom(_LARGE))
    found = fetch_batches(properties, name, [OffsetRange(0, 0, 120)])
    first = next(found)
    assert first.next_offset < 100
    move_log_start(properties, name, {0: 100})
    second = next(found)
    assert second.passed_over == OffsetRange(0, first.next_offset, 100)
    assert (second.headers, second.next_offset) == ((), 100)
    rest = list(found)
    assert rest[-1].next_offset == 120
    assert all(one.passed_over is None for one in rest)


def test_all_of_a_range_has_expired(kafka: EmbeddedKafka, topic: MakeTopic) -> None:
    name, properties = topic(1), properties_of(kafka.bootstrap)
    publish(properties, name, {0: 20})
    move_log_start(properties, name, {0: 15})
    (found,) = fetch_batches(properties, name, [OffsetRange(0, 0, 10)])
    assert found.passed_over == OffsetRange(0, 0, 10)


def test_a_range_beyond_the_end(
    kafka: EmbeddedKafka, topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(raw_fetch, "_PATIENCE", 1.0)
    name, properties = topic(1), properties_of(kafka.bootstrap)
    publish(properties, name, {0: 20})
    with pytest.raises(KafkaFailure, match="ends at offset 20"):
        list(fetch_batches(properties, name, [OffsetRange(0, 0, 30)]))
    with pytest.raises(KafkaFailure, match="its log ends before"):
        list(fetch_batches(properties, name, [OffsetRange(0, 25, 30)]))
    with pytest.raises(KafkaFailure, match="UnknownTopicOrPartition"):
        list(fetch_batches(properties, f"no-{name}", [OffsetRange(0, 0, 30)]))
    with pytest.raises(KafkaFailure, match="partition 7 has no leader, or is not there"):
        list(fetch_batches(properties, name, [OffsetRange(7, 0, 30)]))


def test_properties_that_kafka_python_cannot_take() -> None:
    properties = {"bootstrap.servers": "localhost:1", "security.protocol": "SASL_SSL"}
    with pytest.raises(KafkaFailure, match=r"cannot be read with sasl\.mechanism GSSAPI"):
        list(fetch_batches(properties, "orders", [OffsetRange(0, 0, 1)]))


def test_who_looks_may_end_it(kafka: EmbeddedKafka, topic: MakeTopic) -> None:
    name, properties = topic(1), properties_of(kafka.bootstrap)
    publish({**properties, **_PLAIN}, name, {0: 120}, value=os.urandom(_LARGE))
    looks = 0

    def look() -> None:
        nonlocal looks
        looks += 1
        if looks > 1:
            raise KeyboardInterrupt

    found = fetch_batches(properties, name, [OffsetRange(0, 0, 120)], look=look)
    with pytest.raises(KeyboardInterrupt):
        list(found)


def test_a_limit(kafka: EmbeddedKafka, topic: MakeTopic) -> None:
    name, properties = topic(1), properties_of(kafka.bootstrap)
    publish(properties, name, {0: 1})
    with pytest.raises(KafkaFailure, match=r"within 0 s: \[0\] at 0"):
        list(fetch_batches(properties, name, [OffsetRange(0, 0, 1)], limit=Deadline(0)))


def test_a_leader_dies(tmp_path: Path) -> None:
    with EmbeddedKafka.start(tmp_path, brokers=2, heap="384m") as kafka:
        properties = properties_of(kafka.bootstrap)
        create_topic(make_admin(properties), "orders", partitions=4, replication=2)
        counts = dict.fromkeys(range(4), 60)
        publish({**properties, **_PLAIN}, "orders", counts, value=os.urandom(_LARGE))
        found = fetch_batches(properties, "orders", [OffsetRange(p, 0, 60) for p in range(4)])
        parts = [next(found)]
        kafka.kill(2)
        parts += found
    headers = collect(parts)
    for partition in range(4):
        assert sum(one.record_count for one in headers[partition]) == 60
        assert headers[partition][0].base_offset == 0
