"""A broker that has forgotten a producer takes any sequence number of it: a real jump in a log.

The client numbers its batches itself here, as one would whose batches in between were lost.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from backlog.clock import Deadline
from backlog.kafka.admin import create_topic
from backlog.kafka.clients import make_admin
from backlog.kafka.raw_client import RawClient, translate_properties
from monitoring.forensics.findings import SuspicionCode, find_suspicions
from monitoring.forensics.reading import profile_topic
from sandbox.embedded import EmbeddedKafka
from tests.kafka_tools import properties_of, wait_until

_OUT_OF_ORDER = 45
_FORGETS = {
    "producer.id.expiration.ms": "500",
    "producer.id.expiration.check.interval.ms": "100",
}


def test_a_jump_that_a_broker_took(tmp_path: Path) -> None:
    with EmbeddedKafka.start(tmp_path, heap="384m", properties=_FORGETS) as kafka:
        properties = properties_of(kafka.bootstrap)
        create_topic(make_admin(properties), "orders", partitions=1, replication=1)
        settings, _ = translate_properties(properties)
        assert settings is not None
        with RawClient(settings, Deadline(30)) as client:
            refusals: list[int] = []

            def is_taken(sequence: int) -> bool:
                refusals.append(_produce(client, 77, sequence))
                assert refusals[-1] in (0, _OUT_OF_ORDER)
                return refusals[-1] == 0

            assert is_taken(0)
            assert is_taken(5)
            assert not is_taken(40), "a broker that knows the producer refuses a jump"
            wait_until(lambda: is_taken(40), 30, "the broker forgets the producer")
            wait_until(lambda: is_taken(0), 30, "and once more")
        profile = profile_topic(properties, "orders")
    assert profile.messages == 20
    jump, restart = find_suspicions(profile)
    assert jump.code is restart.code is SuspicionCode.SEQUENCE_JUMP
    assert jump.producer_id == 77
    assert "goes from 9 to 40, without 30" in jump.sentence
    assert "begins again at 0 after 44" in restart.sentence


def _produce(client: RawClient, producer: int, sequence: int) -> int:
    """Five messages; returns the broker's error code."""
    from kafka.protocol.producer import ProduceRequest
    from kafka.record.default_records import DefaultRecordBatchBuilder

    builder = DefaultRecordBatchBuilder(2, 0, False, producer, 0, sequence, 100_000)
    for offset in range(5):
        builder.append(offset, None, None, b"value", [])
    wanted: Any = ProduceRequest.TopicProduceData
    part = wanted.PartitionProduceData(index=0, records=bytes(builder.build()))
    request = ProduceRequest(
        acks=-1,
        timeout_ms=10_000,
        topic_data=[wanted(name="orders", partition_data=[part])],
        min_version=3,
        max_version=9,
    )
    (node,) = client.list_brokers()
    answer = client.run(lambda: client.send(request, node), Deadline(30))
    return int(answer.responses[0].partition_responses[0].error_code)
