"""What a user reads when the database of an outbox does not do its part."""

from __future__ import annotations

from contextlib import closing

import pytest
from sqlalchemy import make_url

from delivery.outbox import OutboxDatabaseError
from delivery.outbox.databases import Database
from delivery.outbox.desk import Desk

SECRET = "hunter2secret"
_NOT_SQLITE = ["postgres", "mariadb"]


def fail(url: str) -> OutboxDatabaseError:
    with closing(Database(url)) as database, pytest.raises(OutboxDatabaseError) as caught:
        Desk(database).read_status()
    assert not caught.value.message.startswith("(")
    assert SECRET not in f"{caught.value} {caught.value!r} {caught.value.to_json()}"
    return caught.value


def test_a_table_that_is_missing_is_said_with_how_it_is_made(url: str) -> None:
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
