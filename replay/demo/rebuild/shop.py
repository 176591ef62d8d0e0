"""The demo's shop: a source table of orders, and the service that publishes them."""

from __future__ import annotations

import json
import random
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path

from confluent_kafka import Producer

from backlog.clock import format_time, read_time
from backlog.kafka.clients import Properties

TOPIC = "orders"
GROUP = "order-service"
PARTITIONS = 3
TOTAL = 10_000
YOUNG = 2_000  # published minutes ago; retention leaves them
RETENTION = timedelta(hours=1)

_TABLE = """
CREATE TABLE orders (
    order_id   TEXT PRIMARY KEY,
    user_id    INTEGER NOT NULL,
    status     TEXT NOT NULL,
    amount     NUMERIC(10, 2) NOT NULL,
    updated_at TIMESTAMP NOT NULL
);
CREATE INDEX orders_by_time ON orders (updated_at);
"""


@dataclass(frozen=True, slots=True)
class Order:
    """One row of the source table."""

    order_id: str
    user_id: int
    status: str
    amount: Decimal
    updated_at: datetime

    @property
    def key(self) -> bytes:
        """The message's key."""
        return self.order_id.encode()

    @property
    def value(self) -> bytes:
        """The message's value: JSON, decimals as strings, times in ISO 8601 UTC."""
        document = {
            "order_id": self.order_id,
            "user_id": self.user_id,
            "status": self.status,
            "amount": f"{self.amount:.2f}",
            "updated_at": format_time(self.updated_at),
        }
        return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()


def make_orders(now: datetime, seed: int = 7) -> list[Order]:
    """Orders from six to three hours ago, and the young ones of the last half hour."""
    dice = random.Random(seed)
    old = TOTAL - YOUNG
    spans = [(timedelta(hours=6), timedelta(hours=3), old)]
    spans.append((timedelta(minutes=30), timedelta(minutes=2), YOUNG))
    orders: list[Order] = []
    for start, end, count in spans:
        step, first = (start - end) / count, len(orders) + 1
        orders.extend(
            Order(
                order_id=f"o-{first + index:05d}",
                user_id=dice.randrange(1, 2500),
                status=dice.choice(("paid", "paid", "paid", "refunded", "shipped")),
                amount=Decimal(dice.randrange(99, 99_999)) / 100,
                updated_at=now - start + step * index,
            )
            for index in range(count)
        )
    return orders


def write_table(database: Path, orders: Iterable[Order]) -> None:
    """The source table, in its own SQLite file."""
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.executescript(_TABLE)
        connection.executemany(
            "INSERT INTO orders VALUES (?, ?, ?, ?, ?)",
            (
                (o.order_id, o.user_id, o.status, float(o.amount), format_time(o.updated_at))
                for o in orders
            ),
        )


def read_table(database: Path) -> Iterator[Order]:
    """Every row of the source table."""
    with closing(sqlite3.connect(database)) as connection:
        rows = connection.execute(
            "SELECT order_id, user_id, status, printf('%.2f', amount), updated_at FROM orders"
        )
        for order_id, user_id, status, amount, updated_at in rows:
            yield Order(order_id, user_id, status, Decimal(amount), read_time(updated_at))


def publish_orders(client: Properties, orders: Iterable[Order]) -> None:
    """Publishes with keys, placed as Java's clients place them, at the time of the order."""
    producer = Producer(
        {
            **client,
            "partitioner": "murmur2_random",
            "enable.idempotence": True,
            "linger.ms": 20,
            "compression.type": "lz4",
            "log_level": 0,
        }
    )
    for order in orders:
        timestamp = int(order.updated_at.timestamp() * 1000)
        producer.produce(TOPIC, key=order.key, value=order.value, timestamp=timestamp)
        producer.poll(0)
    if producer.flush(60):
        raise RuntimeError("the demo's orders could not be published")
