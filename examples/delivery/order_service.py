"""An order service such as many shops have: an order and its message are one transaction.

    python -m examples.delivery.order_service --database sqlite:///shop.db \\
        --bootstrap localhost:9092 --topic orders --begun begun.log

It sends by itself, right after each commit. A share of its orders it rolls back after their message
was added: a card was refused. Until SIGTERM.
"""

from __future__ import annotations

import argparse
import random
import uuid
from datetime import timedelta
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from backlogctl_delivery.outbox import Outbox, Settings
from examples.delivery.facts import (
    CUSTOMERS,
    KEYS,
    ORDERS,
    Begun,
    Pace,
    Row,
    open_engine,
    until_sigterm,
    write_value,
)

REFUSED = 0.15  # of the orders
# What a killed process left waits so long, not minutes: the story has thirty seconds.
LEASE, UNSENT_FOR = timedelta(seconds=3), timedelta(seconds=2)
_SENDER = Settings(
    scan_every=timedelta(seconds=0.2),
    lease=LEASE,
    delivery_timeout=LEASE / 3,
    first_interval=timedelta(seconds=0.2),
    longest_interval=timedelta(seconds=2),
)
_PARTING_SECONDS = 15.0


class OrderService:
    """One process of the service; another one may run when this one is killed.
    `bootstrap`: the brokers that it sends to by itself; None leaves that to `outbox run`.
    """

    def __init__(self, url: str, bootstrap: str | None, topic: str, begun: Begun) -> None:
        self._engine, self._topic, self._begun = open_engine(url), topic, begun
        self._chance = random.Random()
        self._outbox = Outbox(
            self._engine,
            kafka=None if bootstrap is None else {"bootstrap.servers": bootstrap},
            unsent_for=UNSENT_FOR,
            settings=_SENDER,
        )

    def place_order(self) -> None:
        """One business transaction, with its message. What the database refuses is not there."""
        order_id = uuid.uuid4().hex
        customer = f"c-{self._chance.randrange(KEYS):03}"
        self._begun.note(order_id)
        try:
            with Session(self._engine) as session, session.begin() as transaction:
                row = Row(order_id, customer, self._count_up(session, customer))
                session.execute(
                    sa.insert(ORDERS).values(order_id=row.id, customer=row.key, number=row.number)
                )
                self._outbox.add(session, topic=self._topic, key=row.key, value=write_value(row))
                session.flush()
                if self._chance.random() < REFUSED:
                    transaction.rollback()
        except DBAPIError:
            return

    def close(self) -> None:
        """What is in flight is waited for."""
        self._outbox.close(_PARTING_SECONDS)
        self._engine.dispose()

    def _count_up(self, session: Session, customer: str) -> int:
        """Holds the customer until the transaction ends."""
        own = CUSTOMERS.c.customer == customer
        session.execute(sa.update(CUSTOMERS).where(own).values(orders=CUSTOMERS.c.orders + 1))
        return int(session.execute(sa.select(CUSTOMERS.c.orders).where(own)).scalar_one())


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Take orders until SIGTERM.")
    parser.add_argument("--database", required=True)
    parser.add_argument("--bootstrap", help="without it `outbox run` sends")
    parser.add_argument("--topic", required=True)
    parser.add_argument("--begun", required=True, type=Path)
    parser.add_argument("--rate", type=float, default=100.0)
    options = parser.parse_args(arguments)
    with Begun(options.begun) as begun:
        service = OrderService(options.database, options.bootstrap, options.topic, begun)
        pace = Pace(options.rate)
        stopping = until_sigterm()
        while not stopping.wait(pace.pause()):
            service.place_order()
        service.close()


if __name__ == "__main__":
    main()
