"""A database of ours, PostgreSQL or an SQLite file: columns, transactions, clock, errors."""

from __future__ import annotations

import json
import os
import sqlite3
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sqlalchemy import (
    URL,
    Connection,
    DateTime,
    Dialect,
    Engine,
    String,
    Text,
    TypeDecorator,
    create_engine,
    event,
    func,
    select,
)
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError, SQLAlchemyError
from sqlalchemy.pool import Pool, QueuePool
from sqlalchemy.types import TypeEngine

from backlogctl_delivery.database_failures import DatabasePlace, explain_failure
from backlogctl_delivery.errors import BacklogError, ConfigurationError


def encode_json(value: Any) -> str:
    """Canonical JSON: sorted keys, no blanks, ASCII. Hashes are made over this text.
    Raises TypeError, ValueError: for what JSON does not have (NaN, bytes, ...).
    """
    if isinstance(value, Mapping):
        value = dict(value)
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False
    )


class UtcTime(TypeDecorator[datetime]):
    """An aware time in UTC to the microsecond; on SQLite a text that sorts as the times do."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        """Text of fixed width on SQLite, TIMESTAMP WITH TIME ZONE elsewhere."""
        if dialect.name == "sqlite":
            return dialect.type_descriptor(String(27))
        return dialect.type_descriptor(DateTime(timezone=True))

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> Any:
        """Refuses naive times: nobody can say later which zone they meant."""
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError(f"{value!r} has no time zone")
        utc = value.astimezone(UTC)
        return utc.strftime("%Y-%m-%dT%H:%M:%S.%fZ") if dialect.name == "sqlite" else utc

    def process_result_value(self, value: Any, dialect: Dialect) -> datetime | None:
        """Always aware, always UTC."""
        if value is None:
            return None
        at: datetime = datetime.fromisoformat(value) if isinstance(value, str) else value
        return at.astimezone(UTC)


class JsonText(TypeDecorator[Any]):
    """JSON as canonical text.

    Text and not JSONB: JSONB rewrites numbers and refuses NUL escapes, and then what is read back
    does not hash to what was written.
    """

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Dialect) -> str | None:
        return None if value is None else encode_json(value)

    def process_result_value(self, value: Any, dialect: Dialect) -> Any:
        return None if value is None else json.loads(value)


# Without these a statement to a machine that has vanished waits for the kernel: for a quarter of an
# hour when it was being sent, for two hours when the answer was awaited.
# libpq's connection parameters (PostgreSQL manual, 32.1.2): seconds, seconds, number, milliseconds.
LIVENESS: Mapping[str, str] = {
    "keepalives_idle": "15",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "30000",
}


def add_liveness(url: URL) -> URL:
    """The URL with a limit of about 30 s for a silent peer, where it does not say otherwise."""
    return url.update_query_dict(
        {name: value for name, value in LIVENESS.items() if name not in url.query}
    )


BUSY_SECONDS = 10
STATEMENT_SECONDS = 60
_WRITES = "backlog_write"


class Database:
    """One database.

    `read()` and `write()` are transactions. On SQLite a write is BEGIN IMMEDIATE, so two processes
    run one after the other; on PostgreSQL who decides on rows locks them. SQLAlchemy's and the
    driver's errors come out as `failure`, never with the password.

    Raises:
        ConfigurationError: the URL is neither an SQLite file nor PostgreSQL.
    """

    # Set by each: how it is named, the key that holds its URL, what makes its tables, its error.
    what: str
    key: str
    make_tables_hint: str
    failure: type[BacklogError]

    def __init__(self, url: str) -> None:
        self.url = parse_url(url, self.what)
        self.is_sqlite = self.url.get_backend_name() == "sqlite"
        self.place = DatabasePlace(self.what, self.url, self.key, self.make_tables_hint)
        if self.is_sqlite:
            self._make_private_file()
        self._engine = make_engine(self.url)
        self.writer = self._engine.execution_options(**{_WRITES: True})
        self._pid = os.getpid()
        self._inherited: list[Pool] = []

    @property
    def label(self) -> str:
        """The URL without its password: `ledger sqlite:///backlog.db`."""
        return self.place.label

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
        with self._translate(), self.writer.begin() as connection:
            yield connection

    def now(self, connection: Connection) -> datetime:
        """The database's clock, so that hosts whose clocks differ agree on what has expired.

        An SQLite file is on one machine: there it is the machine's clock.
        """
        if self.is_sqlite:
            return datetime.now(UTC)
        now: datetime = connection.execute(select(func.clock_timestamp())).scalar_one()
        return now.astimezone(UTC)

    def close(self) -> None:
        self._engine.dispose()

    def explain(self, error: SQLAlchemyError) -> BacklogError:
        return explain_failure(error, self.place, self.failure)

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
            raise self.explain(error) from None

    def _make_private_file(self) -> None:
        """Readable by its owner only; SQLite gives -wal and -shm the same mode."""
        path = Path(str(self.url.database))
        try:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        except FileExistsError:
            return
        except OSError as error:
            raise self.failure(
                f"the file cannot be made: {error.strerror}",
                subject=f"{self.what} {path}",
                hint=f"check `{self.key}:` in the configuration and the rights of the folder",
            ) from None


def parse_url(url: str, what: str) -> URL:
    """Reads the URL of an SQLite file or a PostgreSQL database.
    Raises ConfigurationError: it is neither. The URL is not repeated, as it may hold a password.
    """
    hint = "use sqlite:///backlog.db or postgresql+psycopg://user@host/database"
    try:
        parsed = make_url(url)
        backend = parsed.get_backend_name()
    except (ArgumentError, NoSuchModuleError, ValueError):
        raise ConfigurationError("this is not a database URL", subject=what, hint=hint) from None
    if parsed.drivername in ("postgres", "postgresql"):
        return parsed.set(drivername="postgresql+psycopg")
    if backend == "sqlite":
        name = parsed.database or ""
        if not name or ":memory:" in name or name.startswith("file:"):
            raise ConfigurationError(
                "SQLite must be a plain file, because several processes share it",
                subject=what,
                hint=hint,
            )
    if parsed.drivername not in ("sqlite", "sqlite+pysqlite", "postgresql+psycopg"):
        raise ConfigurationError(
            f"it cannot be kept in {parsed.drivername}", subject=what, hint=hint
        )
    return parsed


def make_engine(url: URL) -> Engine:
    """An engine whose connections are set up as `Database` needs them."""
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
    connection.execute(f"PRAGMA busy_timeout = {int(BUSY_SECONDS * 1000)}")
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
    writes = connection.get_execution_options().get(_WRITES, False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _set_up_postgres(connection: Any, _record: Any) -> None:
    with connection.cursor() as cursor:
        cursor.execute(f"SET lock_timeout = '{BUSY_SECONDS}s'")
        cursor.execute(f"SET statement_timeout = '{STATEMENT_SECONDS}s'")
    connection.commit()
