"""A payment service with look-back: the message is prepared before the payment, and sent only where
that was committed.

    python -m examples.delivery.payment_service --database sqlite:///payments.db \\
        --bootstrap localhost:9092 --topic payments --prepared look_back_msg \
        --begun begun.log

After half of its payments it falls silent: then it is asked what became of them (payment_answers).
Until SIGTERM.
"""

from __future__ import annotations

import argparse
import random
import uuid
from pathlib import Path

import sqlalchemy as sa
from confluent_kafka import Producer
from sqlalchemy.exc import DBAPIError

from backlogctl.errors import KafkaFailure
from backlogctl_delivery.lookback.producer import LookBackProducer
from examples.delivery.facts import (
    PAYMENTS,
    Begun,
    Pace,
    Row,
    open_engine,
    until_sigterm,
    write_value,
)

BIZ_TYPE = "payment"
REFUSED, SILENT = 0.15, 0.5  # of the payments
_SEND_SECONDS = 10.0


class PaymentService:
    """One process of the service; another one may run when this one is killed."""

    def __init__(self, url: str, look_back: LookBackProducer, topic: str, begun: Begun) -> None:
        self._engine, self._look_back = open_engine(url), look_back
        self._topic, self._begun = topic, begun
        self._chance = random.Random()

    def pay(self) -> None:
        """One business transaction; without its prepared message it does not begin."""
        payment_id = uuid.uuid4().hex
        row = Row(payment_id, payment_id, self._chance.randrange(1_000))
        self._begun.note(row.id)
        try:
            self._look_back.prepare(
                BIZ_TYPE, row.id, topic=self._topic, key=row.key, value=write_value(row)
            )
        except KafkaFailure:
            return
        is_paid = self._transact(row)
        if is_paid is None or self._chance.random() < SILENT:
            return
        try:
            (self._look_back.commit if is_paid else self._look_back.roll_back)(BIZ_TYPE, row.id)
        except KafkaFailure:
            return  # it is asked

    def _transact(self, row: Row) -> bool | None:
        """Whether it is paid; None where the database did not say."""
        try:
            with self._engine.connect() as connection:
                connection.execute(sa.insert(PAYMENTS).values(id=row.id, amount=row.number))
                if self._chance.random() < REFUSED:
                    connection.rollback()
                    return False
                connection.commit()
        except DBAPIError:
            return None
        return True


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Take payments until SIGTERM.")
    for name in ("--database", "--bootstrap", "--topic", "--prepared"):
        parser.add_argument(name, required=True)
    parser.add_argument("--begun", required=True, type=Path)
    parser.add_argument("--rate", type=float, default=50.0)
    options = parser.parse_args(arguments)
    producer = Producer({"bootstrap.servers": options.bootstrap, "acks": "all", "log_level": 0})
    look_back = LookBackProducer(
        producer, "payments", topic=options.prepared, timeout=_SEND_SECONDS
    )
    with Begun(options.begun) as begun:
        service = PaymentService(options.database, look_back, options.topic, begun)
        pace, stopping = Pace(options.rate), until_sigterm()
        while not stopping.wait(pace.pause()):
            service.pay()


if __name__ == "__main__":
    main()
