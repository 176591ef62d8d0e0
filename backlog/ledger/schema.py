"""The revision of the ledger's tables: what it is, what it must be, how to get there."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import Connection, inspect, text

from backlog.errors import LedgerError
from backlog.ledger.database import UPGRADE_HINT, LedgerDatabase

VERSION_TABLE = "backlog_revision"
# A test compares them with the migrations; importing Alembic costs 0.2 s.
REVISIONS = ("0001",)
HEAD = REVISIONS[-1]


def upgrade(url: str) -> str:
    """Makes or upgrades the ledger's tables; nothing happens to one that is up to date.

    Returns:
        The revision that the ledger now has.

    Raises:
        LedgerError: the database cannot be reached, or was made by a newer backlogctl.
        ConfigurationError: the URL is not one of SQLite or PostgreSQL.
    """
    database = LedgerDatabase(url)
    try:
        upgrade_database(database)
    finally:
        database.close()
    return HEAD


def upgrade_database(database: LedgerDatabase) -> None:
    """One transaction under a lock: of two that start at once, the second finds nothing to do."""
    with database.write() as connection:
        database.lock_name(connection, "upgrade")
        revision = read_revision(connection)
        if revision == HEAD:
            return
        _refuse_newer(revision, database)
        from alembic import command
        from alembic.config import Config

        config = Config()
        folder = str(Path(__file__).with_name("migrations"))
        config.set_main_option("script_location", folder.replace("%", "%%"))
        config.attributes["connection"] = connection
        command.upgrade(config, "head")


def check_revision(database: LedgerDatabase) -> None:
    """Looks whether the tables are those this program knows.

    Raises:
        LedgerError: they are missing, older, or newer; the hint says what to do.
    """
    with database.read() as connection:
        revision = read_revision(connection)
    if revision == HEAD:
        return
    _refuse_newer(revision, database)
    state = "has no tables yet" if revision is None else f"is at revision {revision}, not {HEAD}"
    raise LedgerError(f"the ledger {state}", subject=database.label, hint=UPGRADE_HINT)


def read_revision(connection: Connection) -> str | None:
    """The revision of the tables; None where there are none."""
    if not inspect(connection).has_table(VERSION_TABLE):
        return None
    found = connection.execute(text(f"SELECT version_num FROM {VERSION_TABLE}")).scalar()
    return None if found is None else str(found)


def _refuse_newer(revision: str | None, database: LedgerDatabase) -> None:
    if revision is not None and revision not in REVISIONS:
        raise LedgerError(
            f"the ledger is at revision {revision}, which this backlogctl does not know",
            subject=database.label,
            hint="it was made by a newer backlogctl: install that one",
        )
