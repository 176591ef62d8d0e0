"""One fixture runs every test on both databases."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Connection, Engine, create_engine, event

from backlogctl.ledger import Ledger, open_ledger, upgrade
from backlogctl.ledger.schema import metadata
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


@pytest.fixture(scope="session")
def pg_emptied(postgres: Postgres) -> Iterator[list[str]]:
    """Names of databases with an empty ledger that a test has left: quicker than a new one."""
    names: list[str] = []
    yield names
    for name in names:
        postgres.execute(f"DROP DATABASE {name} WITH (FORCE)")


def delete_all(url: str) -> None:
    """Rows only, as if no test had been here: also those that the triggers protect."""
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.exec_driver_sql("SET LOCAL session_replication_role = replica")
        connection.exec_driver_sql("SET LOCAL lock_timeout = '30s'")
        used = [
            f"ledger.{name}"
            for name in metadata.tables
            if name != "backlog_transitions"  # the migration's own
            and connection.exec_driver_sql(f"SELECT EXISTS (SELECT FROM ledger.{name})").scalar()
        ]
        if used:
            connection.exec_driver_sql(f"TRUNCATE {', '.join(used)} RESTART IDENTITY CASCADE")
    engine.dispose()


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
    emptied = request.getfixturevalue("pg_emptied")
    name = emptied.pop() if emptied else f"test_{unique}"
    if name == f"test_{unique}":
        postgres.execute(f"CREATE DATABASE {name} TEMPLATE {template}")
    yield f"{postgres.url(name)}{IN_SCHEMA}"
    if "raw" in request.fixturenames or request.module.__name__.endswith("test_schema"):
        postgres.execute(f"DROP DATABASE {name} WITH (FORCE)")  # it may have changed the tables
    else:
        delete_all(postgres.url(name))
        emptied.append(name)


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
