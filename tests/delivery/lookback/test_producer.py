"""What applications call, with either client."""

from __future__ import annotations

import subprocess
import sys
import threading

import kafka as kafka_python
import pytest
from confluent_kafka import Producer

from backlog.errors import KafkaFailure, UsageError
from backlogctl_delivery.lookback.messages import Decided, Event, Prepared, read_envelope
from backlogctl_delivery.lookback.producer import LookBackProducer
from sandbox.embedded import EmbeddedKafka
from tests.conftest import MakeTopic
from tests.kafka_tools import read_all


@pytest.mark.parametrize("client", ["confluent", "kafka-python"])
def test_all_records_of_a_business_id_are_in_one_partition(
    kafka: EmbeddedKafka,
    topic: MakeTopic,
    client: str,
    kafka_python_producer: kafka_python.KafkaProducer,
) -> None:
    own = topic(8)
    producer = (
        Producer({"bootstrap.servers": kafka.bootstrap})
        if client == "confluent"
        else kafka_python_producer
    )
    sender = LookBackProducer(producer, "payments", topic=own)

    def work(biz_id: str) -> None:
        sender.prepare(
            "payment",
            biz_id,
            topic="out",
            key="k",
            value=None,
            headers={"type": b"\xff", "none": None},
        )
        sender.commit("payment", biz_id)

    threads = [threading.Thread(target=work, args=(f"id-{n}",)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    places: dict[bytes | None, list[tuple[int | None, Event]]] = {}
    for message in read_all({"bootstrap.servers": kafka.bootstrap}, own, range(8)):
        envelope = read_envelope(message.value())
        places.setdefault(message.key(), []).append((message.partition(), envelope.event))
        if isinstance(envelope, Prepared):
            assert (envelope.key, envelope.value) == (b"k", None)
            assert envelope.headers == (("type", b"\xff"), ("none", None))
    assert len(places) == 8
    for found in places.values():
        assert [event for _, event in found] == [Event.PREPARED, Event.COMMITTED]
        assert len({partition for partition, _ in found}) == 1


def test_what_cannot_be_sent_says_what_to_do() -> None:
    away = Producer({"bootstrap.servers": "127.0.0.1:1", "log_level": 0})
    sender = LookBackProducer(away, "payments", timeout=0.2)
    with pytest.raises(KafkaFailure, match="do not go on with the transaction"):
        sender.prepare("payment", "1", topic="out", value=b"v")
    with pytest.raises(KafkaFailure, match="nothing is lost"):
        sender.commit("payment", "1")
    for biz_id in ("", "x" * 256, "a\0b"):
        with pytest.raises(UsageError):
            sender.commit("payment", biz_id)
    with pytest.raises(UsageError):
        sender.prepare("payment", "1", topic="no/topic", value=b"v")
    for name in ("a\0b", "\ud800"):
        with pytest.raises(UsageError):
            sender.prepare("payment", "1", topic="out", value=b"v", headers={name: b"v"})


def test_an_envelope_may_have_fields_of_later() -> None:
    read = read_envelope(b'{"event":"committed","biz_type":"a","biz_id":"b","more":1}')
    assert read == Decided(event=Event.COMMITTED, biz_type="a", biz_id="b")


@pytest.mark.parametrize(
    ("modules", "heavy"),
    [
        ("backlogctl_delivery.lookback.producer", "confluent_kafka kafka grpc httpx"),
        ("backlogctl_delivery.lookback.service, backlogctl_delivery.lookback.http_checker", "grpc"),
        (
            "backlogctl_delivery.lookback.grpc_service, backlogctl_delivery.lookback.grpc_service",
            "httpx",
        ),
    ],
)
def test_importing_it_takes_nothing_that_is_not_used(modules: str, heavy: str) -> None:
    code = (
        f"import sys, {modules}\n"
        f"heavy = 'pyspark pandas numpy matplotlib pyarrow {heavy}'.split()\n"
        "print([name for name in heavy if name in sys.modules])"
    )
    made = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert made.stdout.strip() == "[]"
