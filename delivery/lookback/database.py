"""The database of look-back: PostgreSQL, or an SQLite file for trying it out."""

from __future__ import annotations

from sqlalchemy import Connection, text

from backlog import database
from backlog.errors import BacklogError


class LookBackDatabaseError(BacklogError):
    """The database of look-back could not be read or written."""

    code = "look_back_database"


class Database(database.Database):
    """Its transactions; `now()` is the clock on which all instances agree."""

    what, key = "look-back database", "look_back.database"
    make_tables_hint = "`backlogctl lookback run` makes them"
    failure = LookBackDatabaseError

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
