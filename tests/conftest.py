"""Fixtures: real services shared by the run; a topic, a group and a database for each test."""

from __future__ import annotations

import os
import signal
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from hypothesis import HealthCheck, settings

from backlog.config import root
from backlog.embedded import EmbeddedKafka
from tests.services import EmbeddedPostgres

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MakeTopic = Callable[..., str]

_MARKED_BY = {"kafka": "kafka", "postgres": "postgres", "spark": "spark"}

settings.register_profile(
    "quick", max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("ci", parent=settings.get_profile("quick"), derandomize=True)
settings.register_profile("thorough", max_examples=2000, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci" if "CI" in os.environ else "quick"))


def pytest_configure() -> None:
    """SIGTERM ends the run as Ctrl-C does, so that no service stays."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark each test with the services that its fixtures use."""
    for item in items:
        for fixture in getattr(item, "fixturenames", ()):
            if fixture in _MARKED_BY:
                item.add_marker(_MARKED_BY[fixture])


@pytest.fixture(autouse=True)
def own_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process masks the secrets of every configuration it read: not those of other tests."""
    monkeypatch.setattr(root, "_SECRETS", set())


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedKafka]:
    """One broker for the whole run. A test that stops brokers starts its own instead."""
    with EmbeddedKafka.start(tmp_path_factory.mktemp("kafka")) as running:
        yield running


@pytest.fixture(scope="session")
def admin(kafka: EmbeddedKafka) -> AdminClient:
    """An admin client of the shared broker."""
    return AdminClient({"bootstrap.servers": kafka.bootstrap})


@pytest.fixture
def unique() -> str:
    """A short id that no other test has."""
    return uuid.uuid4().hex[:8]


@pytest.fixture
def topic(admin: AdminClient, unique: str) -> Iterator[MakeTopic]:
    """Make topics: `topic(partitions=3, config={...})` gives the name of a new one."""
    made: list[str] = []

    def make(
        partitions: int = 3, config: Mapping[str, str] | None = None, name: str = "topic"
    ) -> str:
        full = f"{name}-{unique}-{len(made)}"
        new = NewTopic(full, partitions, 1, config=dict(config or {}))
        admin.create_topics([new], operation_timeout=30)[full].result(30)
        made.append(full)
        return full

    yield make
    if made:
        for future in admin.delete_topics(made, operation_timeout=30).values():
            # Some tests delete their topics themselves.
            future.exception(30)


@pytest.fixture
def group(unique: str) -> str:
    """The name of a consumer group that no other test uses."""
    return f"group-{unique}"


@pytest.fixture(scope="session")
def postgres() -> Iterator[EmbeddedPostgres]:
    """One PostgreSQL server for the whole run."""
    with EmbeddedPostgres() as running:
        yield running


@pytest.fixture
def pg_url(postgres: EmbeddedPostgres, unique: str) -> Iterator[str]:
    """The SQLAlchemy URL of an empty database of the test's own."""
    database = f"test_{unique}"
    postgres.execute(f"CREATE DATABASE {database}")
    yield postgres.url(database)
    postgres.execute(f"DROP DATABASE {database} WITH (FORCE)")


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """One small local SparkSession for the whole run, with the Kafka connector and JDBC drivers."""
    conf = {
        "spark.sql.shuffle.partitions": "4",
        "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
    }
    # Functions of the test modules are pickled by name, so the workers must be able to import them.
    paths = [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    from backlog.config import SparkSection
    from spark_backfill.session import open_session

    session = open_session(SparkSection(master="local[2]", conf=conf), "backlogctl tests")
    yield session
    session.stop()
