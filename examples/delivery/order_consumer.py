"""A consumer that handles each message once: what it does commits together with its mark.

    python -m examples.delivery.order_consumer --database sqlite:///warehouse.db \\
        --bootstrap localhost:9092 --topic orders --group warehouse

It adds a row for each message it handles, so one that is handled twice shows. Until SIGTERM.
"""

from __future__ import annotations

import argparse
import sys

import sqlalchemy as sa
from confluent_kafka import Consumer, KafkaException, Message
from sqlalchemy.orm import Session

from examples.delivery.facts import DROPPED, HANDLED, MARKS, open_engine, read_value, until_sigterm

_BATCH, _WAIT_SECONDS = 50, 0.1


class OrderConsumer:
    """The one member of its group."""

    def __init__(self, url: str, bootstrap: str, topic: str, group: str) -> None:
        self._engine = open_engine(url)
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group,
                # Who comes after a kill waits for nobody's session.
                "group.instance.id": "one",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "fetch.wait.max.ms": 50,
                "reconnect.backoff.max.ms": 500,
                "log_level": 0,
            }
        )
        self._consumer.subscribe([topic])

    def work(self) -> None:
        """One batch: each message in a transaction, then the offsets."""
        messages = [
            message
            for message in self._consumer.consume(_BATCH, _WAIT_SECONDS)
            if message.error() is None  # the broker is away: it connects again by itself
        ]
        for message in messages:
            self.handle(message)
        if messages:
            self.commit()

    def handle(self, message: Message) -> None:
        """Handles it, or drops it where it was handled."""
        with Session(self._engine) as session, session.begin():
            with MARKS.handle_once(session, message) as attempt:
                if attempt.is_first:
                    self.do(session, message)
            if not attempt.is_first:
                session.execute(sa.insert(DROPPED).values(message_id=attempt.message_id))

    def do(self, session: Session, message: Message) -> None:
        """The work."""
        row = read_value(message.key(), message.value())
        session.execute(sa.insert(HANDLED).values(id=row.id, key=row.key, number=row.number))

    def commit(self) -> None:
        """Tells Kafka how far it has come; where that fails, messages come again."""
        try:
            self._consumer.commit(asynchronous=False)
        except KafkaException as error:
            sys.stderr.write(f"{error}\n")

    def close(self) -> None:
        """Leaves its partitions to whoever comes with its name."""
        self._consumer.close()
        self._engine.dispose()


def main(arguments: list[str] | None = None) -> None:
    """Handles orders until SIGTERM."""
    parser = argparse.ArgumentParser(description="Handle messages until SIGTERM.")
    for name in ("--database", "--bootstrap", "--topic", "--group"):
        parser.add_argument(name, required=True)
    options = parser.parse_args(arguments)
    consumer = OrderConsumer(options.database, options.bootstrap, options.topic, options.group)
    stopping = until_sigterm()
    while not stopping.is_set():
        consumer.work()
    consumer.close()


if __name__ == "__main__":
    main()
