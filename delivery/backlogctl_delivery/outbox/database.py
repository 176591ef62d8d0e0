"""The application's database and its table of messages to send (`backlogctl outbox create`).

For an application's own Alembic: `metadata` beside its own in `target_metadata`, or `create_tables`
in a migration, with `op.get_bind()`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from sqlalchemy import (
    URL,
    BigInteger,
    BindParameter,
    Column,
    ColumnElement,
    Connection,
    Engine,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    TypeDecorator,
    create_engine,
    event,
    inspect,
)
from sqlalchemy.dialects.mysql import LONGBLOB, LONGTEXT, VARCHAR
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError, OperationalError, SQLAlchemyError
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.orm import registry
from sqlalchemy.schema import CreateIndex
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import TypeEngine
from sqlalchemy.util import greenlet_spawn

from backlogctl_delivery.database import add_liveness
from backlogctl_delivery.database_failures import DatabasePlace, explain_failure
from backlogctl_delivery.errors import BacklogError, ConfigurationError

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

_T = TypeVar("_T")
_BUSY_SECONDS = 15
# A URL may name an asynchronous driver; a sender has a thread of its own, and needs none.
_DRIVERS = {
    "postgresql": "postgresql+psycopg",
    "postgres": "postgresql+psycopg",
    "mysql": "mysql+pymysql",
    "mariadb": "mariadb+pymysql",
    "sqlite": "sqlite+pysqlite",
}
_MAKE_TABLES = "run `backlogctl outbox create`, or the application's own migrations"
_HINT = "use postgresql://user@host/database, mariadb://..., mysql://... or sqlite:///file.db"


class OutboxDatabaseError(BacklogError):
    """The application's database could not be read or written."""

    code = "outbox_database"


class OutboxDatabase:
    """The database that holds the outbox.

    Args:
        source: an Engine, which is used as it is; an AsyncEngine, whose settings are used on
            connections of its own, within `run`; or a URL, for which an engine is made.

    Raises:
        ConfigurationError: the URL is none of PostgreSQL, MariaDB, MySQL or SQLite, or its driver
            is not installed. The URL is not repeated, as it may hold a password.
    """

    def __init__(self, source: Engine | AsyncEngine | URL | str) -> None:
        self._owns = not isinstance(source, Engine)
        self._is_async = not isinstance(source, Engine | URL | str)
        if isinstance(source, Engine):
            self._engine = source
        elif isinstance(source, URL | str):
            self._engine = _make_engine(_read_url(source))
        else:
            # A connection lives in one loop, so the application's are none for another thread.
            given = source.sync_engine
            pool = given.pool.recreate()
            self._engine = Engine(
                *(pool, given.dialect, given.url),
                hide_parameters=True,
                execution_options=given.get_execution_options(),
            )
        self.url = self._engine.url
        name = self._engine.dialect.name
        if name not in _DRIVERS:
            raise ConfigurationError(
                f"an outbox cannot be kept in {name}", subject="outbox", hint=_HINT
            )
        self.is_sqlite = name == "sqlite"
        self._place = DatabasePlace("outbox in", self.url, "url", _MAKE_TABLES)
        # Claims look at rows as they are now, not as they were when a transaction began.
        self._plain = (
            self._engine
            if self.is_sqlite
            else self._engine.execution_options(isolation_level="READ COMMITTED")
        )

    @property
    def label(self) -> str:
        """The URL without its password."""
        return self._place.label

    @property
    def make_tables_hint(self) -> str:
        return self._place.make_tables_hint

    @property
    def name(self) -> str:
        """The host and the database, or the file's name: what an outbox is called that was given
        no name."""
        if self.is_sqlite:
            return Path(self.url.database or "").name
        return "/".join(part for part in (self.url.host, self.url.database) if part)

    @contextmanager
    def begin(self, *, creates: bool = False) -> Iterator[Connection]:
        """A transaction.

        Args:
            creates: an SQLite file may be made.

        Raises:
            OutboxDatabaseError: the database refused, or is away. Holds no payload.
        """
        if not creates and self._owns and self.is_sqlite and not self._has_file():
            raise OutboxDatabaseError(
                "there is no such file",
                subject=self.label,
                hint="correct the path: sqlite:///shop.db is in this directory, four slashes begin "
                "an absolute path; `backlogctl outbox create` makes it",
            )
        try:
            with self._plain.begin() as connection:
                yield connection
        except SQLAlchemyError as error:
            raise explain_failure(error, self._place, OutboxDatabaseError) from None
        except BacklogError:
            raise
        except Exception as error:
            # What asyncpg raises where a connection begins, SQLAlchemy 2.0 does not translate; what
            # the operating system does, none.
            is_drivers = type(error).__module__.partition(".")[0] == "asyncpg"
            if not (is_drivers or isinstance(error, OSError)):
                raise
            lost = OperationalError("", None, error)
            raise explain_failure(lost, self._place, OutboxDatabaseError) from None

    def run(self, work: Callable[[], _T]) -> _T:
        """Runs what begins transactions: those of an AsyncEngine need a loop, which is made and
        ended here. One at a time.
        """
        if not self._is_async:
            return work()

        async def spawn() -> _T:
            try:
                return await greenlet_spawn(work)
            finally:
                await greenlet_spawn(self._engine.dispose)

        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return asyncio.run(spawn())
        # The application's own loop runs in this thread, and waits.
        with ThreadPoolExecutor(1) as aside:
            return aside.submit(asyncio.run, spawn()).result()

    def can_skip_locked(self, connection: Connection) -> bool:
        """Whether it knows SKIP LOCKED: PostgreSQL, MariaDB from 10.6, MySQL from 8."""
        dialect = connection.dialect
        version = dialect.server_version_info or ()
        if dialect.name == "postgresql":
            return True
        least = (10, 6) if getattr(dialect, "is_mariadb", False) else (8, 0, 1)
        return not self.is_sqlite and version >= least

    def close(self) -> None:
        """Closes its connections, unless they are the application's."""
        if self._owns and not self._is_async:
            self._engine.dispose()

    def _has_file(self) -> bool:
        name = self.url.database or ""
        return name.startswith(("file:", ":memory:")) or Path(name).exists()


def _read_url(source: URL | str) -> URL:
    try:
        url = make_url(source)
        backend = url.get_backend_name()
    except (ArgumentError, NoSuchModuleError, ValueError):
        url, backend = None, ""
    if url is None or backend not in _DRIVERS or (backend == "sqlite" and not url.database):
        raise ConfigurationError(
            "this is no URL of a database that can hold an outbox", subject="outbox", hint=_HINT
        )
    return url.set(drivername=_DRIVERS[backend])


def _make_engine(url: URL) -> Engine:
    options: dict[str, Any] = {"hide_parameters": True}
    backend = url.get_backend_name()
    if backend == "postgresql":
        url = add_liveness(url)
        options["connect_args"] = {"connect_timeout": _BUSY_SECONDS}
    elif backend == "sqlite":
        options["connect_args"] = {"timeout": _BUSY_SECONDS}
    else:
        limits = ("connect_timeout", "read_timeout", "write_timeout")
        options["connect_args"] = dict.fromkeys(limits, 2 * _BUSY_SECONDS)
    try:
        engine = create_engine(url, pool_pre_ping=True, pool_size=2, **options)
    except ImportError as error:
        raise ConfigurationError(
            f"the driver of {backend} is not installed: {error}",
            subject="outbox",
            hint="pip install 'backlogctl[delivery]'",
        ) from None
    if backend == "sqlite":
        event.listen(engine, "connect", _set_up_sqlite)
    return engine


def _set_up_sqlite(connection: Any, _: Any) -> None:
    # A scanner that reads holds up no writer; what is committed is on the disk.
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")


# `due_at` of a parked row: nobody may claim it.
NEVER = 2**62
LONGEST_TOPIC, LONGEST_ERROR = 249, 500
LONGEST_LEASE_MS = 3_600_000
DEFAULT_MAX_ATTEMPTS = 10


class State(StrEnum):
    PENDING = "pending"
    IN_PROGRESS = "in_progress"
    SENT = "sent"
    PARKED = "parked"


metadata = MetaData()

_id = BigInteger().with_variant(Integer, "sqlite")
_bytes = LargeBinary().with_variant(LONGBLOB, "mysql", "mariadb")
_text = Text().with_variant(LONGTEXT, "mysql", "mariadb")


# A type of ASCII that MariaDB compares exactly, as the others do.
def _exact(length: int) -> TypeEngine[str]:
    exact = VARCHAR(length, charset="ascii", collation="ascii_bin")
    return String(length).with_variant(exact, "mysql", "mariadb")


# Times are milliseconds since 1970: the same in three databases, whatever their time zone.
messages = Table(
    "backlog_outbox",
    metadata,
    Column("id", _id, primary_key=True, autoincrement=True),
    Column("message_id", _exact(32), nullable=False),
    Column("topic", _exact(LONGEST_TOPIC), nullable=False),
    Column("message_key", _bytes),
    Column("value", _bytes),
    # A JSON list of [name, value in base64, or null].
    Column("headers", _text),
    # A hash of topic and key, while the row is not sent: rows of one are sent in their order.
    # NULL where there is no key, and so no order.
    Column("ordering_key", BigInteger),
    Column("state", String(12), nullable=False),
    # When a sender may claim it: at the next attempt, or when the lease of another ends; NEVER
    # while it is parked, NULL once it is sent.
    Column("due_at", BigInteger),
    Column("owner", String(120)),
    Column("token", String(32)),
    Column("attempts", Integer, nullable=False),
    Column("max_attempts", Integer, nullable=False),
    # Until the attempt after the next one.
    Column("interval_ms", BigInteger, nullable=False),
    Column("last_error", String(LONGEST_ERROR)),
    Column("created_at", BigInteger, nullable=False),
    Column("sent_at", BigInteger),
    # Where Kafka has it. A rebuild sorts a partition's rows by it: one mark takes many rows, and
    # other senders mark theirs before or after.
    Column("sent_partition", Integer),
    Column("sent_offset", BigInteger),
    mysql_engine="InnoDB",
    mysql_charset="utf8mb4",
    mariadb_engine="InnoDB",
    mariadb_charset="utf8mb4",
)


def _index(*names: str, of: str) -> Index:
    there = messages.c[of].is_not(None)
    return Index(
        f"backlog_outbox_{names[0]}",
        *(messages.c[name] for name in names),
        postgresql_where=there,
        sqlite_where=there,
    )


# What is sent is in none of the first two, however much of it is kept.
_index("ordering_key", "id", of="due_at")
_index("due_at", "id", of="due_at")
_index("sent_at", of="sent_at")


class _FromNow(TypeDecorator[int]):
    """Milliseconds from now on: the database adds its own clock, in a batch of rows as in one."""

    impl = BigInteger
    cache_ok = True

    def bind_expression(self, bindvalue: BindParameter[int]) -> ColumnElement[int]:
        """What stands in the statement."""
        return clock_ms() + bindvalue


# The table as rows are added to it: `due_at` and `created_at` are given from now on.
additions = messages.to_metadata(MetaData())
for _name in ("due_at", "created_at"):
    additions.c[_name].type = _FromNow()


class OutboxRow:
    """One row, as a session takes it in."""

    id: int
    message_id: str
    topic: str
    ordering_key: int | None

    def __init__(self, **values: Any) -> None:
        for name, value in values.items():
            setattr(self, name, value)

    def __repr__(self) -> str:
        # Neither key nor value: they are nobody's to read in a log.
        return f"OutboxRow(message_id={self.message_id!r}, topic={self.topic!r})"


registry(metadata=additions.metadata).map_imperatively(OutboxRow, additions)


def create_tables(connection: Connection) -> None:
    """Makes the table and its indexes where they are not there; within the connection's transaction
    where the database can."""
    metadata.create_all(connection)


def drop_tables(connection: Connection) -> None:
    """Drops them, with every message that is not sent: for the way back of a migration."""
    metadata.drop_all(connection)


class clock_ms(FunctionElement[int]):  # noqa: N801 - written as the functions of SQL are
    """The database's clock in milliseconds since 1970, so that hosts need not agree."""

    type = BigInteger()
    inherit_cache = True


@compiles(clock_ms)
def _read_clock(element: clock_ms, compiler: Any, **_: Any) -> str:
    return _CLOCKS[compiler.dialect.name]


_MYSQL = "(TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) DIV 1000)"
_CLOCKS = {
    "postgresql": "CAST(extract(epoch FROM clock_timestamp()) * 1000 AS bigint)",
    "mysql": _MYSQL,
    "mariadb": _MYSQL,
    "sqlite": "CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)",
}


@dataclass(frozen=True, slots=True)
class Shape:
    """What is missing; `indexes` are the statements that make them.

    Attributes:
        is_there: whether there is a table at all.
        database: the kind and version of the database, such as `MariaDB 10.5`.
        can_skip_locked: whether senders pass by rows that another holds.
    """

    is_there: bool
    columns: tuple[str, ...]
    indexes: tuple[str, ...]
    database: str
    can_skip_locked: bool


def read_shape(database: OutboxDatabase) -> Shape:
    """Compares the table with `tables.py`; reads no row.
    Raises OutboxDatabaseError: the database does not answer.
    """
    with database.begin() as connection:
        is_there = inspect(connection).has_table(messages.name)
        return Shape(
            is_there,
            _find_columns(connection) if is_there else (),
            _find_indexes(connection) if is_there else (),
            _describe(connection),
            database.can_skip_locked(connection),
        )


def require_shape(database: OutboxDatabase) -> None:
    """Whether rows of the table can be claimed and marked. Raises OutboxDatabaseError: there is no
    table, it lacks columns, or the database does not answer.
    """
    shape = read_shape(database)
    if not shape.is_there:
        why, hint = "its table is missing", database.make_tables_hint
    elif shape.columns:
        why = f"its table is of an older version, without {', '.join(shape.columns)}"
        hint = "add the columns of backlogctl_delivery.outbox.metadata by its migrations"
    else:
        return
    raise OutboxDatabaseError(why, subject=database.label, hint=hint)


def _find_columns(connection: Connection) -> tuple[str, ...]:
    there = {column["name"] for column in inspect(connection).get_columns(messages.name)}
    return tuple(column.name for column in messages.c if column.name not in there)


def _find_indexes(connection: Connection) -> tuple[str, ...]:
    """By their columns: a migration may have named them otherwise."""
    there = [index["column_names"] for index in inspect(connection).get_indexes(messages.name)]
    missing = (
        index
        for index in messages.indexes
        if not any(names[: len(index.columns)] == list(index.columns.keys()) for names in there)
    )
    statements = (CreateIndex(index).compile(dialect=connection.dialect) for index in missing)
    return tuple(sorted(" ".join(str(one).split()) for one in statements))


def _describe(connection: Connection) -> str:
    dialect = connection.dialect
    is_mariadb = getattr(dialect, "is_mariadb", False)
    names = {"postgresql": "PostgreSQL", "mysql": "MySQL", "sqlite": "SQLite"}
    name = "MariaDB" if is_mariadb else names.get(dialect.name, dialect.name)
    version = ".".join(str(part) for part in (dialect.server_version_info or ())[:2])
    return f"{name} {version}".strip()
