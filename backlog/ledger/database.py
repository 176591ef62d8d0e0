"""The one way to the ledger's database: transactions, the clock, errors translated once."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event, func, select, text
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import (
    ArgumentError,
    DBAPIError,
    IntegrityError,
    NoSuchModuleError,
    SQLAlchemyError,
)
from sqlalchemy.pool import Pool, QueuePool

from backlog.clock import utc_now
from backlog.errors import BacklogError, ConfigurationError, InvalidTransition, LedgerError, Refused
from backlog.postgres import add_liveness
from backlog.postgres_refusals import explain_refusal

REFUSAL = "backlog refuses: "  # how the triggers' messages start
BUSY_SECONDS = 10
UPGRADE_HINT = "run `backlogctl db upgrade`"


class UniqueConflict(InvalidTransition):
    """A unique index refused the row; managers say which other row has it."""


class Database:
    """One ledger database.

    `read()` and `write()` are transactions. On SQLite a write is BEGIN IMMEDIATE, so two processes
    run one after the other; on PostgreSQL managers lock the rows they decide on. SQLAlchemy's and
    the driver's errors come out as LedgerError (unreachable, locked, not upgraded) or as refusals
    (a trigger, a constraint), never with the password.
    """

    def __init__(self, url: str) -> None:
        self.url = parse_url(url)
        self.is_sqlite = self.url.get_backend_name() == "sqlite"
        if self.is_sqlite:
            make_private_file(self.url)
        self._engine = make_engine(self.url)
        self._writer = self._engine.execution_options(ledger_write=True)
        self._pid = os.getpid()
        self._inherited: list[Pool] = []

    @property
    def label(self) -> str:
        """The URL without its password: `ledger sqlite:///backlog.db`."""
        return f"ledger {mask_url(self.url)}"

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """A transaction that only looks; one consistent view on SQLite."""
        self._leave_parent()
        with self._translate(), self._engine.begin() as connection:
            yield connection

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """A transaction that changes; all of it or nothing."""
        self._leave_parent()
        with self._translate(), self._writer.begin() as connection:
            yield connection

    def now(self, connection: Connection) -> datetime:
        """The database's clock, so that hosts whose clocks differ agree on what has expired.

        An SQLite file is on one machine: there it is the machine's clock.
        """
        if self.is_sqlite:
            return utc_now()
        now: datetime = connection.execute(select(func.clock_timestamp())).scalar_one()
        return now.astimezone(UTC)

    def lock_name(self, connection: Connection, name: str) -> None:
        """Waits for the others that hold `name`, to the end of the transaction.

        SQLite's writers already come one after the other.
        """
        if not self.is_sqlite:
            connection.execute(
                text("SELECT pg_advisory_xact_lock(hashtextextended(:name, 0))"),
                {"name": f"backlog:{name}"},
            )

    def close(self) -> None:
        self._engine.dispose()

    def _leave_parent(self) -> None:
        """After a fork: connections of the parent are neither used here nor closed."""
        if os.getpid() != self._pid:
            self._inherited.append(self._engine.pool)
            self._engine.dispose(close=False)
            self._pid = os.getpid()

    @contextmanager
    def _translate(self) -> Iterator[None]:
        try:
            yield
        except BacklogError:
            raise
        except SQLAlchemyError as error:
            raise translate_error(error, self.url) from None


def parse_url(url: str) -> URL:
    """Reads a ledger URL.

    Raises:
        ConfigurationError: it is no SQLite file and no PostgreSQL database. The URL is not
            repeated, as it may hold a password.
    """
    hint = "use sqlite:///backlog.db or postgresql+psycopg://user@host/database"
    try:
        parsed = make_url(url)
        backend = parsed.get_backend_name()
    except (ArgumentError, NoSuchModuleError, ValueError):
        raise ConfigurationError(
            "this is not a database URL", subject="ledger", hint=hint
        ) from None
    if parsed.drivername in ("postgres", "postgresql"):
        return parsed.set(drivername="postgresql+psycopg")
    if backend == "sqlite":
        name = parsed.database or ""
        if not name or ":memory:" in name or name.startswith("file:"):
            raise ConfigurationError(
                "an SQLite ledger must be a plain file, because several processes share it",
                subject="ledger",
                hint=hint,
            )
    if parsed.drivername not in ("sqlite", "sqlite+pysqlite", "postgresql+psycopg"):
        raise ConfigurationError(
            f"the ledger cannot be kept in {parsed.drivername}", subject="ledger", hint=hint
        )
    return parsed


def mask_url(url: URL) -> str:
    """The URL without password and without query (which may hold one as well)."""
    return url.set(query={}).render_as_string(hide_password=True)


def make_private_file(url: URL) -> None:
    """Makes the SQLite file readable by its owner only; SQLite gives -wal and -shm the same mode.

    Raises:
        LedgerError: it cannot be made there.
    """
    path = Path(str(url.database))
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    except FileExistsError:
        return
    except OSError as error:
        raise LedgerError(
            f"the file cannot be made: {error.strerror}",
            subject=f"ledger {path}",
            hint="check `ledger:` in the configuration and the rights of the folder",
        ) from None


def make_engine(url: URL) -> Engine:
    """An engine whose connections are set up as the ledger needs them."""
    if url.get_backend_name() == "sqlite":
        # Pooled: closing the last connection writes the whole WAL back, at each verb.
        engine = create_engine(
            url,
            poolclass=QueuePool,
            pool_size=2,
            max_overflow=8,
            hide_parameters=True,
            connect_args={"timeout": BUSY_SECONDS, "isolation_level": None},
        )
        event.listen(engine, "connect", _set_up_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
        return engine
    if "connect_timeout" not in url.query:
        url = url.update_query_dict({"connect_timeout": str(BUSY_SECONDS)})
    engine = create_engine(
        add_liveness(url),
        pool_size=2,
        max_overflow=8,
        pool_pre_ping=True,
        hide_parameters=True,
        isolation_level="READ COMMITTED",
    )
    event.listen(engine, "connect", _set_up_postgres)
    return engine


def _set_up_sqlite(connection: Any, _record: Any) -> None:
    connection.execute(f"PRAGMA busy_timeout = {BUSY_SECONDS * 1000}")
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute("PRAGMA recursive_triggers = ON")  # INSERT OR REPLACE fires delete triggers
    connection.execute("PRAGMA synchronous = FULL")
    if connection.execute("PRAGMA journal_mode").fetchone()[0] == "wal":
        return
    # Changing the mode does not wait for busy_timeout, and two processes may open a new file.
    end = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > end:
                raise
            time.sleep(0.02)


def _begin_sqlite(connection: Connection) -> None:
    writes = connection.get_execution_options().get("ledger_write", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _set_up_postgres(connection: Any, _record: Any) -> None:
    with connection.cursor() as cursor:
        cursor.execute(f"SET lock_timeout = '{BUSY_SECONDS}s'")
    connection.commit()


def translate_error(error: SQLAlchemyError, url: URL) -> BacklogError:
    """What a database error means to a user."""
    subject = f"ledger {mask_url(url)}"
    if not isinstance(error, DBAPIError):
        return LedgerError(_clean(str(error), url), subject=subject)
    original = error.orig
    reason = _clean(str(original), url)
    name = str(getattr(original, "sqlite_errorname", "") or "")
    state = str(getattr(original, "sqlstate", "") or "")
    if REFUSAL in reason:
        return InvalidTransition(reason.split(REFUSAL, 1)[1], subject=subject)
    if state == "23505" or name in ("SQLITE_CONSTRAINT_UNIQUE", "SQLITE_CONSTRAINT_PRIMARYKEY"):
        return UniqueConflict(reason, subject=subject)
    if isinstance(error, IntegrityError):
        return Refused(f"the ledger refuses this: {reason}", subject=subject)
    if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")) or state in ("55P03", "40P01", "40001"):
        return LedgerError(
            f"it is locked by another process for more than {BUSY_SECONDS} s: {reason}",
            subject=subject,
            hint="try again; look for a backlogctl that hangs",
            retryable=True,
        )
    if state in ("42P01", "42703") or "no such table" in reason or "no such column" in reason:
        return LedgerError(f"its tables are missing: {reason}", subject=subject, hint=UPGRADE_HINT)
    if name.startswith("SQLITE_NOTADB"):
        return LedgerError(
            "the file is not an SQLite database", subject=subject, hint="name another file"
        )
    if name.startswith(("SQLITE_READONLY", "SQLITE_CANTOPEN")):
        return LedgerError(reason, subject=subject, hint="check the rights of the file and folder")
    refusal = None if state else explain_refusal(str(original), url, "ledger")
    if refusal is not None:
        return LedgerError(
            _clean(refusal.message, url),
            subject=subject,
            hint=refusal.hint,
            retryable=not refusal.is_wrong_url,
        )
    if url.get_backend_name() == "postgresql" and (not state or state[:2] in ("08", "57")):
        return LedgerError(
            f"the database cannot be reached: {reason}",
            subject=subject,
            hint="check that PostgreSQL runs and that `ledger:` names the right host and port",
            retryable=True,
        )
    if state[:2] == "28":
        return LedgerError(
            f"the database does not let us in: {reason}",
            subject=subject,
            hint="check user and password of `ledger:`",
        )
    return LedgerError(reason, subject=subject)


def _clean(message: str, url: URL) -> str:
    line = next((part.strip() for part in message.splitlines() if part.strip()), "no reason given")
    secrets = [url.password or "", *(v for v in url.query.values() if isinstance(v, str))]
    for secret in secrets:
        if len(str(secret)) >= 4:
            line = line.replace(str(secret), "***")
    return line
