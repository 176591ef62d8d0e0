"""A Redis of the tests' own, and databases by their URL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from backlogctl_delivery.idempotent.sql import Marks
from tests.delivery.once.payments import Base
from tests.redis_server import EmbeddedRedis


@pytest.fixture(scope="session")
def redis_server() -> Iterator[EmbeddedRedis]:
    """One for the process; a test that kills it starts it again."""
    with EmbeddedRedis() as running:
        yield running


@pytest.fixture(params=["postgres", "mariadb", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty database."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'shop.db'}"
    name = {"postgres": "pg_url", "mariadb": "mariadb_url"}[request.param]
    return str(request.getfixturevalue(name))


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
