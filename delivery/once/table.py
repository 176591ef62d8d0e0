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
MYSQL = ("mysql", "mariadb")
DUPLICATE, NO_SAVEPOINT, DEADLOCK, LOCK_TIMEOUT = 1062, 1305, 1213, 1205


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
        # Of engines without transactions a mark would stay where its work was rolled back.
        mysql_engine="InnoDB",
        mariadb_engine="InnoDB",
    )


def make_insert(table: sa.Table, dialect: str) -> Insert:
    """Adds a row where there is none of its id: writes no row then, or says `is_duplicate`.

    Raises:
        UsageError: no such statement is known of this database.
    """
    if dialect == "postgresql":
        return postgresql.insert(table).on_conflict_do_nothing(index_elements=["message_id"])
    if dialect == "sqlite":
        return sqlite.insert(table).on_conflict_do_nothing(index_elements=["message_id"])
    if dialect in MYSQL:
        # IGNORE would also cut or change what does not fit, and two ids could become one.
        return sa.insert(table)
    raise UsageError(
        f"marks cannot be kept in {escape_name(dialect)}",
        subject=f"table {escape_name(table.name)}",
        hint="PostgreSQL, MySQL, MariaDB and SQLite can",
    )


def is_error(error: BaseException | None, *numbers: int) -> bool:
    """Whether this is one of MySQL's errors."""
    original = error.orig if isinstance(error, sa.exc.DBAPIError) else None
    return original is not None and original.args[:1] in [(number,) for number in numbers]


def check_same(table: sa.Table, connection: Connection, message_id: str) -> None:
    """Where MySQL refused an id as there already: that it is this one, to the character.

    Raises:
        UsageError: the table or the connection makes one of two ids.
    """
    there = sa.select(table.c.message_id).where(table.c.message_id == message_id)
    # As it is now, not as it was when the transaction began.
    found = connection.execute(there.with_for_update(read=True)).scalars().all()
    if found != [message_id]:
        raise UsageError(
            f"the database takes it for {escape_name(str(found[:1])[1:-1] or 'another')}, which "
            "is another message; it was not marked",
            subject=f"message {escape_name(message_id)} in table {escape_name(table.name)}",
            hint="its column needs CHARACTER SET utf8mb4 COLLATE utf8mb4_bin, and the connection "
            "charset=utf8mb4",
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
