"""One fixture runs every test on both databases."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Connection, Engine, create_engine, event

from backlog.ledger import Ledger, open_ledger, upgrade
from tests.services import Postgres


@pytest.fixture(scope="session")
def pg_database(postgres: Postgres) -> Iterator[str]:
    """One database for all of this process's tests of the ledger."""
    database = f"test_ledger_{uuid.uuid4().hex[:8]}"
    postgres.execute(f"CREATE DATABASE {database}")
    yield postgres.url(database)
    postgres.execute(f"DROP DATABASE {database} WITH (FORCE)")


@pytest.fixture
def pg_schema(pg_database: str, unique: str) -> str:
    """The URL of an empty schema of the test's own; quicker to make than a database."""
    engine = create_engine(pg_database)
    with engine.begin() as connection:
        connection.exec_driver_sql(f"CREATE SCHEMA test_{unique}")
    engine.dispose()
    return f"{pg_database}?options=-csearch_path%3Dtest_{unique}"


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a database without tables."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/ledger.db"
    return f"{request.getfixturevalue('pg_schema')}"


@pytest.fixture
def url(empty_url: str) -> str:
    """The URL of a ledger that is up to date."""
    upgrade(empty_url)
    return empty_url


@pytest.fixture
def ledger(url: str) -> Iterator[Ledger]:
    """An open ledger."""
    with open_ledger(url) as opened:
        yield opened


@pytest.fixture
def raw(url: str) -> Iterator[Engine]:
    """A plain engine: somebody who goes past our code."""
    engine = create_engine(url)
    if url.startswith("sqlite"):
        event.listen(engine, "connect", lambda c, _: c.execute("PRAGMA foreign_keys = ON"))
    yield engine
    engine.dispose()


def change(engine: Engine, statement: str) -> None:
    """Runs one statement in a transaction of its own."""
    with engine.begin() as connection:
        connection.exec_driver_sql(statement)


def drop_triggers(connection: Connection, table: str) -> None:
    """Takes a table's guards away, as somebody with full rights can."""
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql(f"ALTER TABLE {table} DISABLE TRIGGER USER")
        return
    names = connection.exec_driver_sql(
        f"SELECT name FROM sqlite_master WHERE type = 'trigger' AND tbl_name = '{table}'"
    ).scalars()
    for name in list(names):
        connection.exec_driver_sql(f"DROP TRIGGER {name}")
