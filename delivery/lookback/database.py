"""The database of look-back: transactions, its clock, errors translated once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

from sqlalchemy import Connection, Row, func, select, text
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from backlog.clock import utc_now
from backlog.errors import BacklogError
from backlog.ledger.database import make_engine, make_private_file, mask_url, parse_url
from backlog.postgres_refusals import explain_refusal

Found = Row[tuple[object, ...]]


class LookBackDatabaseError(BacklogError):
    """The database of look-back could not be read or written."""

    code = "look_back_database"


class Database:
    """PostgreSQL, or an SQLite file.

    `read()` and `write()` are transactions. On SQLite a write is BEGIN IMMEDIATE: writers come one
    after the other.

    Raises:
        ConfigurationError: the URL is none of these.
    """

    def __init__(self, url: str) -> None:
        self.url = parse_url(url)
        self.is_sqlite = self.url.get_backend_name() == "sqlite"
        if self.is_sqlite:
            make_private_file(self.url)
        self.engine = make_engine(self.url)
        self._writer = self.engine.execution_options(ledger_write=True)

    @property
    def label(self) -> str:
        """The URL without its password."""
        return f"look-back database {mask_url(self.url)}"

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """A transaction that only looks."""
        with self._translate(), self.engine.begin() as connection:
            yield connection

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """A transaction that changes; all of it or nothing."""
        with self._translate(), self._writer.begin() as connection:
            yield connection

    def now(self, connection: Connection) -> datetime:
        """The database's clock, on which all instances agree."""
        if self.is_sqlite:
            return utc_now()
        now: datetime = connection.execute(select(func.clock_timestamp())).scalar_one()
        return now.astimezone(UTC)

    def close(self) -> None:
        """Ends its connections."""
        self.engine.dispose()

    def lock_ids(self, connection: Connection, ids: list[str]) -> None:
        """Waits for others that write to these messages, which may not be there yet.

        To the end of the transaction; in one order, so that two never wait for each other.
        """
        if not self.is_sqlite:
            connection.execute(
                text(
                    "SELECT pg_advisory_xact_lock(hashtextextended(id, 1)) "
                    "FROM unnest(CAST(:ids AS text[])) AS id"
                ),
                {"ids": sorted(ids)},
            )

    @contextmanager
    def _translate(self) -> Iterator[None]:
        try:
            yield
        except BacklogError:
            raise
        except SQLAlchemyError as error:
            raise self._explain(error) from None

    def _explain(self, error: SQLAlchemyError) -> BacklogError:
        if not isinstance(error, DBAPIError):
            return LookBackDatabaseError(type(error).__name__, subject=self.label)
        state = str(getattr(error.orig, "sqlstate", "") or "")
        name = str(getattr(error.orig, "sqlite_errorname", "") or "")
        reason = next(iter(str(error.orig).splitlines()), "no reason given")
        if state in ("42P01", "42703") or reason.startswith("no such table"):
            return LookBackDatabaseError(
                "its tables are missing",
                subject=self.label,
                hint="`backlogctl lookback run` makes them",
            )
        refusal = None if state else explain_refusal(str(error.orig), self.url, "database")
        if refusal is not None:
            return LookBackDatabaseError(
                refusal.message,
                subject=self.label,
                hint=refusal.hint,
                retryable=not refusal.is_wrong_url,
            )
        # Lost connections, deadlocks, waits for locks, a server that starts or stops, a full disk.
        is_passing = state[:2] in ("08", "40", "53", "55", "57")
        is_passing |= not state and not self.is_sqlite
        is_busy = name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED"))
        secret = self.url.password
        if isinstance(secret, str) and secret:
            reason = reason.replace(secret, "***")
        return LookBackDatabaseError(reason, subject=self.label, retryable=is_passing or is_busy)
