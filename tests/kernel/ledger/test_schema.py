"""How a ledger comes to be, and how it is found wanting."""

from __future__ import annotations

import sqlite3
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Engine

from backlogctl.errors import ConfigurationError, LedgerError
from backlogctl.ledger import open_ledger, schema, upgrade
from backlogctl.ledger.schema import LedgerDatabase, metadata
from backlogctl_delivery import database
from backlogctl_delivery.database_failures import mask_url
from tests.kernel.ledger.conftest import change
from tests.kernel.ledger.makers import make_sample

# What a user reads when the database does not do its part.

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


def test_tables_made_by_migrations_are_those_of_the_models(raw: Engine) -> None:
    with raw.connect() as connection:
        options = {"version_table": schema.VERSION_TABLE, "compare_type": False}
        context = MigrationContext.configure(connection, opts=options)
        assert compare_metadata(context, metadata) == []


def test_revisions_are_those_of_the_migrations() -> None:
    config = Config()
    config.set_main_option("script_location", str(Path(schema.__file__).parent / "migrations"))
    scripts = list(ScriptDirectory.from_config(config).walk_revisions())
    assert tuple(each.revision for each in reversed(scripts)) == schema.REVISIONS


def test_older_tables_are_refused_until_they_are_upgraded(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schema, "HEAD", "0002")
    database = LedgerDatabase(url)
    with pytest.raises(LedgerError, match="is at revision 0001, not 0002") as caught:
        schema.check_revision(database)
    assert "backlogctl db upgrade" in caught.value.hint
    database.close()


def test_upgrade_twice_is_upgrade_once(empty_url: str) -> None:
    assert upgrade(empty_url) == upgrade(empty_url) == schema.HEAD


def test_two_that_make_the_ledger_at_once_both_have_it(empty_url: str) -> None:
    code = (
        "import sys; from backlogctl_delivery import database; from backlogctl.ledger import *\n"
        "database.BUSY_SECONDS = 60; upgrade(sys.argv[1]); open_ledger(sys.argv[1])"
    )
    both = [subprocess.Popen([sys.executable, "-c", code, empty_url]) for _ in range(3)]
    assert [process.wait(120) for process in both] == [0, 0, 0]


def test_embedded_ledger_makes_itself_for_its_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    with open_ledger(f"sqlite:///{path}") as ledger:
        assert ledger.gaps.list() == ()
        modes = {each.name: stat.S_IMODE(each.stat().st_mode) for each in tmp_path.iterdir()}
        assert set(modes.values()) == {0o600}, modes


@pytest.mark.postgres
def test_postgresql_is_not_made_by_opening(pg_url: str) -> None:
    with pytest.raises(LedgerError) as caught:
        open_ledger(pg_url)
    assert "no tables" in caught.value.message
    assert "backlogctl db upgrade" in caught.value.hint


def test_ledger_of_a_newer_program_is_refused(url: str, raw: Engine) -> None:
    change(raw, f"UPDATE {schema.VERSION_TABLE} SET version_num = '9999'")
    for verb in (open_ledger, upgrade):
        with pytest.raises(LedgerError) as caught:
            verb(url)
        assert "newer backlogctl" in caught.value.hint


def test_nothing_is_left_of_an_upgrade_that_fails(
    empty_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from alembic import command

    real = command.upgrade

    def fail(config: Config, revision: str) -> None:
        real(config, revision)
        raise RuntimeError("killed")

    monkeypatch.setattr(command, "upgrade", fail)
    with pytest.raises(RuntimeError):
        upgrade(empty_url)
    monkeypatch.undo()
    upgrade(empty_url)
    open_ledger(empty_url).close()
