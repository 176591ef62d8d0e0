"""A wrong database, user, password, host or table is said as such: for the source and the ledger."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from sqlalchemy.engine import URL, make_url

from backlogctl.errors import BacklogError, ConfigurationError, LedgerError, SourceError
from backlogctl.ledger import open_ledger
from backlogctl.spark_backfill.sources.reflection import open_engine, reflect_table
from tests.spark_backfill import world

SECRET = "hunter2secret"


@pytest.fixture
def guarded(pg_url: str, unique: str) -> Iterator[URL]:
    """A user whom the server asks for a password; everybody else it trusts."""
    url, user = make_url(pg_url), f"shop_{unique}"
    connection = psycopg.connect(
        host=url.host, port=url.port, user=url.username, dbname=url.database, autocommit=True
    )
    with connection:
        connection.execute(f"CREATE ROLE {user} LOGIN PASSWORD '{SECRET}'".encode())
        row = connection.execute("SHOW hba_file").fetchone()
        assert row is not None
        rules = Path(row[0])
        before = rules.read_text()
        rules.write_text(f"host all {user} all scram-sha-256\n{before}")
        connection.execute("SELECT pg_reload_conf()")
    yield url.set(username=user, password=SECRET)
    lines = rules.read_text().splitlines(keepends=True)
    rules.write_text("".join(line for line in lines if user not in line))
    with psycopg.connect(
        host=url.host, port=url.port, user=url.username, dbname=url.database, autocommit=True
    ) as again:
        again.execute(f"DROP ROLE {user}".encode())


def read_table(url: str, name: str) -> None:
    """Looks a table up."""
    engine = open_engine(world.make_source(url), "shop")
    try:
        reflect_table(engine, "shop", name)
    finally:
        engine.dispose()


def look(url: URL | str, table: str = "orders") -> BacklogError:
    """What looking a table up says."""
    text = url if isinstance(url, str) else url.render_as_string(hide_password=False)
    with pytest.raises(BacklogError) as caught:
        read_table(text, table)
    told = f"{caught.value} {caught.value!r} {caught.value.to_json()}"
    assert SECRET not in told
    assert "wrong-one" not in told
    return caught.value


def open_refused(url: URL) -> LedgerError:
    """What opening a ledger says."""
    with pytest.raises(LedgerError) as caught:
        open_ledger(url.render_as_string(hide_password=False))
    assert SECRET not in f"{caught.value} {caught.value!r}"
    return caught.value


@pytest.mark.postgres
def test_what_is_wrong_in_a_postgresql_url(guarded: URL) -> None:
    place = f"{guarded.host}:{guarded.port}"
    for changes, words in (
        ({"database": "no_such_shop"}, f"{place} has no database 'no_such_shop'"),
        ({"password": "wrong-one"}, f"does not let user '{guarded.username}' in: wrong password"),
        ({"username": "nobody_here", "password": None}, "has no user 'nobody_here'"),
    ):
        wrong = guarded.set(**changes)
        if "password" in changes and changes["password"] is None:
            wrong = URL.create(
                guarded.drivername, "nobody_here", None, guarded.host, guarded.port, "postgres"
            )
        error = look(wrong)
        assert isinstance(error, ConfigurationError)
        assert error.exit_code == 2
        assert words in error.message
        assert error.subject == "sources.shop.url"
        assert "`sources.shop.url`" in error.hint
        refused = open_refused(wrong)
        assert words in refused.message
        assert "`ledger`" in refused.hint
        assert not refused.retryable, "it stays so until the file is corrected"
    none = URL.create(
        guarded.drivername, guarded.username, None, guarded.host, guarded.port, guarded.database
    )
    assert "asks for the password" in look(none).message


@pytest.mark.postgres
def test_a_server_that_is_not_there_may_come_back(guarded: URL) -> None:
    for changes, words in (
        ({"port": 1}, f"cannot be reached: nothing listens at {guarded.host}:1"),
        ({"host": "no-such-host.invalid"}, "there is no host 'no-such-host.invalid'"),
    ):
        error = look(guarded.set(**changes))
        assert isinstance(error, SourceError)
        assert error.retryable
        assert words in error.message
        refused = open_refused(guarded.set(**changes))
        assert refused.retryable
        assert words in refused.message


@pytest.mark.postgres
def test_a_missing_table_is_named_with_the_nearest(pg_url: str) -> None:
    world.fill_table(pg_url, world.ORDERS, [])
    error = look(pg_url, "ordres")
    assert isinstance(error, ConfigurationError)
    assert "has no table 'ordres'" in error.message
    assert "did you mean 'orders'?" in error.hint


def test_sqlite_names_the_file_or_the_table(tmp_path: Path) -> None:
    assert f"there is no file {tmp_path}/none.db" in look(f"sqlite:///{tmp_path}/none.db").message
    path = tmp_path / "notes.txt"
    path.write_text("no database at all, but long enough to be read as one\n" * 20)
    error = look(f"sqlite:///{path}")
    assert isinstance(error, ConfigurationError)
    assert error.message == "the file is not an SQLite database"
    world.fill_table(f"sqlite:///{tmp_path}/shop.db", world.ORDERS, [])
    assert "did you mean 'orders'?" in look(f"sqlite:///{tmp_path}/shop.db", "ordres").hint
