"""Compares the orders in the table with the messages in the topic."""

from __future__ import annotations

import os
import sqlite3
from collections import Counter

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

TOPIC = "orders"


def read_keys() -> Counter[str]:
    """How often each key is in the topic."""
    consumer = Consumer(
        {
            "bootstrap.servers": os.environ["SHOP_KAFKA"],
            "group.id": "compare",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    partitions = set(consumer.list_topics(TOPIC, 30).topics[TOPIC].partitions)
    consumer.assign([TopicPartition(TOPIC, number, 0) for number in partitions])
    keys: Counter[str] = Counter()
    while partitions:
        message = consumer.poll(30)
        if message is None:
            raise SystemExit("the broker does not answer")
        error = message.error()
        if error is None:
            keys[(message.key() or b"").decode()] += 1
        elif error.code() == KafkaError._PARTITION_EOF:
            partitions.discard(message.partition() or 0)
        else:
            raise KafkaException(error)
    consumer.close()
    return keys


def main() -> None:
    with sqlite3.connect("shop.db") as shop:
        orders = {order for (order,) in shop.execute("SELECT order_id FROM orders")}
    sent = read_keys()
    again = sent.total() - len(sent)
    print(f"{len(orders):,} orders in the table")
    print(f"{len(sent):,} orders in the topic ({again:,} of them twice)")
    missing, never = len(orders - sent.keys()), len(sent.keys() - orders)
    print(f"{missing:,} missing, {never:,} that were rolled back")
    raise SystemExit(1 if missing or never else 0)


if __name__ == "__main__":
    main()
