"""The application's database, as senders and commands open it; its errors translated once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import URL, Connection, Engine, create_engine, event
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError, SQLAlchemyError

from backlog.database_failures import Place, explain_failure
from backlog.errors import BacklogError, ConfigurationError
from backlog.postgres import add_liveness

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

_BUSY_SECONDS = 15
# What is given may name an asynchronous driver; a sender has a thread of its own, and needs none.
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


class Database:
    """The database that holds the outbox.

    Args:
        source: an Engine, which is used as it is; or an AsyncEngine or a URL, for which an engine
            of its own is made.

    Raises:
        ConfigurationError: the URL is none of PostgreSQL, MariaDB, MySQL or SQLite, or its driver
            is not installed. The URL is not repeated, as it may hold a password.
    """

    def __init__(self, source: Engine | AsyncEngine | URL | str) -> None:
        self._owns = not isinstance(source, Engine)
        self._engine = source if isinstance(source, Engine) else _make_engine(_read_url(source))
        self.url = self._engine.url
        name = self._engine.dialect.name
        if name not in _DRIVERS:
            raise ConfigurationError(
                f"an outbox cannot be kept in {name}", subject="outbox", hint=_HINT
            )
        self.is_sqlite = name == "sqlite"
        self._place = Place("outbox in", self.url, "url", _MAKE_TABLES)
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
        """What to do where the table is missing."""
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
        if self._owns:
            self._engine.dispose()

    def _has_file(self) -> bool:
        name = self.url.database or ""
        return name.startswith(("file:", ":memory:")) or Path(name).exists()


def _read_url(source: AsyncEngine | URL | str) -> URL:
    given: Any = getattr(source, "url", source)
    try:
        url = make_url(given)
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
