"""An application with an outbox, and what its topic holds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from types import TracebackType
from typing import Any, Self

from confluent_kafka import Message
from sqlalchemy import create_engine, select
from sqlalchemy.orm import Session

from backlogctl_delivery.outbox import Outbox, OutboxSender, Settings
from backlogctl_delivery.outbox.claims import Claims
from backlogctl_delivery.outbox.database import Database, messages
from backlogctl_delivery.stamps import EVENT_ID, find_header
from tests.kafka_tools import properties_of, read_all, wait_until

FAST = Settings(scan_every=timedelta(seconds=0.05), first_interval=timedelta(seconds=0.1))


class Shop:
    """Writes orders; sends them when it is told to."""

    def __init__(self, url: str, bootstrap: str) -> None:
        self.url, self.bootstrap = url, bootstrap
        self.engine = create_engine(url)
        self.outbox = Outbox(self.engine)
        self.outbox.create()
        self.database = Database(url)

    def add(self, topic: str, *keys: str | None, **named: Any) -> list[str]:
        """Commits one message for each key, whose values are their order; returns their ids."""
        with Session(self.engine) as session, session.begin():
            return [
                self.outbox.add(session, topic=topic, key=key, value=str(number), **named)
                for number, key in enumerate(keys)
            ]

    def make_claims(self, **changes: Any) -> Claims:
        """Another sender's claims."""
        given: dict[str, Any] = {
            "lease": timedelta(seconds=60),
            "most": 500,
            "most_of_key": 100,
            "first_interval": timedelta(seconds=1),
            "longest_interval": timedelta(minutes=5),
        }
        return Claims(self.database, **{**given, **changes})

    def make_sender(
        self, settings: Settings = FAST, kafka: Mapping[str, Any] | None = None
    ) -> OutboxSender:
        return OutboxSender(self.url, {**properties_of(self.bootstrap), **(kafka or {})}, settings)

    @contextmanager
    def sending(self, *arguments: Any, **named: Any) -> Iterator[OutboxSender]:
        """A sender at work."""
        sender = self.make_sender(*arguments, **named)
        sender.start()
        try:
            yield sender
        finally:
            sender.close()

    def list_rows(self, *columns: str) -> list[Any]:
        """The table, in the order of ids."""
        chosen = [messages.c[name] for name in columns or ("id", "state")]
        with self.engine.connect() as connection:
            return [
                tuple(row) for row in connection.execute(select(*chosen).order_by(messages.c.id))
            ]

    def count(self, state: str) -> int:
        return sum(row[0] == state for row in self.list_rows("state"))

    def await_sent(self, number: int) -> None:
        wait_until(lambda: self.count("sent") == number, what=f"{number} are sent")

    def read(self, topic: str, partitions: int = 1) -> list[Message]:
        return read_all(properties_of(self.bootstrap), topic, range(partitions))

    def read_ids(self, topic: str, partitions: int = 1) -> list[str | None]:
        return [read_id(message) for message in self.read(topic, partitions)]

    def close(self) -> None:
        self.outbox.close()
        self.database.close()
        self.engine.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def read_id(message: Message) -> str | None:
    """The id by which a consumer drops a repeat."""
    return find_header(message.headers(), EVENT_ID)  # type: ignore[arg-type]
