"""Asks for the payment of each order, once, however often its message is read.

Reads to the end of the topic `orders`, and ends. With `--again` it begins at the beginning, as a
group does whose offsets were reset.
"""

from __future__ import annotations

import argparse
import json
import os

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition
from sqlalchemy import create_engine, func, select
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from backlogctl_delivery.idempotent.sql import Marks

TOPIC = "orders"
engine = create_engine("sqlite:///payments.db")
marks = Marks("orders_handled")


class Base(DeclarativeBase):
    """The consumer's own table."""


class Demand(Base):
    """What a customer is asked to pay; nothing here keeps an order from being there twice."""

    __tablename__ = "demands"
    number: Mapped[int] = mapped_column(primary_key=True)
    order_id: Mapped[str]
    cents: Mapped[int]


def make_consumer(is_again: bool) -> Consumer:
    """A member of the group `payments`."""
    consumer = Consumer(
        {
            "bootstrap.servers": os.environ["SHOP_KAFKA"],
            "group.id": "payments",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,  # an offset is committed after the work
            "enable.partition.eof": True,
            "session.timeout.ms": 6_000,  # so long a killed member keeps its partitions
        }
    )

    def begin(member: Consumer, partitions: list[TopicPartition]) -> None:
        for partition in partitions if is_again else ():
            partition.offset = OFFSET_BEGINNING
        member.assign(partitions)

    consumer.subscribe([TOPIC], on_assign=begin)
    return consumer


def handle_orders(consumer: Consumer) -> None:
    """Each message in a transaction of its own, up to the end of each partition."""
    at_end: set[int | None] = set()
    handled = repeats = 0
    while len(at_end) < 3:
        message = consumer.poll(30)
        if message is None:
            raise SystemExit("the broker does not answer")
        if (error := message.error()) is not None:
            if error.code() != KafkaError._PARTITION_EOF:
                raise KafkaException(error)
            at_end.add(message.partition())
            continue
        with (
            Session(engine) as session,
            session.begin(),
            marks.handle_once(session, message) as attempt,
        ):
            if attempt.is_first:
                order = json.loads(message.value() or b"")
                session.add(Demand(order_id=order["order_id"], cents=order["cents"]))
        consumer.commit(message=message, asynchronous=False)
        handled, repeats = handled + attempt.is_first, repeats + (not attempt.is_first)
    print(f"{handled:,} handled now, {repeats:,} read again and left out")


def main() -> None:
    """Makes the tables where they are not there, and handles what there is."""
    parser = argparse.ArgumentParser(description="Handles orders.")
    parser.add_argument("--again", action="store_true", help="read all of it once more")
    arguments = parser.parse_args()
    Base.metadata.create_all(engine)
    marks.create_tables(engine)
    consumer = make_consumer(arguments.again)
    try:
        handle_orders(consumer)
    finally:
        consumer.close()
    with Session(engine) as session:
        demands = session.scalar(select(func.count(Demand.number)))
        orders = session.scalar(select(func.count(Demand.order_id.distinct())))
    print(f"{demands:,} demands for {orders:,} orders")


if __name__ == "__main__":
    main()
