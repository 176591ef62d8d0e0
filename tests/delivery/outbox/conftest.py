"""An outbox in each of the databases it can be kept in."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sandbox.embedded import EmbeddedKafka
from tests.delivery.outbox.shop import Shop


@pytest.fixture(params=["postgres", "mariadb", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
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
