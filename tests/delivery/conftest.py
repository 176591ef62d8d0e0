"""A broker to stop, and a kafka-python producer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import kafka as kafka_python
import pytest

from sandbox.embedded import EmbeddedKafka


@pytest.fixture
def own_kafka(tmp_path: Path) -> Iterator[EmbeddedKafka]:
    """A broker that a test stops."""
    with EmbeddedKafka.start(tmp_path / "kafka", properties={"num.partitions": "1"}) as running:
        yield running


@pytest.fixture
def kafka_python_producer(kafka: EmbeddedKafka) -> Iterator[kafka_python.KafkaProducer]:
    producer = kafka_python.KafkaProducer(bootstrap_servers=kafka.bootstrap, linger_ms=5)
    yield producer
    producer.close(10)
