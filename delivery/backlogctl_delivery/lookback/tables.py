"""The tables: messages, on PostgreSQL a partition a day, and incidents.

The primary key of a partitioned table must hold its partition key, so that PostgreSQL cannot keep
two days from having a row of the same id: who inserts holds the lock of the id (`lock_ids`)
and has looked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from functools import cached_property
from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    ColumnElement,
    Connection,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Select,
    String,
    Table,
    Text,
    UniqueConstraint,
    insert,
    inspect,
    select,
    text,
)

from backlogctl_delivery import database
from backlogctl_delivery.database import JsonText, UtcTime
from backlogctl_delivery.errors import BacklogError
from backlogctl_delivery.lookback.messages import State, read_message_headers
from backlogctl_delivery.lookback.settings import LookBackSettings
from backlogctl_delivery.outbox import database as outbox_tables
from backlogctl_delivery.outbox.messages import make_row


class LookBackDatabaseError(BacklogError):
    """The database of look-back could not be read or written."""

    code = "look_back_database"


class LookBackDatabase(database.Database):
    """Its transactions; `now()` is the clock on which all instances agree."""

    what, key = "look-back database", "look_back.database"
    make_tables_hint = "`backlogctl lookback run` makes them"
    failure = LookBackDatabaseError

    @cached_property
    def outbox(self) -> outbox_tables.OutboxDatabase:
        """The outbox that sends what is committed, in the same database."""
        return outbox_tables.OutboxDatabase(self.writer)

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


METADATA = MetaData()
OUTBOX = outbox_tables.messages
DAYS_AHEAD = 3
_PREFIX = "look_back_messages_"
_LOCK = 7_312_019_001  # of who makes or drops tables

MESSAGES = Table(
    "look_back_messages",
    METADATA,
    Column("id", String(32), primary_key=True),
    Column("created_at", UtcTime(), primary_key=True),
    Column("biz_type", Text, nullable=False),
    Column("biz_id", Text, nullable=False),
    Column("state", String(12), nullable=False),
    # How the transaction ended, and who said so: `application` or `look-back`.
    Column("decision", String(12)),
    Column("decided_by", String(12)),
    Column("decided_at", UtcTime()),
    # NULL where a decision came, and the prepared message did not yet.
    Column("service", Text),
    Column("topic", Text),
    Column("key", LargeBinary),
    Column("value", LargeBinary),
    Column("headers", JsonText()),  # [[name, base64 or null]]
    Column("next_at", UtcTime(), nullable=False),  # the next question
    Column("checks", Integer, nullable=False, default=0),
    Column("lease_token", String(32)),
    Column("lease_until", UtcTime()),
    Column("last_outcome", Text),  # of the last question, without payload
    Column("parked_because", Text),
    Column("ended_at", UtcTime()),
    postgresql_partition_by="RANGE (created_at)",
)

INCIDENTS = Table(
    "look_back_incidents",
    METADATA,
    Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True),
    Column("at", UtcTime(), nullable=False),
    Column("kind", String(32), nullable=False),
    Column("message_id", String(32)),  # NULL where nobody can tell
    Column("biz_type", Text),
    Column("biz_id", Text),
    Column("reason", Text, nullable=False),
    Column("topic", Text, nullable=False),
    Column("partition", Integer, nullable=False),
    Column("offset", BigInteger, nullable=False),
    # A record that is read again is no second incident.
    UniqueConstraint("topic", "partition", "offset", "kind"),
)


def _index(name: str, state: State, *columns: str) -> None:
    held = MESSAGES.c.state == state.value
    Index(
        f"look_back_messages_{name}",
        *(MESSAGES.c[column] for column in columns),
        postgresql_where=held,
        sqlite_where=held,
    )


# Only what waits is in them, so that they stay as small as the work that is left.
_index("to_check", State.PREPARED, "service", "next_at")
_index("to_join", State.COMMITTED, "next_at")
_index("parked", State.PARKED, "created_at")
Index("look_back_incidents_at", INCIDENTS.c.at)


def create_tables(database: LookBackDatabase) -> None:
    """Makes what is missing, and PostgreSQL's partitions from today on. Of any number at once."""
    with database.write() as connection:
        lock_tables(database, connection)
        METADATA.create_all(connection, checkfirst=True)
        outbox_tables.create_tables(connection)
        make_partitions(database, connection)


def forward(
    connection: Connection,
    settings: LookBackSettings,
    messages: Sequence[Mapping[str, Any]],
    now: datetime,
) -> list[int]:
    """Hands committed messages to the outbox, which sends them; within the caller's transaction.

    They have no order: one that the brokers refuse holds up no other.
    """
    if not messages:
        return []
    rows = [
        make_row(
            message["topic"],
            message["key"],
            message["value"],
            read_message_headers(message["headers"]),
            message["id"],
            # The first refusal may be that of another message in its batch.
            max_attempts=max(2, settings.max_forwards),
            wait_ms=0,
        )
        # The database's clock, on which all instances agree; late counts from the first record.
        | {"ordering_key": None, "due_at": _to_ms(now), "created_at": _to_ms(message["created_at"])}
        for message in messages
    ]
    added = connection.execute(insert(OUTBOX).returning(OUTBOX.c.id), rows)
    return list(added.scalars())


def select_unsent(*conditions: ColumnElement[bool]) -> Select[tuple[str]]:
    """The ids of messages that are in the outbox and not sent."""
    return select(OUTBOX.c.message_id).where(OUTBOX.c.due_at.is_not(None), *conditions)


def _to_ms(at: datetime) -> int:
    return int(at.timestamp() * 1_000)


def lock_tables(database: LookBackDatabase, connection: Connection) -> None:
    """Waits for who makes or drops tables, to the end of the transaction."""
    if not database.is_sqlite:
        connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})


def make_partitions(database: LookBackDatabase, connection: Connection) -> None:
    """Makes the partitions of today and the next days; nothing on SQLite."""
    if database.is_sqlite:
        return
    today = database.now(connection).date()
    have = set(list_partitions(connection))
    for ahead in range(DAYS_AHEAD + 1):
        day = today + timedelta(days=ahead)
        if day not in have:
            start, end = day_bounds(day)
            connection.execute(
                text(
                    f"CREATE TABLE {name_partition(day)} PARTITION OF look_back_messages "
                    f"FOR VALUES FROM ('{start.isoformat()}') TO ('{end.isoformat()}')"
                )
            )


def list_partitions(connection: Connection) -> list[date]:
    """The days of PostgreSQL's partitions, oldest first."""
    rows = connection.execute(
        text(
            "SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid "
            "WHERE i.inhparent = 'look_back_messages'::regclass"
        )
    )
    names = (str(name) for (name,) in rows)
    return sorted(
        date.fromisoformat(name.removeprefix(_PREFIX).replace("_", "-"))
        for name in names
        if name.startswith(_PREFIX)
    )


def name_partition(day: date) -> str:
    """`look_back_messages_2026_11_21`."""
    return f"{_PREFIX}{day:%Y_%m_%d}"


def day_bounds(day: date) -> tuple[datetime, datetime]:
    """The day's `[start, end)` in UTC."""
    start = datetime.combine(day, time(), UTC)
    return start, start + timedelta(days=1)


def has_tables(connection: Connection) -> bool:
    """Whether `create_tables` has been here."""
    return inspect(connection).has_table(MESSAGES.name)
