"""A broker to stop, a kafka-python producer, and a MariaDB."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import kafka as kafka_python
import pytest

from sandbox.embedded import EmbeddedKafka
from tests.mariadb import EmbeddedMariaDb


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


@pytest.fixture(scope="session")
def mariadb() -> Iterator[EmbeddedMariaDb]:
    """One MariaDB server for this process."""
    with EmbeddedMariaDb() as running:
        yield running


@pytest.fixture
def mariadb_url(mariadb: EmbeddedMariaDb, unique: str) -> Iterator[str]:
    """The SQLAlchemy URL of an empty database of the test's own."""
    database = f"test_{unique}"
    mariadb.execute(f"CREATE DATABASE {database} CHARACTER SET utf8mb4")
    yield mariadb.url(database)
    mariadb.execute(f"DROP DATABASE {database}")
