"""What a user reads when the database does not do its part."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from backlog.errors import ConfigurationError, LedgerError
from backlog.ledger import open_ledger
from backlogctl_delivery import database
from backlogctl_delivery.database_failures import mask_url
from tests.backlog.ledger.makers import make_sample

SECRET = "hunter2secret"


def test_fault_59_unreachable_database_is_said_without_the_password() -> None:
    with pytest.raises(LedgerError) as caught:
        open_ledger(f"postgresql+psycopg://ada:{SECRET}@127.0.0.1:1/ledger?connect_timeout=2")
    error = caught.value
    assert error.retryable
    assert "cannot be reached" in error.message
    assert "127.0.0.1:1" in error.subject
    assert error.__suppress_context__
    assert SECRET not in f"{error} {error!r} {error.to_json()}"


@pytest.mark.postgres
def test_fault_59_password_is_not_said_when_a_name_is_wrong(pg_url: str) -> None:
    url = pg_url.rsplit("/", 1)[0].replace("postgres@", f"nobody:{SECRET}@") + "/no_such_database"
    with pytest.raises(LedgerError) as caught:
        open_ledger(url)
    assert SECRET not in f"{caught.value} {caught.value!r}"


@pytest.mark.parametrize(
    "url",
    ["nonsense", f"mysql://ada:{SECRET}@host/db", "sqlite://", "sqlite:///:memory:", ""],
)
def test_url_that_is_no_ledger_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        open_ledger(url)
    assert "sqlite:///backlog.db" in caught.value.hint
    assert SECRET not in f"{caught.value!r}"


def test_file_that_is_no_database_is_named(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("no database at all, but long enough to be read as one\n" * 20)
    with pytest.raises(LedgerError) as caught:
        open_ledger(f"sqlite:///{path}")
    assert "not an SQLite database" in caught.value.message
    assert str(path) in caught.value.subject


def test_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(LedgerError) as caught:
        open_ledger(f"sqlite:///{tmp_path}/nowhere/ledger.db")
    assert "nowhere" in caught.value.subject
    assert caught.value.hint


def test_locked_ledger_can_be_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "BUSY_SECONDS", 0.1)
    path = tmp_path / "ledger.db"
    with open_ledger(f"sqlite:///{path}") as ledger:
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        assert ledger.samples.latest("orders") is None  # a reader does not wait for a writer
        with pytest.raises(LedgerError) as caught:
            ledger.samples.add(make_sample())
        assert caught.value.retryable
        assert "locked" in caught.value.message
        other.execute("ROLLBACK")
        ledger.samples.add(make_sample())
        other.close()


def test_url_is_shown_without_secrets() -> None:
    parsed = database.parse_url(f"postgresql://ada:{SECRET}@host/db?password={SECRET}", "ledger")
    assert mask_url(parsed) == "postgresql+psycopg://ada:***@host/db"
