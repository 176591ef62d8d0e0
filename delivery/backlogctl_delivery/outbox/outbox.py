"""A message becomes part of a business transaction: it is committed with it, or was never there.

outbox = Outbox(engine, kafka={"bootstrap.servers": "localhost:9092"})
with Session(engine) as session, session.begin():
    session.add(order)
    outbox.add(session, topic="orders", key=str(order.id), value=order.to_json())
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Self

from sqlalchemy import URL, Connection, Engine, event, inspect
from sqlalchemy.orm import Session, scoped_session

from backlogctl_delivery.crashpoints import reach
from backlogctl_delivery.errors import UsageError
from backlogctl_delivery.outbox.admin import OutboxAdmin
from backlogctl_delivery.outbox.database import (
    DEFAULT_MAX_ATTEMPTS,
    OutboxDatabase,
    OutboxRow,
    additions,
)
from backlogctl_delivery.outbox.messages import HeadersIn, make_row
from backlogctl_delivery.outbox.sender import OutboxSender, Settings

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_scoped_session

    Transaction = (
        Session | scoped_session[Any] | AsyncSession | async_scoped_session[Any] | Connection
    )

_log = logging.getLogger(__name__)
_ADDED = "backlog_outbox_added"


class Outbox:
    """Takes messages into the application's transactions. Of any number of threads.

    Args:
        engine: the application's Engine or AsyncEngine, or a URL.
        kafka: librdkafka's properties. With them a thread of this process sends each message at
            once after its commit; it is started by the first one, also after a fork. Without them
            `backlogctl outbox run` sends.
        unsent_for: how long others leave a message to that thread; after that any scanner may send
            it. Of no meaning without `kafka`: then a scanner sends it as soon as it sees it.
        max_attempts: refusals by Kafka after which a message is parked. Attempts that found Kafka
            away do not count.
        settings: of the thread.
    """

    def __init__(
        self,
        engine: Engine | AsyncEngine | URL | str,
        kafka: Mapping[str, Any] | None = None,
        *,
        unsent_for: timedelta = timedelta(minutes=3),
        max_attempts: int = DEFAULT_MAX_ATTEMPTS,
        settings: Settings | None = None,
    ) -> None:
        if max_attempts < 2:
            raise UsageError(
                f"max_attempts is {max_attempts}",
                subject="Outbox",
                hint="from 2: the first refusal may be that of another message in its batch",
            )
        self._source, self._kafka, self._settings = engine, kafka, settings
        # A wrong URL is told now, not after a commit.
        self._database = OutboxDatabase(engine)
        self._max_attempts = max_attempts
        self._wait_ms = 0 if kafka is None else int(unsent_for.total_seconds() * 1_000)
        self._sender: OutboxSender | None = None
        self._pid = 0
        self._starting = threading.Lock()

    def create(self) -> None:
        """Makes the table where it is not there; see also `create_tables`.
        Raises OutboxDatabaseError: the database refused.
        """
        OutboxAdmin(self._database).create()

    def add(
        self,
        session: Transaction,
        *,
        topic: str,
        value: str | bytes | None,
        key: str | bytes | None = None,
        headers: HeadersIn | None = None,
        message_id: str | None = None,
    ) -> str:
        """Adds a message to the transaction of a Session, an AsyncSession or a Connection.

        Nothing is awaited: a session writes it with its next flush, so a rollback, also to a
        savepoint, takes it along. Messages of one topic and key are sent in the order of their
        rows. Without a key there is no order.

        Args:
            topic: where to.
            value: bytes or text; None is a tombstone.
            key: bytes or text.
            headers: names with bytes, text or None.
            message_id: 32 hexadecimal digits, where the application has an id of its own.

        Returns:
            The message's id: its header `backlog-event-id`, the same each time it is sent.

        Raises:
            UsageError: it cannot be sent as it is, or this is no session.
        """
        values = make_row(
            topic,
            key,
            value,
            headers,
            message_id,
            max_attempts=self._max_attempts,
            wait_ms=self._wait_ms,
        )
        if isinstance(session, Connection):
            self._insert(session, values)
            return str(values["message_id"])
        inner = _find_session(session)
        row = OutboxRow(**values)
        inner.add(row)
        reach("p8.1.added")
        if self._kafka is not None:
            self._follow(inner, row)
        return row.message_id

    def export_metrics(self, registry: CollectorRegistry, name: str) -> None:
        """Adds how the table stands, and what the thread does, to what the application exports.
        `name`: the label `outbox`.
        """
        from backlogctl_delivery.outbox.metrics import OutboxCollector

        desk = OutboxAdmin(OutboxDatabase(self._source))
        registry.register(OutboxCollector(desk, lambda: self._sender, name))

    def close(self, seconds: float = 30.0) -> None:
        """Ends the thread when what was committed here is sent, or after so many seconds.

        What is not sent by then is sent by the next scanner.
        """
        if self._sender is not None and self._pid == os.getpid():
            self._sender.close(seconds)
        self._sender = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _insert(self, connection: Connection, values: dict[str, Any]) -> None:
        row = connection.execute(additions.insert().values(**values)).inserted_primary_key
        if self._kafka is None or row is None:
            return
        row_id = int(row[0])

        # Called before the database commits. The sender looks more than once.
        @event.listens_for(connection, "commit", once=True)
        def notify(_: Connection) -> None:
            self._tell([row_id])

    def _follow(self, session: Session, row: OutboxRow) -> None:
        key = f"{_ADDED}_{id(self)}"
        if key not in session.info:
            session.info[key] = []
            event.listen(session, "after_commit", self._tell_committed)
            event.listen(session, "after_soft_rollback", self._forget_rolled_back)
        session.info[key].append(row)

    def _tell_committed(self, session: Session) -> None:
        # Of a savepoint nothing is committed yet.
        if session.in_nested_transaction():
            return
        rows = session.info[f"{_ADDED}_{id(self)}"]
        # What a savepoint took back has no identity. Attributes may be expired: nothing is loaded.
        there = [inspect(row).identity for row in rows]
        self._tell([made[0] for made in there if made is not None])
        rows.clear()

    def _forget_rolled_back(self, session: Session, previous: Any) -> None:
        if not previous.nested:
            session.info[f"{_ADDED}_{id(self)}"].clear()

    def _tell(self, hints: list[int]) -> None:
        """Never raises: the commit is done, and a scanner sends what is not sent now."""
        if hints and self._kafka is not None:
            reach("p8.1.hint.before")
            try:
                self._get_sender(self._kafka).add_hints(hints)
            except RuntimeError as error:  # no room for a thread, or the interpreter ends
                _log.warning("the outbox's sender cannot start: %s; a scanner sends", error)
            reach("p8.1.hint.after")

    def _get_sender(self, kafka: Mapping[str, Any]) -> OutboxSender:
        with self._starting:
            if self._sender is None or self._pid != os.getpid():
                # A parent's thread and clients do not live in its children.
                sender = OutboxSender(self._source, kafka, self._settings)
                sender.start()
                self._sender, self._pid = sender, os.getpid()
            return self._sender


def _find_session(given: Any) -> Session:
    """The Session within what SQLAlchemy has around one."""
    if isinstance(given, scoped_session):
        given = given()
    elif hasattr(given, "registry") and not isinstance(given, Session):
        given = given.registry()
    session = getattr(given, "sync_session", given)
    if not isinstance(session, Session):
        raise UsageError(
            f"{type(given).__name__} is no transaction that a message can be added to",
            subject="Outbox.add",
            hint="give a Session, an AsyncSession, or a Connection that has begun",
        )
    return session
