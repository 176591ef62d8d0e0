"""The table of messages that are to be sent: made by `backlogctl outbox create`, or by Alembic.

For an application's own Alembic: `metadata` beside its own in `target_metadata`, or `create_tables`
in a migration, with `op.get_bind()`.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
)
from sqlalchemy.dialects.mysql import LONGBLOB, LONGTEXT, VARCHAR
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.orm import registry
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import TypeEngine

# `due_at` of a parked row: nobody may claim it.
NEVER = 2**62
LONGEST_TOPIC, LONGEST_ERROR = 249, 500
DEFAULT_MAX_ATTEMPTS = 10


class State(StrEnum):
    """Where a row stands."""

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
    # A hash of topic and key, while the row is not sent: rows of one lane are sent in their order.
    # NULL where there is no key, and so no order.
    Column("lane", BigInteger),
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


def _index(*names: str) -> Index:
    there = messages.c[names[0]].is_not(None)
    return Index(
        f"backlog_outbox_{names[0]}",
        *(messages.c[name] for name in names),
        postgresql_where=there,
        sqlite_where=there,
    )


# What is sent is in none of the first two, however much of it is kept.
_index("lane", "id")
_index("due_at", "id")
_index("sent_at")


class OutboxRow:
    """One row, as a session takes it in."""

    id: int
    message_id: str
    topic: str
    lane: int | None

    def __init__(self, **values: Any) -> None:
        for name, value in values.items():
            setattr(self, name, value)

    def __repr__(self) -> str:
        # Neither key nor value: they are nobody's to read in a log.
        return f"OutboxRow(message_id={self.message_id!r}, topic={self.topic!r})"


registry(metadata=metadata).map_imperatively(OutboxRow, messages)


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
