"""Takes orders until Ctrl-C: each is a row and a message, which commit together or not at all.

One order in five is rolled back: its card was refused. Kill it whenever you like.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import time
import uuid
from datetime import timedelta

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from sqlalchemy import create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from backlogctl_delivery.outbox import Outbox, Settings

TOPIC = "orders"
SERVERS: dict[str, str | int | float | bool] = {"bootstrap.servers": os.environ["SHOP_KAFKA"]}
# Short, so that nobody waits for what a killed process left; the defaults are 3 minutes and 60 s.
SOON = timedelta(seconds=5)
QUICK = Settings(lease=timedelta(seconds=10), delivery_timeout=timedelta(seconds=5))

engine = create_engine("sqlite:///shop.db")
outbox = Outbox(engine, kafka=SERVERS, unsent_for=SOON, settings=QUICK)


class Base(DeclarativeBase):
    """The shop's tables."""


class Order(Base):
    """What somebody ordered."""

    __tablename__ = "orders"
    order_id: Mapped[str] = mapped_column(primary_key=True)
    cents: Mapped[int]


class CardRefused(Exception):
    """The customer's bank said no."""


def take_order(order: Order) -> None:
    """The business transaction. Raises CardRefused: there is neither an order nor a message."""
    value = json.dumps({"order_id": order.order_id, "cents": order.cents})
    with Session(engine) as session, session.begin():
        session.add(order)
        outbox.add(session, topic=TOPIC, key=order.order_id, value=value)
        if random.random() < 0.2:
            raise CardRefused


def take_orders(number: int | None, pause: float) -> None:
    """So many; without a number until Ctrl-C."""
    taken = refused = 0
    try:
        while taken + refused != number:
            try:
                take_order(Order(order_id=uuid.uuid4().hex, cents=random.randrange(100, 99_900)))
                taken += 1
            except CardRefused:
                refused += 1
            if (taken + refused) % 100 == 0:
                print(f"{taken} orders taken, {refused} rolled back", flush=True)
            time.sleep(pause)
    except KeyboardInterrupt:
        print(f"{taken} orders taken, {refused} rolled back")


def main() -> None:
    """Makes the tables and the topic where they are not there, and takes orders."""
    parser = argparse.ArgumentParser(description="Takes orders.")
    parser.add_argument("--orders", type=int, help="so many; else until Ctrl-C")
    parser.add_argument("--pause", type=float, default=0.01, help="seconds between two orders")
    arguments = parser.parse_args()
    Base.metadata.create_all(engine)
    outbox.create()
    admin = AdminClient(SERVERS)
    if TOPIC not in admin.list_topics(timeout=30).topics:
        admin.create_topics([NewTopic(TOPIC, 3, 1)])[TOPIC].result(30)
    with outbox:
        take_orders(arguments.orders, arguments.pause)


if __name__ == "__main__":
    main()
