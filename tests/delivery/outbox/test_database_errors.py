"""What a user reads when the database of an outbox does not do its part."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import create_engine, make_url

from backlogctl_delivery.outbox import OutboxDatabaseError, create_tables
from backlogctl_delivery.outbox.admin import OutboxAdmin
from backlogctl_delivery.outbox.database import Database

SECRET = "hunter2secret"
_NOT_SQLITE = ["postgres", "mariadb"]


def fail(url: str) -> OutboxDatabaseError:
    with closing(Database(url)) as database, pytest.raises(OutboxDatabaseError) as caught:
        OutboxAdmin(database).read_status()
    assert not caught.value.message.startswith("(")
    assert SECRET not in f"{caught.value} {caught.value!r} {caught.value.to_json()}"
    return caught.value


def test_a_table_that_is_missing_is_said_with_how_it_is_made(url: str) -> None:
    database = make_url(url)
    if database.get_backend_name() == "sqlite":
        Path(str(database.database)).touch()
    error = fail(url)
    assert "its tables are missing" in error.message
    assert "backlogctl outbox create" in error.hint
    assert not error.retryable


@pytest.mark.parametrize("url", _NOT_SQLITE, indirect=True)
def test_a_login_that_is_refused_is_said_and_not_tried_again(url: str) -> None:
    made = make_url(url).set(username="nobody", password=SECRET)
    error = fail(made.render_as_string(hide_password=False))
    assert "nobody" in error.message
    assert "user" in error.hint
    assert not error.retryable


@pytest.mark.parametrize("url", _NOT_SQLITE, indirect=True)
def test_a_database_that_is_not_there_is_said(url: str) -> None:
    error = fail(make_url(url).set(database="nowhere").render_as_string(hide_password=False))
    assert "nowhere" in error.message
    assert not error.retryable


@pytest.mark.parametrize("url", _NOT_SQLITE, indirect=True)
def test_fault_59_a_server_that_is_away_may_come_back(url: str) -> None:
    made = make_url(url).set(port=1, password=SECRET)
    error = fail(made.render_as_string(hide_password=False))
    assert "cannot be reached" in error.message
    assert error.retryable


def test_a_right_that_is_missing_in_postgresql_is_said(pg_url: str, unique: str) -> None:
    user, engine = f"reader_{unique}", create_engine(pg_url)
    with engine.begin() as connection:
        create_tables(connection)
        connection.exec_driver_sql(f"CREATE ROLE {user} LOGIN PASSWORD '{SECRET}'")
        connection.exec_driver_sql(f"GRANT SELECT ON backlog_outbox TO {user}")
    made = make_url(pg_url).set(username=user, password=SECRET)
    try:
        with (
            closing(Database(made)) as database,
            pytest.raises(OutboxDatabaseError, match="may not do this") as caught,
        ):
            OutboxAdmin(database).retry([], all_parked=True)
        assert "give this right to the user" in caught.value.hint
        assert not caught.value.retryable
    finally:
        with engine.begin() as connection:
            connection.exec_driver_sql(f"DROP OWNED BY {user}")
            connection.exec_driver_sql(f"DROP ROLE {user}")
        engine.dispose()


def test_a_right_that_is_missing_in_mariadb_is_said(mariadb_url: str) -> None:
    def grant(database: Database) -> None:
        with database.begin() as connection:
            create_tables(connection)
            # Its user may do everything here but this.
            connection.exec_driver_sql("GRANT SELECT ON backlog_outbox TO nobody")

    with (
        closing(Database(mariadb_url)) as database,
        pytest.raises(OutboxDatabaseError, match="may not do this") as caught,
    ):
        grant(database)
    assert "give this right to the user" in caught.value.hint
