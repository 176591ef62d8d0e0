"""A consumer that handles each message once: what it does commits together with its mark.

    python -m examples.delivery.order_consumer --database sqlite:///warehouse.db \\
        --bootstrap localhost:9092 --topic orders --group warehouse

It adds a row for each message it handles, so one that is handled twice shows. Until SIGTERM.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from contextlib import suppress

import sqlalchemy as sa
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition
from sqlalchemy.orm import Session

from backlogctl_delivery.crashpoints import reach
from backlogctl_delivery.kafka import Silence, close_consumer
from examples.delivery.facts import DROPPED, HANDLED, MARKS, open_engine, read_value, until_sigterm

_BATCH, _WAIT_SECONDS = 50, 0.1


class OrderConsumer:
    """The one member of its group."""

    # Who comes after a kill waits for nobody's session.
    membership: Mapping[str, str | int] = {"group.instance.id": "one"}

    def __init__(self, url: str, bootstrap: str, topic: str, group: str) -> None:
        self._engine = open_engine(url)
        self._bootstrap, self._topic, self._group = bootstrap, topic, group
        self._silence = Silence(topic)
        self._owes_commit = False
        self._fatal: KafkaError | None = None
        self._join()

    def _join(self) -> None:
        self._consumer = Consumer(
            {
                "bootstrap.servers": self._bootstrap,
                "group.id": self._group,
                **self.membership,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                # Else an asynchronous commit takes along what the next batch has read by then.
                "enable.auto.offset.store": False,
                "on_commit": self._note_commit,
                "error_cb": self._note_error,
                "fetch.wait.max.ms": 50,
                "reconnect.backoff.max.ms": 500,
                "log_level": 0,
            }
        )
        self._consumer.subscribe([self._topic])

    def work(self) -> None:
        """One batch: each message in a transaction, then the offsets.
        Raises KafkaException: another one has taken its name.
        """
        count = 0
        for message in self._consumer.consume(_BATCH, _WAIT_SECONDS):
            # With an error the broker is away: the client connects again by itself.
            if message.error() is None:
                self.handle(message)
                self._note_handled(message)
                count += 1
        if self._fatal is not None:
            raise KafkaException(self._fatal)
        if count or self._owes_commit:
            self.commit()
        if count:
            self._silence.end()
        else:
            self._look_around()

    def _note_handled(self, message: Message) -> None:
        # Refused where the partition was taken away since: it is read once more, and dropped.
        with suppress(KafkaException):
            self._consumer.store_offsets(message)

    def _look_around(self) -> None:
        try:
            self._silence.check(self._consumer)
        except KafkaException:
            close_consumer(self._consumer, seconds=0)
            self._join()
            self._silence.end()

    def handle(self, message: Message) -> None:
        """Handles it, or drops it where it was handled."""
        with Session(self._engine) as session, session.begin():
            with MARKS.handle_once(session, message) as attempt:
                if attempt.is_first:
                    self.do(session, message)
            if not attempt.is_first:
                session.execute(sa.insert(DROPPED).values(message_id=attempt.message_id))

    def do(self, session: Session, message: Message) -> None:
        reach("once.begun")
        row = read_value(message.key(), message.value())
        session.execute(sa.insert(HANDLED).values(id=row.id, key=row.key, number=row.number))
        reach("once.worked")

    def commit(self) -> None:
        """Tells Kafka how far it has come; not waited for, and said again where it fails."""
        reach("once.committed")
        self._owes_commit = False
        self._consumer.commit(asynchronous=True)
        reach("once.read")

    def _note_error(self, error: KafkaError) -> None:
        # Only here: `consume` returns nothing from then on.
        if error.code() == KafkaError._FATAL:
            self._fatal = error

    def _note_commit(self, error: KafkaError | None, _: list[TopicPartition]) -> None:
        # "No offset": since a rebalance nothing was read.
        self._owes_commit = error is not None and error.code() != KafkaError._NO_OFFSET

    def close(self) -> None:
        """Leaves its partitions to whoever comes with its name."""
        close_consumer(self._consumer)
        self._engine.dispose()


def main(arguments: list[str] | None = None) -> None:
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
