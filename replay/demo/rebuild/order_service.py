"""A consumer such as many shops have: it reads orders and keeps a row for each one it handled.

    python -m replay.demo.rebuild.order_service --bootstrap localhost:9092 --database warehouse.db

It adds a row for every message it handles, so an order that comes twice shows up twice.
"""

from __future__ import annotations

import argparse
import sqlite3
import sys
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from backlog.kafka.clients import Properties
from replay.demo.rebuild.shop import GROUP, TOPIC

_TABLE = """
CREATE TABLE IF NOT EXISTS processed_orders (
    order_id     TEXT NOT NULL,
    partition    INTEGER NOT NULL,
    "offset"     INTEGER NOT NULL,
    processed_at TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP
)
"""


def handle_orders(
    client: Properties, database: Path, *, stop_at: Mapping[int, int] | None = None
) -> int:
    """Handles orders until the end of each partition, or the offset given for it.

    Returns:
        How many messages were handled.
    """
    consumer = Consumer(
        {
            **client,
            "group.id": GROUP,
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 50,
            "log_level": 0,
        }
    )
    done: set[int] = set()
    handled = 0
    consumer.subscribe([TOPIC])
    try:
        with closing(sqlite3.connect(database)) as table:
            table.execute(_TABLE)
            while not consumer.assignment() or len(done) < len(consumer.assignment()):
                rows: list[tuple[str, int, int]] = []
                for message in consumer.consume(500, timeout=0.5):
                    partition, offset = int(message.partition() or 0), int(message.offset() or 0)
                    if _is_end(message) or offset >= (stop_at or {}).get(partition, offset + 1):
                        done.add(partition)
                        consumer.pause([TopicPartition(TOPIC, partition)])
                        continue
                    rows.append(((message.key() or b"").decode(), partition, offset))
                handled += _save(table, consumer, rows)
    finally:
        consumer.close()
    return handled


def _save(table: sqlite3.Connection, consumer: Consumer, rows: list[tuple[str, int, int]]) -> int:
    """First the rows, then the offsets: what is committed was handled."""
    if not rows:
        return 0
    with table:
        table.executemany(
            'INSERT INTO processed_orders (order_id, partition, "offset") VALUES (?, ?, ?)', rows
        )
    ends: dict[int, int] = {}
    for _, partition, offset in rows:
        ends[partition] = max(ends.get(partition, 0), offset + 1)
    offsets = [TopicPartition(TOPIC, partition, end) for partition, end in ends.items()]
    consumer.commit(offsets=offsets, asynchronous=False)
    return len(rows)


def _is_end(message: Message) -> bool:
    error = message.error()
    if error is None:
        return False
    if error.code() == KafkaError._PARTITION_EOF:
        return True
    raise RuntimeError(str(error))


def main() -> None:
    """Handles what is there, and ends."""
    parser = argparse.ArgumentParser(description="Handle the orders that are there, and end.")
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--database", required=True, type=Path)
    arguments = parser.parse_args()
    handled = handle_orders({"bootstrap.servers": arguments.bootstrap}, arguments.database)
    sys.stdout.write(f"handled {handled:,} orders\n")


if __name__ == "__main__":
    main()
