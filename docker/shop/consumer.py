"""One consumer: handles SHOP_HANDLED_PER_SECOND orders a second at most, and notes each of them.

What to read comes from BACKLOG_TOPIC, BACKLOG_GROUP and BACKLOG_BOOTSTRAP_SERVERS. First the rows,
then the offsets: what is committed was handled. It is strict: where retention has deleted what it
has not read it ends with an error instead of skipping silently, unless SHOP_OFFSET_RESET is
`earliest`.
"""

from __future__ import annotations

import os
import time

from confluent_kafka import Consumer, Message
from settings import catch_signals, connect, read_rate

_MOST_BEHIND = 0.5  # seconds of idle time that it may catch up on


def read_key(message: Message) -> str:
    """The order's id."""
    error = message.error()
    if error is not None:
        raise SystemExit(str(error))
    return (message.key() or b"").decode()


def main() -> None:
    """Goes on until SIGTERM."""
    stop, rate = catch_signals(), read_rate("SHOP_HANDLED_PER_SECOND")
    consumer = Consumer(
        {
            "bootstrap.servers": os.environ["BACKLOG_BOOTSTRAP_SERVERS"],
            "group.id": os.environ["BACKLOG_GROUP"],
            "isolation.level": "read_committed",
            "auto.offset.reset": os.environ.get("SHOP_OFFSET_RESET") or "error",
            "enable.auto.commit": False,
            "session.timeout.ms": 10_000,
            # It prefetches little, so that what retention deletes is really lost.
            "max.partition.fetch.bytes": 2_048,
            "queued.min.messages": 1,
        }
    )
    consumer.subscribe([os.environ["BACKLOG_TOPIC"]])
    size, due = max(1, round(rate / 2)), time.monotonic()
    with connect() as table:
        try:
            while not stop.is_set():
                keys = [read_key(message) for message in consumer.consume(size, 0.2)]
                if keys:
                    with table.transaction(), table.cursor() as cursor:
                        cursor.executemany(
                            "INSERT INTO processed_orders (order_id) VALUES (%s)",
                            [(key,) for key in keys],
                        )
                    consumer.commit(asynchronous=False)
                now = time.monotonic()
                due = max(due, now - _MOST_BEHIND) + len(keys) / rate
                stop.wait(max(0.0, due - now))
        finally:
            consumer.close()


if __name__ == "__main__":
    main()
