"""The benchmark's world: a table of orders in PostgreSQL, and the survivors in a topic."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import psycopg
import pyarrow as pa
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from backlog.partitioners import place_murmur2

PADDING = "x" * 230
_TABLE = """
CREATE TABLE orders (
    order_id bigint PRIMARY KEY, user_id bigint NOT NULL, status text NOT NULL,
    amount numeric(12, 2) NOT NULL, note text NOT NULL, updated_at timestamptz NOT NULL)
"""
_ROWS = """
INSERT INTO orders
SELECT n, n %% 5000, 'paid', (n %% 100000) / 100.0, %(padding)s,
       timestamptz '2026-11-01 00:00:00.123456Z' + n * interval '1 second'
FROM generate_series(1, %(rows)s) AS n
"""
_SURVIVORS = """
SELECT order_id, user_id, status, amount::text, note,
       to_char(updated_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')
FROM orders WHERE order_id > %(after)s ORDER BY order_id
"""
HEADERS: list[tuple[str, str | bytes | None]] = [("type", b"OrderPaid")]
COLUMNS = ("order_id", "user_id", "status", "amount", "note", "updated_at")


def fill_table(url: str, rows: int) -> None:
    """Makes the table with `rows` orders, one a second, messages of about 400 B."""
    with psycopg.connect(url) as connection:
        connection.execute(_TABLE)
        connection.execute(_ROWS, {"rows": rows, "padding": PADDING})
        connection.execute("CREATE INDEX ON orders (updated_at)")
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("VACUUM ANALYZE orders")


def send(producer: Producer, *message: Any, **more: Any) -> None:
    """Produces as soon as the producer's queue has room."""
    while True:
        try:
            producer.produce(*message, **more)
            return
        except BufferError:
            producer.poll(0.05)


def expire_messages(bootstrap: str, topic: str, lost: dict[int, int]) -> None:
    """Moves the log starts over as many messages as are lost; their content does not matter."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 50})
    for partition, count in lost.items():
        for _ in range(count):
            send(producer, topic, b"", b"", partition)
    assert producer.flush(60) == 0
    admin = AdminClient({"bootstrap.servers": bootstrap})
    ends = [TopicPartition(topic, partition, count) for partition, count in lost.items()]
    for future in admin.delete_records(ends).values():
        future.result(30)


def publish_survivors(url: str, bootstrap: str, topic: str, *, after: int, partitions: int) -> int:
    """Publishes the orders after number `after` as the shop does; returns how many."""
    producer = Producer(
        {"bootstrap.servers": bootstrap, "linger.ms": 50, "compression.type": "lz4"}
    )
    messages = list(_read_messages(url, after))
    placed = place_murmur2(pa.array([key for key, _ in messages], pa.binary()), partitions)
    for (key, value), partition in zip(messages, placed.tolist(), strict=True):
        send(producer, topic, value, key, partition, headers=HEADERS)
    assert producer.flush(60) == 0
    return len(messages)


def count_lost(rows: int, partitions: int) -> dict[int, int]:
    """How many of the orders 1 to `rows` belong to each partition."""
    keys = pa.array([str(number).encode() for number in range(1, rows + 1)], pa.binary())
    counts = np.bincount(place_murmur2(keys, partitions), minlength=partitions)
    return dict(enumerate(counts.tolist()))


def _read_messages(url: str, after: int) -> Iterator[tuple[bytes, bytes]]:
    with psycopg.connect(url) as connection, connection.cursor("survivors") as cursor:
        cursor.execute(_SURVIVORS, {"after": after})
        for row in cursor:
            value = json.dumps(dict(zip(COLUMNS, row, strict=True)), separators=(",", ":"))
            yield str(row[0]).encode(), value.encode()
