"""Producers that leave transactions open, end them, or write what no coordinator knows of."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)
from kafka.protocol.admin import AlterClientQuotasRequest

from backlogctl.clock import Deadline
from backlogctl.kafka.admin import list_offsets
from backlogctl.kafka.clients import make_admin, make_producer
from backlogctl.kafka.leaders import read_leaders
from backlogctl.kafka.raw_client import RawClient, translate_properties
from tests.kit.kafka import wait_until

# Dies with its transaction open, as a process that is killed does.
_LEAVER = """
import json, os, sys
from confluent_kafka import Producer
settings, topic, partition, count = json.loads(sys.argv[1])
producer = Producer(settings)
producer.init_transactions(90)
producer.begin_transaction()
for number in range(count):
    producer.produce(topic, b"left open", b"open-%d" % number, partition)
assert producer.flush(90) == 0
os._exit(0)
"""


def leave_open(
    properties: Mapping[str, str],
    topic: str,
    transactional_id: str,
    *,
    partition: int = 0,
    count: int = 1,
    timeout_ms: int = 900_000,
) -> None:
    """A producer that has died in the middle of a transaction; its coordinator waits for it."""
    settings = {
        **properties,
        "transactional.id": transactional_id,
        "transaction.timeout.ms": timeout_ms,
    }
    words = json.dumps([settings, topic, partition, count])
    subprocess.run([sys.executable, "-c", _LEAVER, words], check=True, timeout=180)


def run_transactions(
    properties: Mapping[str, str],
    topic: str,
    transactional_id: str,
    *outcomes: tuple[int, bool],
    partition: int = 0,
) -> int:
    """Transactions one after another, each (messages, whether it is committed).

    Returns:
        The end of the partition, when the last marker is written.
    """
    before = list_offsets(properties, topic, [partition], "latest")[partition]
    producer = make_producer(properties, transactional_id=transactional_id)
    producer.init_transactions(90)
    for count, is_committed in outcomes:
        producer.begin_transaction()
        for number in range(count):
            producer.produce(topic, b"v", f"{number}".encode(), partition)
        producer.flush(90)
        (producer.commit_transaction if is_committed else producer.abort_transaction)(90)
    end = before + sum(count + 1 for count, _ in outcomes)
    wait_until(
        lambda: (
            list_offsets(properties, topic, [partition], "latest", "read_committed")[partition]
            == end
        ),
        what="the markers are written",
    )
    return end


def open_raw(properties: Mapping[str, str], seconds: float = 90.0) -> RawClient:
    settings, reason = translate_properties(properties)
    assert settings is not None, reason
    return RawClient(settings, Deadline(seconds))


def limit_rates(properties: Mapping[str, str], client: str, **limits: float) -> dict[str, str]:
    """The properties of a client that has quotas, in bytes a second."""
    set_quotas(properties, {"client-id": client}, limits)
    return {**properties, "client.id": client}


def set_quotas(
    properties: Mapping[str, str],
    whom: Mapping[str, str | None],
    limits: Mapping[str, float | None],
) -> None:
    """Of `user`, `client-id` or both by name, None is the default; a limit that is None is removed."""
    quotas = AlterClientQuotasRequest.EntryData
    entity = [quotas.EntityData(entity_type=kind, entity_name=name) for kind, name in whom.items()]
    ops = [
        quotas.OpData(key=key, value=value or 0.0, remove=value is None)
        for key, value in limits.items()
    ]
    with open_raw(properties) as raw:
        request = AlterClientQuotasRequest(
            entries=[quotas(entity=entity, ops=ops)], validate_only=False
        )
        answer = raw.run(lambda: raw.send(request), Deadline(30.0))
        assert [entry.error_code for entry in answer.entries] == [0]


def produce_raw(
    client: RawClient, topic: str, batch: Any, partition: int = 0, transactional_id: str = ""
) -> int:
    """One batch of kafka-python's builder; returns the broker's error code."""
    answer = ask_to_write(client, topic, batch, partition, transactional_id)
    return int(answer.responses[0].partition_responses[0].error_code)


def ask_to_write(
    client: RawClient, topic: str, batch: Any, partition: int = 0, transactional_id: str = ""
) -> Any:
    """As `produce_raw`; returns the broker's answer."""
    from kafka.protocol.producer import ProduceRequest

    data: Any = ProduceRequest.TopicProduceData
    part = data.PartitionProduceData(index=partition, records=bytes(batch.build()))
    request = ProduceRequest(
        transactional_id=transactional_id or None,
        acks=-1,
        timeout_ms=10_000,
        topic_data=[data(name=topic, partition_data=[part])],
        min_version=3,
        max_version=9,
    )
    limit = Deadline(90.0)
    node = read_leaders(client, topic, limit)[partition]
    return client.run(lambda: client.send(request, node), limit)


def write_hanging(
    properties: Mapping[str, str],
    topic: str,
    *,
    partition: int = 0,
    producer_id: int = 900_001,
    epoch: int = 3,
    count: int = 5,
    sequence: int = 0,
) -> None:
    """Messages of a transaction that no coordinator knows of: as a producer left them that wrote
    late (before KIP-890), or a coordinator whose marker never came (KAFKA-20734).

    `sequence`: how many messages of this epoch the partition has already.
    """
    from kafka.record.default_records import DefaultRecordBatchBuilder

    batch = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=0,
        is_transactional=True,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        batch_size=1 << 20,
    )
    for number in range(count):
        batch.append(number, int(time.time() * 1000), f"h{number}".encode(), b"late", [])
    with unverified(properties), open_raw(properties) as client:
        # The broker takes the setting a moment after it has said so.
        wait_until(
            lambda: produce_raw(client, topic, batch, partition, "late") == 0,
            what="the batch is taken",
        )


@contextmanager
def unverified(properties: Mapping[str, str]) -> Iterator[None]:
    """Brokers take batches of transactions that their coordinator does not know."""
    admin = make_admin(properties)
    brokers = admin.describe_cluster().result(60).nodes

    def verify(value: str) -> None:
        name = "transaction.partition.verification.enable"
        entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        for broker in brokers:
            resource = ConfigResource(
                ResourceType.BROKER, str(broker.id), incremental_configs=[entry]
            )
            for future in admin.incremental_alter_configs([resource]).values():
                future.result(60)

    verify("false")
    try:
        yield
    finally:
        verify("true")
