"""The two databases, made ready, and a service that is asked."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest

from backlogctl_delivery.lookback.grpc_service import SERVICE, add_look_back
from backlogctl_delivery.lookback.settings import LookBackSettings
from backlogctl_delivery.lookback.tables import Database, create_tables
from tests.delivery.lookback.world import (
    Answerer,
    ServeGrpc,
    Teller,
    make_settings,
    serve_answers,
)


@pytest.fixture(params=["postgres", "sqlite"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Of an empty database of each kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/look-back.db"
    url: str = request.getfixturevalue("pg_url")
    return url


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    """With its tables."""
    made = Database(database_url)
    create_tables(made)
    yield made
    made.close()


@pytest.fixture
def pg_database(pg_url: str) -> Iterator[Database]:
    """PostgreSQL only, with its tables."""
    made = Database(pg_url)
    create_tables(made)
    yield made
    made.close()


@pytest.fixture
def settings(database_url: str) -> LookBackSettings:
    """Nobody is asked by itself."""
    return make_settings()


@pytest.fixture
def teller(database: Database, settings: LookBackSettings) -> Teller:
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
