"""Brokers to stop, an outbox, marks and look-back in each of the databases they can be kept in."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import kafka as kafka_python
import pytest
import redis
import sqlalchemy as sa

from backlogctl.sandbox.embedded import EmbeddedKafka
from backlogctl_delivery.idempotent.sql import Marks
from backlogctl_delivery.lookback.grpc_service import SERVICE, add_look_back
from backlogctl_delivery.lookback.settings import LookBackSettings
from backlogctl_delivery.lookback.tables import LookBackDatabase, create_tables
from tests.delivery.kit import Answerer, Base, ServeGrpc, Shop, Teller, make_settings, serve_answers
from tests.kit.services import EmbeddedRedis


@pytest.fixture(scope="module")
def module_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedKafka]:
    place = tmp_path_factory.mktemp("kafka")
    with EmbeddedKafka.start(place, properties={"num.partitions": "1"}) as running:
        yield running


@pytest.fixture
def own_kafka(module_kafka: EmbeddedKafka) -> Iterator[EmbeddedKafka]:
    """A broker that a test stops; the next one of its file finds it running."""
    yield module_kafka
    if module_kafka._nodes[0].alive():
        os.kill(module_kafka.pid, signal.SIGCONT)
    else:
        module_kafka.restart()


@pytest.fixture
def kafka_python_producer(kafka: EmbeddedKafka) -> Iterator[kafka_python.KafkaProducer]:
    producer = kafka_python.KafkaProducer(bootstrap_servers=kafka.bootstrap, linger_ms=5)
    yield producer
    producer.close(10)


@pytest.fixture(params=["postgres", "mariadb", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return find_url(request, tmp_path)


def find_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty database."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'shop.db'}"
    name = {"postgres": "pg_url", "mariadb": "mariadb_url"}[request.param]
    return str(request.getfixturevalue(name))


@pytest.fixture
def shop(url: str, kafka: EmbeddedKafka) -> Iterator[Shop]:
    """An application with an outbox in that database."""
    with Shop(url, kafka.bootstrap) as made:
        yield made


@pytest.fixture
def pg_shop(pg_url: str, kafka: EmbeddedKafka) -> Iterator[Shop]:
    """The same in PostgreSQL, for what no database changes."""
    with Shop(pg_url, kafka.bootstrap) as made:
        yield made


@pytest.fixture
def reader_url(pg_shop: Shop, unique: str) -> Iterator[sa.URL]:
    """The same as a user who may only look at the outbox."""
    name, password = f"reader_{unique}", "hunter2secret"
    with pg_shop.engine.begin() as connection:
        connection.exec_driver_sql(f"CREATE ROLE {name} LOGIN PASSWORD '{password}'")
        connection.exec_driver_sql(f"GRANT SELECT ON backlog_outbox TO {name}")
    yield pg_shop.engine.url.set(username=name, password=password)
    with pg_shop.engine.begin() as connection:
        connection.exec_driver_sql(f"DROP OWNED BY {name}")
        connection.exec_driver_sql(f"DROP ROLE {name}")


@pytest.fixture
def mariadb_reader_url(mariadb_url: str, unique: str) -> Iterator[sa.URL]:
    """The same in MariaDB."""
    user, password = f"reader_{unique}", "hunter2secret"
    with Shop(mariadb_url, "unused:1") as shop:
        url = shop.engine.url.set(username=user, password=password)
        account = f"{user}@'{url.host}'"
        with shop.engine.begin() as connection:
            connection.exec_driver_sql(f"CREATE USER {account} IDENTIFIED BY '{password}'")
            connection.exec_driver_sql(f"GRANT SELECT ON backlog_outbox TO {account}")
        yield url
        with shop.engine.begin() as connection:
            connection.exec_driver_sql(f"DROP USER {account}")


@pytest.fixture(scope="session")
def redis_server() -> Iterator[EmbeddedRedis]:
    """One for the process; a test that kills it starts it again."""
    with EmbeddedRedis() as running:
        yield running


@pytest.fixture
def client(redis_server: EmbeddedRedis) -> Iterator[redis.Redis]:
    with redis_server.connect() as client:
        yield client


@pytest.fixture
def engine(url: str) -> Iterator[sa.Engine]:
    made = sa.create_engine(url)
    yield made
    made.dispose()


@pytest.fixture
def marks(engine: sa.Engine) -> Marks:
    marks = Marks("payments_handled")
    marks.create_tables(engine)
    Base.metadata.create_all(engine)
    return marks


@pytest.fixture(params=["postgres", "sqlite"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return find_url(request, tmp_path)


def open_tables(url: str) -> Iterator[LookBackDatabase]:
    made = LookBackDatabase(url)
    create_tables(made)
    yield made
    made.close()


@pytest.fixture
def database(database_url: str) -> Iterator[LookBackDatabase]:
    yield from open_tables(database_url)


@pytest.fixture
def pg_database(pg_url: str) -> Iterator[LookBackDatabase]:
    yield from open_tables(pg_url)


@pytest.fixture
def settings() -> LookBackSettings:
    """Nobody is asked by itself."""
    return make_settings()


@pytest.fixture
def teller(database: LookBackDatabase, settings: LookBackSettings) -> Teller:
    """Tells the tables what applications say."""
    return Teller(database, settings)


@pytest.fixture
def answerer() -> Iterator[Answerer]:
    """A service on this machine."""
    with serve_answers() as running:
        yield running


@pytest.fixture
def serve_grpc() -> Iterator[ServeGrpc]:
    """gRPC servers of the test's own."""
    servers: list[Any] = []
    pool = ThreadPoolExecutor(4)

    def serve(answer: Callable[[str, str], str], padding: int = 0) -> str:
        server = grpc.server(pool)
        add_look_back(server, answer)
        if padding:
            # What is registered first answers.
            server = grpc.server(pool, handlers=[make_padded(padding)])
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        servers.append(server)
        return f"127.0.0.1:{port}"

    def make_padded(padding: int) -> Any:
        handler = grpc.unary_unary_rpc_method_handler(lambda *_: b" " * padding)
        return grpc.method_handlers_generic_handler(SERVICE, {"Check": handler})

    yield serve
    for server in servers:
        server.stop(None).wait(30)
    pool.shutdown()
