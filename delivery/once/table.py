"""The table of marks: one row for each message that one consumer has handled."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import sqlalchemy as sa
from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.engine import Connection, Engine

from backlog.errors import UsageError
from backlog.visible import escape_name
from delivery.once.identity import LONGEST

Insert = sa.sql.expression.Insert


def make_table(name: str, metadata: sa.MetaData, schema: str | None) -> sa.Table:
    """`message_id` (the key) and `handled_at` (UTC, of the worker's clock), with an index to purge
    by."""
    # Elsewhere texts are compared exactly by default.
    exact = mysql.VARCHAR(LONGEST, charset="utf8mb4", collation="utf8mb4_bin")
    text = sa.String(LONGEST).with_variant(exact, "mysql", "mariadb")
    return sa.Table(
        name,
        metadata,
        sa.Column("message_id", text, primary_key=True),
        sa.Column("handled_at", sa.DateTime(timezone=True), nullable=False, index=True),
        schema=schema,
    )


def make_insert(table: sa.Table, dialect: str) -> Insert:
    """Adds a row where there is none of its id; how many rows it wrote tells which.

    Raises:
        UsageError: no such statement is known of this database.
    """
    if dialect == "postgresql":
        return postgresql.insert(table).on_conflict_do_nothing(index_elements=["message_id"])
    if dialect == "sqlite":
        return sqlite.insert(table).on_conflict_do_nothing(index_elements=["message_id"])
    if dialect in ("mysql", "mariadb"):
        # It would also cut what is too long; ids are checked before.
        return sa.insert(table).prefix_with("IGNORE")
    raise UsageError(
        f"marks cannot be kept in {escape_name(dialect)}",
        subject=f"table {escape_name(table.name)}",
        hint="PostgreSQL, MySQL, MariaDB and SQLite can",
    )


def create_table(table: sa.Table, bind: Engine | Connection) -> None:
    """Makes it where it is not there, also where several workers start at once."""
    try:
        table.create(bind, checkfirst=True)
    except sa.exc.DBAPIError:
        # Another worker was faster. In a transaction of the caller nothing can be looked up now.
        if isinstance(bind, Connection) or not sa.inspect(bind).has_table(table.name, table.schema):
            raise


def purge_table(
    table: sa.Table, bind: Engine | Connection, older_than: timedelta, batch: int, most: int
) -> int:
    """Removes old rows, each batch in a transaction of its own; returns how many.

    Raises:
        UsageError: the connection is in a transaction, or a number is not above zero.
    """
    if older_than <= timedelta(0) or batch < 1 or most < 1:
        raise UsageError(
            "older_than, batch and most are above zero",
            subject=f"table {escape_name(table.name)}",
            hint="nothing was removed",
        )
    if isinstance(bind, Engine):
        with bind.connect() as connection:
            return purge_table(table, connection, older_than, batch, most)
    if bind.in_transaction():
        raise UsageError(
            "the connection is in a transaction, and each batch has one of its own",
            subject=f"table {escape_name(table.name)}",
            hint="give an engine, or a connection that has just been opened",
        )
    limit = datetime.now(UTC) - older_than
    removed = 0
    while removed < most:
        wanted = min(batch, most - removed)
        old = (
            sa.select(table.c.message_id)
            .where(table.c.handled_at < limit)
            .order_by(table.c.handled_at)
            .limit(wanted)
            .subquery()  # MySQL has no LIMIT right within IN
        )
        with bind.begin():
            gone = bind.execute(
                sa.delete(table).where(table.c.message_id.in_(sa.select(old.c.message_id)))
            ).rowcount
        removed += gone
        if gone < wanted:
            break
    return removed
