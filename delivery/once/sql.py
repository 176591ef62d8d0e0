"""Marks in the application's own database: they commit with the work, or not at all.

    marks = Marks("payments_handled")               # a table of this consumer's own
    marks.create_tables(engine)                     # or by the application's Alembic

    with Session(engine) as session, session.begin():
        with marks.handle_once(session, message) as turn:
            if turn.is_first:
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
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.orm import Session

from backlog.errors import UsageError
from backlog.visible import escape_name
from delivery.once.counting import Counts
from delivery.once.errors import NoMessageId
from delivery.once.identity import HEADERS, Identity, WithoutId, read_message_id
from delivery.once.table import (
    DEADLOCK,
    DUPLICATE,
    LOCK_TIMEOUT,
    MYSQL,
    NO_SAVEPOINT,
    Insert,
    check_same,
    create_table,
    is_error,
    make_insert,
    make_table,
    purge_table,
)
from delivery.once.turn import Turn

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession


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
    ) -> AbstractContextManager[Turn]: ...

    @overload
    def handle_once(
        self, session: AsyncSession | AsyncConnection, message: Any
    ) -> AbstractAsyncContextManager[Turn]: ...

    def handle_once(
        self, session: Session | Connection | AsyncSession | AsyncConnection, message: Any
    ) -> AbstractContextManager[Turn] | AbstractAsyncContextManager[Turn]:
        """A block whose work is done where `turn.is_first`, in the transaction of `session`.

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
    ) -> AbstractContextManager[Turn]:
        return self.counts.around(self._take(session, message_id))

    @contextmanager
    def _take(self, session: Session | Connection, message_id: str | None) -> Iterator[Turn]:
        if message_id is None:
            turn = Turn(None, is_first=True, is_marked=False)
            yield turn
            turn.check_asked()
            return
        connection = self._find_connection(session)
        turn = Turn(message_id, is_first=self._mark(connection, message_id))
        if not turn._is_first:
            yield turn
            turn.check_asked()
            return
        outer = session.get_transaction()
        # After the mark: on SQLite a savepoint alone begins no transaction.
        inner = session.begin_nested()
        try:
            with inner:
                # A session makes its savepoint where it is asked for the connection, not before.
                self._find_connection(session)
                yield turn
                turn.check_asked()
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
    ) -> AsyncIterator[Turn]:
        blocks: list[AbstractContextManager[Turn]] = []

        def enter(sync: Session | Connection) -> Turn:
            blocks.append(self._handle(sync, message_id))
            return blocks[0].__enter__()

        turn = await session.run_sync(enter)
        try:
            yield turn
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
                {"message_id": message_id, "handled_at": datetime.now(UTC)},
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
