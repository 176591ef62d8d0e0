"""Marks in the application's own database: they commit with the work, or not at all.

    marks = Marks("payments_handled")               # a table of this consumer's own
    marks.create_tables(engine)                     # or by the application's Alembic

    with Session(engine) as session, session.begin():
        with marks.handle_once(session, message) as attempt:
            if attempt.is_first:
                session.add(Payment(...))
    consumer.commit(message)

One table for one consumer: of two that share one, each would leave out what the other handled.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
)
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, overload

import sqlalchemy as sa
from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.orm import Session

from backlogctl_delivery.errors import UsageError
from backlogctl_delivery.idempotent.attempts import (
    HEADERS,
    LONGEST,
    Attempt,
    Counts,
    Identity,
    NoMessageId,
    WithoutId,
    read_message_id,
)
from backlogctl_delivery.visible import escape_name

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession

Insert = sa.sql.expression.Insert
MYSQL = ("mysql", "mariadb")
DUPLICATE, NO_SAVEPOINT, DEADLOCK, LOCK_TIMEOUT = 1062, 1305, 1213, 1205


class handled_now(sa.sql.functions.FunctionElement[datetime]):  # noqa: N801 - as functions of SQL are
    """The database's clock, as `handled_at` is kept, so that hosts need not agree."""

    type = sa.DateTime(timezone=True)
    inherit_cache = True


@compiles(handled_now)
def _read_clock(element: handled_now, compiler: Any, **_: Any) -> str:
    return _CLOCKS[compiler.dialect.name]


_CLOCKS = {
    "postgresql": "clock_timestamp()",
    "mysql": "UTC_TIMESTAMP(6)",
    "mariadb": "UTC_TIMESTAMP(6)",
    "sqlite": "strftime('%Y-%m-%d %H:%M:%f000', 'now')",  # as SQLAlchemy writes a time
}


def make_table(name: str, metadata: sa.MetaData, schema: str | None) -> sa.Table:
    """`message_id` (the key) and `handled_at` (UTC, of the database's clock), with an index to
    purge by."""
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
    Raises UsageError: no such statement is known of this database.
    """
    now = {"handled_at": handled_now()}
    if dialect == "postgresql":
        added = postgresql.insert(table).values(now)
        return added.on_conflict_do_nothing(index_elements=["message_id"])
    if dialect == "sqlite":
        new = sqlite.insert(table).values(now)
        return new.on_conflict_do_nothing(index_elements=["message_id"])
    if dialect in MYSQL:
        # IGNORE would also cut or change what does not fit, and two ids could become one.
        return sa.insert(table).values(now)
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
    Raises UsageError: the table or the connection makes one of two ids.
    """
    there = sa.select(table.c.message_id).where(table.c.message_id == message_id)
    # As it is now, not as it was when the transaction began.
    stored = connection.execute(there.with_for_update(read=True)).scalars().all()
    if stored != [message_id]:
        raise UsageError(
            f"the database takes it for {escape_name(str(stored[:1])[1:-1] or 'another')}, which "
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
    """Removes old rows, each batch in a transaction of its own; returns how many."""
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
    with bind.begin():
        now = bind.execute(sa.select(handled_now())).scalar_one()
    # psycopg gives the session's time zone, and what is subtracted there is of its wall clock.
    limit = (now.astimezone(UTC) if now.tzinfo else now) - older_than
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


class Marks:
    """What one consumer has handled, in a table of its own; threads may share it.

    Args:
        table: its name. `message_id` is its key, so it is what `source.consumed` of a stream takes.
        schema: where it is; None for the connection's default.
        metadata: the application's, so that its Alembic sees the table.
        identity: by what a message is known again: a header's name, or a function of the message.
        without_id: what becomes of a message that has none: `refuse` raises, `unmarked` has the
            work done each time it comes.
    """

    def __init__(
        self,
        table: str,
        *,
        schema: str | None = None,
        metadata: sa.MetaData | None = None,
        identity: Identity = HEADERS,
        without_id: WithoutId = "refuse",
    ) -> None:
        self.table = make_table(table, metadata or sa.MetaData(), schema)
        self._identity, self._without_id = identity, without_id
        self.counts = Counts()
        self._inserts: dict[str, Insert] = {}

    @property
    def name(self) -> str:
        """The table's name, with its schema."""
        return self.table.fullname

    def create_tables(self, bind: Engine | Connection) -> None:
        """Makes the table where it is not there. Asynchronous: `connection.run_sync` of this."""
        create_table(self.table, bind)

    def purge(
        self,
        bind: Engine | Connection,
        older_than: timedelta,
        *,
        batch: int = 1_000,
        most: int = 100_000,
    ) -> int:
        """Removes marks, the oldest first, at most `most`; each batch commits by itself.

        What is removed is not known any more: a message that comes again later is handled again.

        Args:
            older_than: longer than a message may come again: the topic's retention, and how long
                recoveries may put it back.

        Returns:
            how many; less than `most` says that no older one is left.

        Raises:
            UsageError: the connection is in a transaction, or a number is not above zero.
        """
        return purge_table(self.table, bind, older_than, batch, most)

    @overload
    def handle_once(
        self, session: Session | Connection, message: Any
    ) -> AbstractContextManager[Attempt]: ...

    @overload
    def handle_once(
        self, session: AsyncSession | AsyncConnection, message: Any
    ) -> AbstractAsyncContextManager[Attempt]: ...

    def handle_once(
        self, session: Session | Connection | AsyncSession | AsyncConnection, message: Any
    ) -> AbstractContextManager[Attempt] | AbstractAsyncContextManager[Attempt]:
        """A block whose work is done where `attempt.is_first`, in the transaction of `session`.

        Commit afterwards, outside of the block, and Kafka's offset after that. The block is a
        savepoint: what it raises undoes its work and its mark, and nothing before it. Another
        worker with the same id waits at its beginning until this transaction ends.

        Args:
            message: of confluent_kafka or kafka-python; or an id.

        Raises:
            NoMessageId: it has no id that can be kept.
            UsageError: nobody asked `is_first`, the transaction was ended within the block, or
                there is none (autocommit). Nothing is marked, unless the block committed.
        """
        try:
            message_id = read_message_id(message, self._identity, self._without_id)
        except NoMessageId:
            self.counts.add("refused")
            raise
        if isinstance(session, Session | Connection):
            return self._handle(session, message_id)
        return self._handle_async(session, message_id)

    def _handle(
        self, session: Session | Connection, message_id: str | None
    ) -> AbstractContextManager[Attempt]:
        return self.counts.around(self._take(session, message_id))

    @contextmanager
    def _take(self, session: Session | Connection, message_id: str | None) -> Iterator[Attempt]:
        if message_id is None:
            attempt = Attempt(None, is_first=True, is_marked=False)
            yield attempt
            attempt.check_asked()
            return
        connection = self._find_connection(session)
        attempt = Attempt(message_id, is_first=self._mark(connection, message_id))
        if not attempt._is_first:
            yield attempt
            attempt.check_asked()
            return
        outer = session.get_transaction()
        # After the mark: on SQLite a savepoint alone begins no transaction.
        inner = session.begin_nested()
        try:
            with inner:
                # A session makes its savepoint where it is asked for the connection, not before.
                self._find_connection(session)
                yield attempt
                attempt.check_asked()
                if session.get_nested_transaction() is not inner:
                    raise _make_ended(message_id)
        except BaseException as error:
            if is_error(error, NO_SAVEPOINT):
                connection.invalidate()
                raise _explain_lost(error, message_id) from None
            # Else a caller that goes on would commit the mark without the work.
            if outer is not None and outer is session.get_transaction() and outer.is_active:
                connection.execute(
                    sa.delete(self.table).where(self.table.c.message_id == message_id)
                )
            raise

    @asynccontextmanager
    async def _handle_async(
        self, session: AsyncSession | AsyncConnection, message_id: str | None
    ) -> AsyncIterator[Attempt]:
        blocks: list[AbstractContextManager[Attempt]] = []

        def enter(sync: Session | Connection) -> Attempt:
            blocks.append(self._handle(sync, message_id))
            return blocks[0].__enter__()

        attempt = await session.run_sync(enter)
        try:
            yield attempt
        except BaseException as error:
            kind, trace = type(error), error.__traceback__
            caught = error
            await session.run_sync(lambda _: blocks[0].__exit__(kind, caught, trace))
            raise
        await session.run_sync(lambda _: blocks[0].__exit__(None, None, None))

    def _find_connection(self, session: Session | Connection) -> Connection:
        if isinstance(session, Connection):
            return session
        return session.connection(bind_arguments={"clause": self.table})

    def _mark(self, connection: Connection, message_id: str) -> bool:
        """Whether it is new; waits for another transaction that has just marked the same."""
        is_new = self._insert(connection, message_id)
        if is_new and _is_committed(connection):
            connection.execute(sa.delete(self.table).where(self.table.c.message_id == message_id))
            raise UsageError(
                "each statement commits by itself (autocommit): a crash would leave the mark "
                "without the work",
                subject=f"table {escape_name(self.table.name)}",
                hint="use a connection with transactions; the mark was removed",
            )
        return is_new

    def _insert(self, connection: Connection, message_id: str) -> bool:
        dialect = connection.dialect.name
        if dialect not in self._inserts:
            self._inserts[dialect] = make_insert(self.table, dialect)
        try:
            written = connection.execute(
                self._inserts[dialect],
                {"message_id": message_id},
                execution_options={"preserve_rowcount": True},
            ).rowcount
        except sa.exc.DBAPIError as error:
            if dialect not in MYSQL:
                raise
            if is_error(error, DUPLICATE):
                check_same(self.table, connection, message_id)
                return False
            # After a deadlock MySQL goes on as if nothing had been, and a caller that does would
            # commit without what came before. Elsewhere the database itself refuses.
            connection.invalidate()
            raise
        return written > 0


def _explain_lost(error: BaseException, message_id: str) -> BaseException:
    """MySQL has ended the whole transaction within the block: why."""
    why = error.__context__
    while why is not None and not is_error(why, DEADLOCK, LOCK_TIMEOUT):
        why = why.__context__
    return _make_ended(message_id) if why is None else why


def _make_ended(message_id: str) -> UsageError:
    return UsageError(
        "its transaction was ended within the block, or a savepoint left open",
        subject=f"message {escape_name(message_id)}",
        hint="commit or roll back outside of `with handle_once(...)`, and in MySQL create or alter "
        "no table in it, and pass a deadlock on; if it was committed, the mark stands with what "
        "was done until then",
    )


def _is_committed(connection: Connection) -> bool:
    """Whether what was just written is; each driver tells in its own way, without asking the
    server."""
    driver: Any = connection.connection.driver_connection
    get_autocommit = getattr(driver, "get_autocommit", None)
    is_in_transaction = getattr(driver, "is_in_transaction", None)
    return (
        connection.get_execution_options().get("isolation_level") == "AUTOCOMMIT"
        or getattr(driver, "in_transaction", None) is False  # sqlite3, aiosqlite
        or getattr(driver, "autocommit", None) is True  # psycopg
        or (callable(is_in_transaction) and not is_in_transaction())  # asyncpg
        or (callable(get_autocommit) and bool(get_autocommit()))  # pymysql, aiomysql
    )
