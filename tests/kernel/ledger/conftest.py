"""One fixture runs every test on both databases."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Connection, Engine, create_engine, event

from backlogctl.ledger import Ledger, open_ledger, upgrade
from tests.kit.services import Postgres

IN_SCHEMA = "?options=-csearch_path%3Dledger"


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ledger that is up to date; a copy is quicker than its migration."""
    path: Path = tmp_path_factory.mktemp("template") / "ledger.db"
    upgrade(f"sqlite:///{path}")
    return path


@pytest.fixture(scope="session")
def pg_template(postgres: Postgres) -> Iterator[str]:
    """The name of a database with a ledger that is up to date, in a schema of its own."""
    name = f"test_ledger_{uuid.uuid4().hex[:8]}"
    postgres.execute(f"CREATE DATABASE {name}")
    engine = create_engine(postgres.url(name))
    change(engine, "CREATE SCHEMA ledger")
    engine.dispose()
    upgrade(f"{postgres.url(name)}{IN_SCHEMA}")
    yield name
    postgres.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a database without tables."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/ledger.db"
    return f"{request.getfixturevalue('pg_url')}"


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def url(request: pytest.FixtureRequest, tmp_path: Path, unique: str) -> Iterator[str]:
    """The URL of a ledger that is up to date."""
    if request.param == "sqlite":
        shutil.copy(request.getfixturevalue("sqlite_template"), tmp_path / "ledger.db")
        yield f"sqlite:///{tmp_path}/ledger.db"
        return
    postgres: Postgres = request.getfixturevalue("postgres")
    template = request.getfixturevalue("pg_template")
    postgres.execute(f"CREATE DATABASE test_{unique} TEMPLATE {template}")
    yield f"{postgres.url(f'test_{unique}')}{IN_SCHEMA}"
    postgres.execute(f"DROP DATABASE test_{unique} WITH (FORCE)")


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
