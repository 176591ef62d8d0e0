"""Partitions ahead, and the end of old messages: archived, then dropped whole by days.

A day goes only when all of its messages have ended. On SQLite rows go in batches.
"""

from __future__ import annotations

import logging
import threading
from datetime import date, datetime

from sqlalchemy import ColumnElement, Connection, delete, func, select, text

from backlog.config import LookBack
from backlog.crashpoints import reach
from backlog.errors import BacklogError
from delivery.lookback.database import Database
from delivery.lookback.states import ENDED
from delivery.lookback.tables import (
    INCIDENTS,
    MESSAGES,
    day_bounds,
    list_partitions,
    lock_tables,
    make_partitions,
    name_partition,
)

LOG = logging.getLogger("backlog.delivery.lookback")
BATCH = 1_000
_PAUSE_SECONDS = 600.0
_ENDED = [state.value for state in ENDED]


class Keeper:
    """One instance's housekeeping; of several at once each day is dropped by one."""

    def __init__(self, database: Database, settings: LookBack) -> None:
        self._database, self._settings = database, settings

    def run(self, stop: threading.Event) -> None:
        """Looks every ten minutes until told to stop.

        Raises:
            LookBackDatabaseError: begin again.
        """
        while not stop.is_set():
            with self._database.write() as connection:
                lock_tables(self._database, connection)
                make_partitions(self._database, connection)
                reach("p8.kept.before")
            reach("p8.kept.after")
            try:
                purge_old(self._database, self._settings, stop)
            except OSError as error:
                raise BacklogError(
                    f"the archive could not be written: {error.strerror}",
                    subject=f"look_back.archive {self._settings.archive}",
                    hint="nothing was deleted; is there room, and may it be written?",
                    retryable=True,
                ) from error
            stop.wait(_PAUSE_SECONDS)


def purge_old(database: Database, settings: LookBack, stop: threading.Event | None = None) -> int:
    """Archives and removes what ended longer ago than `keep`; how many messages.

    Raises:
        LookBackDatabaseError, OSError: what was not removed yet is removed next time.
    """
    with database.read() as connection:
        limit = database.now(connection) - settings.keep
    if database.is_sqlite:
        removed = _purge_rows(database, settings, limit, stop)
    else:
        removed = _drop_days(database, settings, limit, stop)
    while _delete_incidents(database, limit) == BATCH and not (stop and stop.is_set()):
        pass
    return removed


def _drop_days(
    database: Database, settings: LookBack, limit: datetime, stop: threading.Event | None
) -> int:
    with database.read() as connection:
        days = [day for day in list_partitions(connection) if day_bounds(day)[1] <= limit]
    removed = 0
    for day in days:
        if stop and stop.is_set():
            break
        removed += _drop_day(database, settings, day)
    return removed


def _drop_day(database: Database, settings: LookBack, day: date) -> int:
    """Archives a day whose messages have all ended, which never change, then drops it."""
    start, end = day_bounds(day)
    is_of_day = (MESSAGES.c.created_at >= start) & (MESSAGES.c.created_at < end)
    with database.read() as connection:
        if not _is_over(connection, is_of_day):
            return 0
        count = _count(connection, is_of_day)
        if settings.archive is not None and count:
            from delivery.lookback.archive import write_archive

            rows = select(MESSAGES).where(is_of_day).order_by(MESSAGES.c.created_at)
            file = settings.archive / f"{day.isoformat()}.parquet"
            count = write_archive(connection, rows, file)
    reach("p8.archived.after")
    with database.write() as connection:
        lock_tables(database, connection)
        if day not in list_partitions(connection):
            return 0  # another instance was here
        # All at once and for a moment: a lock that grows could wait for one that waits for it.
        connection.execute(text("LOCK TABLE look_back_messages IN ACCESS EXCLUSIVE MODE"))
        if not _is_over(connection, is_of_day) or _count(connection, is_of_day) != count:
            return 0
        connection.execute(text(f"DROP TABLE {name_partition(day)}"))
        reach("p8.dropped.before")
    reach("p8.dropped.after")
    LOG.info("%s: %d messages, dropped", name_partition(day), count)
    return count


def _is_over(connection: Connection, is_of_day: ColumnElement[bool]) -> bool:
    return _count(connection, is_of_day & MESSAGES.c.state.not_in(_ENDED)) == 0


def _count(connection: Connection, condition: ColumnElement[bool]) -> int:
    wanted = select(func.count()).select_from(MESSAGES).where(condition)
    count: int = connection.execute(wanted).scalar_one()
    return count


def _purge_rows(
    database: Database, settings: LookBack, limit: datetime, stop: threading.Event | None
) -> int:
    removed = 0
    while not (stop and stop.is_set()):
        with database.write() as connection:
            batch = _find_batch(connection, limit)
            if not batch:
                break
            old = MESSAGES.c.id.in_(batch)
            if settings.archive is not None:
                from delivery.lookback.archive import write_archive

                rows = select(MESSAGES).where(old).order_by(MESSAGES.c.created_at)
                # Named by its first message: written again it is the same file.
                write_archive(connection, rows, settings.archive / f"batch-{batch[0]}.parquet")
            connection.execute(delete(MESSAGES).where(old))
        removed += len(batch)
    return removed


def _find_batch(connection: Connection, limit: datetime) -> list[str]:
    # By the day it was made, as on PostgreSQL.
    wanted = (
        select(MESSAGES.c.id)
        .where(MESSAGES.c.state.in_(_ENDED), MESSAGES.c.created_at < limit)
        .order_by(MESSAGES.c.created_at, MESSAGES.c.id)
        .limit(BATCH)
    )
    return list(connection.execute(wanted).scalars())


def _delete_incidents(database: Database, limit: datetime) -> int:
    with database.write() as connection:
        old = select(INCIDENTS.c.id).where(INCIDENTS.c.at < limit).limit(BATCH)
        done = connection.execute(delete(INCIDENTS).where(INCIDENTS.c.id.in_(old)))
    return done.rowcount
