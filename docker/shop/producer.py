"""The shop: each order is a row first, then a message. SHOP_ORDERS_PER_SECOND says how many.

Its receipt commits with the row, in the outbox: whatever happens here, it is sent.
"""

from __future__ import annotations

import json
import os
import random
import time
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from decimal import Decimal

from confluent_kafka import Producer
from settings import ALIVE, catch_signals, connect, read_rate
from sqlalchemy import Engine, create_engine, text

from backlogctl.clock import format_time
from backlogctl_delivery.outbox import Outbox

_TICK = 0.5
_INSERT = text("INSERT INTO orders VALUES (:order_id, :user_id, :status, :amount, :updated_at)")


@dataclass(frozen=True, slots=True)
class Order:
    """One row of the table."""

    order_id: str
    user_id: int
    status: str
    amount: Decimal
    updated_at: datetime

    @property
    def key(self) -> bytes:
        return self.order_id.encode()

    @property
    def value(self) -> bytes:
        document = {
            **asdict(self),
            "amount": f"{self.amount:.2f}",
            "updated_at": format_time(self.updated_at),
        }
        return json.dumps(document, separators=(",", ":")).encode()


def make_order(number: int, at: datetime) -> Order:
    """Somebody orders something."""
    return Order(
        order_id=f"o-{number:09d}",
        user_id=random.randrange(1, 2500),
        status=random.choice(("paid", "paid", "paid", "refunded", "shipped")),
        amount=Decimal(random.randrange(99, 99_999)) / 100,
        updated_at=at,
    )


def place_orders(
    engine: Engine, outbox: Outbox, producer: Producer, topic: str, orders: list[Order]
) -> None:
    """Rows, then messages; an order whose message fails has a row, and can be rebuilt."""
    with engine.begin() as transaction:
        transaction.execute(_INSERT, [asdict(order) for order in orders])
        for order in orders:
            outbox.add(transaction, topic=os.environ["RECEIPTS"], key=order.key, value=order.value)
    for order in orders:
        at = int(order.updated_at.timestamp() * 1000)
        producer.produce(topic, key=order.key, value=order.value, timestamp=at)
    if left := producer.flush(30):
        raise SystemExit(f"{left} orders could not be published within 30 s")


def main() -> None:
    """Goes on until SIGTERM."""
    stop, rate, topic = catch_signals(), read_rate("SHOP_ORDERS_PER_SECOND"), os.environ["TOPIC"]
    producer = Producer(
        {
            "bootstrap.servers": os.environ["BOOTSTRAP_SERVERS"],
            "partitioner": "murmur2_random",
            "enable.idempotence": True,
            "compression.type": "lz4",
        }
    )
    engine = create_engine("postgresql+psycopg://", creator=connect)
    outbox = Outbox(engine)  # the container `outbox` sends
    with engine.connect() as table:
        placed = table.execute(text("SELECT count(*) FROM orders")).scalar_one()
    began, before = time.monotonic(), placed
    while not stop.wait(_TICK):
        wanted = before + int((time.monotonic() - began) * rate)
        now = datetime.now(UTC)
        orders = [make_order(number + 1, now) for number in range(placed, wanted)]
        if orders:
            place_orders(engine, outbox, producer, topic, orders)
            placed = wanted
        ALIVE.touch()


if __name__ == "__main__":
    main()
