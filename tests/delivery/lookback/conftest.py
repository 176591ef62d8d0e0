"""The two databases, made ready, and a service that is asked."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from backlog.config import LookBack
from delivery.lookback.database import Database
from delivery.lookback.tables import create_tables
from tests.delivery.lookback.world import Answerer, Teller, make_settings, serve_answers


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
def settings(database_url: str) -> LookBack:
    """Nobody is asked by itself."""
    return make_settings(database_url)


@pytest.fixture
def teller(database: Database, settings: LookBack) -> Teller:
    """Tells the tables what applications say."""
    return Teller(database, settings)


@pytest.fixture
def answerer() -> Iterator[Answerer]:
    """A service on this machine."""
    with serve_answers() as running:
        yield running
