"""The ledger's database, whose triggers and constraints refuse what must not be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from sqlalchemy import Connection, Select, text
from sqlalchemy.exc import DBAPIError, IntegrityError, SQLAlchemyError

from backlog.errors import BacklogError, InvalidTransition, LedgerError, Refused
from backlog.ledger.models import read_value, read_values
from backlogctl_delivery import database
from backlogctl_delivery.database_failures import Trouble, clean_reason, find_trouble

T = TypeVar("T")
REFUSAL = "backlog refuses: "  # how the triggers' messages start
UPGRADE_HINT = "run `backlogctl db upgrade`"


class UniqueConflict(InvalidTransition):
    """A unique index refused the row; managers say which other row has it."""


class LedgerDatabase(database.Database):
    """One ledger database. Errors come out as LedgerError (unreachable, locked, not upgraded) or
    as refusals (a trigger, a constraint)."""

    what = key = "ledger"
    make_tables_hint = UPGRADE_HINT
    failure = LedgerError

    def lock_name(self, connection: Connection, name: str) -> None:
        """Waits for the others that hold `name`, to the end of the transaction.

        SQLite's writers already come one after the other.
        """
        if not self.is_sqlite:
            connection.execute(
                text("SELECT pg_advisory_xact_lock(hashtextextended(:name, 0))"),
                {"name": f"backlog:{name}"},
            )

    def explain(self, error: SQLAlchemyError) -> BacklogError:
        """What a database error means to a user."""
        if not isinstance(error, DBAPIError):
            return super().explain(error)
        reason = clean_reason(error.orig or error, self.url)
        if REFUSAL in reason:
            return InvalidTransition(reason.split(REFUSAL, 1)[1], subject=self.label)
        if find_trouble(error, self.url) is Trouble.UNIQUE:
            return UniqueConflict(reason, subject=self.label)
        if isinstance(error, IntegrityError):
            return Refused(f"the ledger refuses this: {reason}", subject=self.label)
        return super().explain(error)


class Manager:
    """The verbs on one subject of the ledger."""

    def __init__(self, database: LedgerDatabase) -> None:
        self._database = database

    def _list(self, query: Select[Any], make: Callable[..., T]) -> tuple[T, ...]:
        with self._database.read() as connection:
            return read_values(connection, query, make)

    def _first(self, query: Select[Any], make: Callable[..., T]) -> T | None:
        with self._database.read() as connection:
            return read_value(connection, query, make)
