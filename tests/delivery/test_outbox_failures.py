"""What people read whose outbox does not work: its database, its brokers, what they set up wrong."""

from __future__ import annotations

import logging
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import URL, create_engine, event, make_url, select, update
from sqlalchemy.exc import DBAPIError

from backlogctl_delivery.database_failures import DatabasePlace, explain_failure
from backlogctl_delivery.outbox import (
    Outbox,
    OutboxDatabaseError,
    OutboxSender,
)
from backlogctl_delivery.outbox.admin import OutboxAdmin
from backlogctl_delivery.outbox.database import OutboxDatabase, messages
from tests.conftest import MakeTopic
from tests.delivery.kit import Shop, list_own
from tests.kit.kafka import wait_until
from tests.kit.secured import start_secured
from tests.kit.shop import call_main

SECRET = "hunter2secret"

# What a user reads when the database of an outbox does not do its part.

_NOT_SQLITE = ["postgres", "mariadb"]


def fail(url: str) -> OutboxDatabaseError:
    with closing(OutboxDatabase(url)) as database, pytest.raises(OutboxDatabaseError) as caught:
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


def test_fault_46_a_row_that_changed_since_it_was_read_is_tried_again(mariadb_url: str) -> None:
    """MariaDB undoes such a transaction as it does one of a deadlock; from 11.6 on by default."""
    strict = create_engine(mariadb_url, isolation_level="REPEATABLE READ")
    touch = update(messages).values(attempts=messages.c.attempts + 1)

    @event.listens_for(strict, "connect")
    def isolate(connection: Any, _: Any) -> None:
        connection.query("SET innodb_snapshot_isolation = ON")

    with Shop(mariadb_url, "unused:1") as shop, strict.connect() as slow:
        shop.add("t", "a")
        slow.execute(select(messages.c.id))
        with shop.engine.begin() as other:
            other.execute(touch)
        with pytest.raises(DBAPIError, match="Record has changed since last read") as caught:
            slow.execute(touch)
    strict.dispose()
    place = DatabasePlace("outbox in", make_url(mariadb_url), "url", "")
    assert explain_failure(caught.value, place, OutboxDatabaseError).retryable


@pytest.mark.parametrize("reader", ["reader_url", "mariadb_reader_url"])
def test_a_right_that_is_missing_is_said(request: pytest.FixtureRequest, reader: str) -> None:
    with (
        closing(OutboxDatabase(request.getfixturevalue(reader))) as database,
        pytest.raises(OutboxDatabaseError, match="may not do this") as caught,
    ):
        OutboxAdmin(database).retry([], all_parked=True)
    assert "give this right to the user" in caught.value.hint
    assert not caught.value.retryable


def test_fault_170_a_file_that_mariadb_cannot_write_may_be_written_later(mariadb_url: str) -> None:
    """As its temporary ones on a full disk: its numbers are below 100, and PyMySQL's class for them
    is InternalError."""
    with (
        closing(OutboxDatabase(mariadb_url)) as database,
        pytest.raises(
            OutboxDatabaseError, match="does not do it now: Can't create/write"
        ) as caught,
        database.begin() as connection,
    ):
        connection.exec_driver_sql(
            "CREATE TABLE t (a INT) ENGINE=MyISAM DATA DIRECTORY='/no/such/directory'"
        )
    assert "look at the server's log and its disk" in caught.value.hint
    assert caught.value.retryable


# What somebody sees who set something up wrong: what it is, that it is true, and the way out.


def run(tmp_path: Path, *words: str) -> str:
    """What the command says."""
    _, out, err = call_main(("outbox", *words), tmp_path, {})
    return out + err


def test_a_broker_that_is_not_there_is_told_at_once_and_nothing_is_claimed(
    pg_shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    pg_shop.add("orders", "a")
    with pg_shop.sending(kafka={"bootstrap.servers": "127.0.0.1:1"}) as sender:
        wait_until(lambda: sender.kafka_outage.is_on, 10, "it is told")
        assert pg_shop.list_rows("state", "attempts") == [("pending", 0)]
    (warned,) = [record.getMessage() for record in list_own(caplog)]
    assert warned.startswith("Kafka: no broker answers: ")
    assert "Connection refused" in warned
    assert "bootstrap.servers 127.0.0.1:1" in warned


def test_a_refused_login_is_told_as_that(
    pg_shop: Shop, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with start_secured(tmp_path) as secured:
        kafka = secured.login("admin", "not-the-password")
        with pg_shop.sending(kafka=kafka) as sender:
            wait_until(lambda: sender.kafka_outage.is_on, 20, "it is told")
    warned = list_own(caplog)[0].getMessage()
    assert "refused the login" in warned
    assert "sasl.password" in warned
    assert "not-the-password" not in caplog.text


def test_a_topic_that_is_not_there(
    pg_shop: Shop, unique: str, caplog: pytest.LogCaptureFixture
) -> None:
    name = f"nowhere-{unique}"
    pg_shop.add(name, "a")
    with caplog.at_level(logging.WARNING), pg_shop.sending():
        wait_until(lambda: list_own(caplog), what="the second refusal is told")
    assert "is tried again: UNKNOWN_TOPIC_OR_PART" in caplog.text
    assert f"to topic {name}" in caplog.text
    assert "there is no such topic: create it; see `backlogctl outbox list`" in caplog.text


def test_a_refusal_just_before_the_end_is_told(
    pg_shop: Shop, unique: str, caplog: pytest.LogCaptureFixture
) -> None:
    name = f"nowhere-{unique}"
    with (
        Outbox(pg_shop.engine, kafka={"bootstrap.servers": pg_shop.bootstrap}) as outbox,
        pg_shop.engine.begin() as connection,
    ):
        outbox.add(connection, topic=name, value="v")
    assert "there is no such topic: create it" in caplog.text


def test_status_says_that_some_were_tried(pg_shop: Shop, unique: str, tmp_path: Path) -> None:
    pg_shop.add(f"nowhere-{unique}", "a")
    with pg_shop.sending():
        wait_until(lambda: pg_shop.list_rows("last_error") != [(None,)], what="it is refused")
    said = run(tmp_path, "status", "--url", pg_shop.url)
    assert "tried before, and waiting: 1; `backlogctl outbox list` says why" in said
    pg_shop.add("orders", "b")
    assert '"failed": 1' in run(tmp_path, "status", "--url", pg_shop.url, "--json")


def test_a_message_that_is_too_large_for_the_client(
    pg_shop: Shop, topic: MakeTopic, tmp_path: Path
) -> None:
    name = topic(1)
    with pg_shop.engine.begin() as connection:
        pg_shop.outbox.add(connection, topic=name, value="x" * 2_000_000)
    with pg_shop.sending():
        wait_until(lambda: pg_shop.list_rows("last_error") != [(None,)], what="it is refused")
    said = " ".join(run(tmp_path, "show", "1", "--url", pg_shop.url).split())
    assert "MSG_SIZE_TOO_LARGE" in said
    assert "raise message.max.bytes of the sender and max.message.bytes of the topic" in said


def test_a_user_of_the_database_without_rights(
    pg_shop: Shop, reader_url: URL, caplog: pytest.LogCaptureFixture
) -> None:
    pg_shop.add("orders", "a")
    with closing(OutboxSender(reader_url, {"bootstrap.servers": pg_shop.bootstrap})) as sender:
        sender.start()
        wait_until(lambda: sender.database_outage.is_on, what="it is told")
    assert "permission denied for table backlog_outbox" in caplog.text
    assert "give this right to the user" in caplog.text
