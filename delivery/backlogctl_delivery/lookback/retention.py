"""Partitions ahead, and the end of old messages: archived, then dropped whole by days.

A day goes only when all of its messages have ended. On SQLite rows go in batches.
"""

from __future__ import annotations

import logging
import os
import tempfile
import threading
from datetime import date, datetime
from pathlib import Path
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, delete, func, select, text

from backlogctl_delivery.crashpoints import reach
from backlogctl_delivery.database import encode_json
from backlogctl_delivery.errors import BacklogError
from backlogctl_delivery.lookback.messages import ENDED
from backlogctl_delivery.lookback.settings import LookBackSettings
from backlogctl_delivery.lookback.tables import (
    INCIDENTS,
    MESSAGES,
    LookBackDatabase,
    day_bounds,
    list_partitions,
    lock_tables,
    make_partitions,
    name_partition,
    select_unsent,
)
from backlogctl_delivery.outbox.admin import OutboxAdmin

_PIECE = 5_000


def _make_schema() -> Any:
    import pyarrow as pa

    moment = pa.timestamp("us", tz="UTC")
    texts = ("id", "biz_type", "biz_id", "state", "decision", "decided_by", "service", "topic")
    return pa.schema(
        [
            *(pa.field(name, pa.string()) for name in texts),
            *(pa.field(name, pa.binary()) for name in ("key", "value")),
            pa.field("headers", pa.string()),  # JSON: [[name, base64 or null]]
            *(pa.field(name, moment) for name in ("created_at", "decided_at", "ended_at")),
            pa.field("checks", pa.int32()),
        ]
    )


def write_rows(connection: Connection, rows: Select[Any], file: Path) -> int:
    """Writes the rows to a file, readable by its owner only; how many.
    Raises OSError: it could not be written; a file that was there is as it was.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = _make_schema()
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    handle, name = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")
    count = 0
    try:
        with os.fdopen(handle, "wb") as out:
            with pq.ParquetWriter(out, schema, compression="zstd") as writer:
                result = connection.execution_options(yield_per=_PIECE).execute(rows)
                for piece in result.mappings().partitions(_PIECE):
                    # JSON stays text: a header's name is data.
                    made = [{**row, "headers": _as_text(row["headers"])} for row in piece]
                    writer.write_table(pa.Table.from_pylist(made, schema))
                    count += len(made)
            out.flush()
            os.fsync(out.fileno())
        Path(name).replace(file)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    _sync_folder(file.parent)
    return count


def _as_text(headers: Any) -> str | None:
    return None if headers is None else encode_json(headers)


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


LOG = logging.getLogger(__name__)
BATCH = 1_000
_PAUSE_SECONDS = 600.0
_MOST_SENT = 1_000_000  # rows of the outbox that go at once
_ENDED = [state.value for state in ENDED]


class LookBackRetention:
    """One instance's housekeeping; of several at once each day is dropped by one."""

    def __init__(self, database: LookBackDatabase, settings: LookBackSettings) -> None:
        self._database, self._settings = database, settings

    def run(self, stop: threading.Event) -> None:
        """Looks every ten minutes until told to stop. Raises LookBackDatabaseError: begin again."""
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


def purge_old(
    database: LookBackDatabase, settings: LookBackSettings, stop: threading.Event | None = None
) -> int:
    """Archives and removes what ended longer ago than `keep`; how many messages.
    Raises LookBackDatabaseError, OSError: what was not removed yet is removed next time.
    """
    with database.read() as connection:
        limit = database.now(connection) - settings.keep
    if database.is_sqlite:
        removed = _purge_rows(database, settings, limit, stop)
    else:
        removed = _drop_days(database, settings, limit, stop)
    while _delete_incidents(database, limit) == BATCH and not (stop and stop.is_set()):
        pass
    OutboxAdmin(database.outbox).purge(settings.keep, batch=BATCH, most=_MOST_SENT)
    return removed


def _drop_days(
    database: LookBackDatabase,
    settings: LookBackSettings,
    limit: datetime,
    stop: threading.Event | None,
) -> int:
    with database.read() as connection:
        days = [day for day in list_partitions(connection) if day_bounds(day)[1] <= limit]
    removed = 0
    for day in days:
        if stop and stop.is_set():
            break
        removed += _drop_day(database, settings, day)
    return removed


def _drop_day(database: LookBackDatabase, settings: LookBackSettings, day: date) -> int:
    """Archives a day whose messages have all ended, which never change, then drops it."""
    start, end = day_bounds(day)
    is_of_day = (MESSAGES.c.created_at >= start) & (MESSAGES.c.created_at < end)
    with database.read() as connection:
        if not _is_over(connection, is_of_day):
            return 0
        count = _count(connection, is_of_day)
        if settings.archive is not None and count:
            rows = select(MESSAGES).where(is_of_day).order_by(MESSAGES.c.created_at)
            file = settings.archive / f"{day.isoformat()}.parquet"
            count = write_rows(connection, rows, file)
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
    is_open = MESSAGES.c.state.not_in(_ENDED) | MESSAGES.c.id.in_(select_unsent())
    return _count(connection, is_of_day & is_open) == 0


def _count(connection: Connection, condition: ColumnElement[bool]) -> int:
    wanted = select(func.count()).select_from(MESSAGES).where(condition)
    count: int = connection.execute(wanted).scalar_one()
    return count


def _purge_rows(
    database: LookBackDatabase,
    settings: LookBackSettings,
    limit: datetime,
    stop: threading.Event | None,
) -> int:
    removed = 0
    while not (stop and stop.is_set()):
        with database.write() as connection:
            batch = _find_batch(connection, limit)
            if not batch:
                break
            old = MESSAGES.c.id.in_(batch)
            if settings.archive is not None:
                rows = select(MESSAGES).where(old).order_by(MESSAGES.c.created_at)
                # Named by its first message: written again it is the same file.
                write_rows(connection, rows, settings.archive / f"batch-{batch[0]}.parquet")
            connection.execute(delete(MESSAGES).where(old))
        removed += len(batch)
    return removed


def _find_batch(connection: Connection, limit: datetime) -> list[str]:
    # By the day it was made, as on PostgreSQL.
    wanted = (
        select(MESSAGES.c.id)
        .where(MESSAGES.c.state.in_(_ENDED), MESSAGES.c.created_at < limit)
        .where(MESSAGES.c.id.not_in(select_unsent()))
        .order_by(MESSAGES.c.created_at, MESSAGES.c.id)
        .limit(BATCH)
    )
    return list(connection.execute(wanted).scalars())


def _delete_incidents(database: LookBackDatabase, limit: datetime) -> int:
    with database.write() as connection:
        old = select(INCIDENTS.c.id).where(INCIDENTS.c.at < limit).limit(BATCH)
        done = connection.execute(delete(INCIDENTS).where(INCIDENTS.c.id.in_(old)))
    return done.rowcount
