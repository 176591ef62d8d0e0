"""Makes the topic `orders` and its backlog on the Kafka that SHOP_KAFKA names."""

from __future__ import annotations

import argparse
import json
import os

from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

TOPIC, PARTITIONS, KEYS = "orders", 3, 5_000


def main() -> None:
    """Publishes messages of 5,000 orders, numbered for each order."""
    parser = argparse.ArgumentParser(description="Makes a backlog of orders.")
    parser.add_argument("--messages", type=int, default=500_000)
    arguments = parser.parse_args()
    servers: dict[str, str | int | float | bool] = {"bootstrap.servers": os.environ["SHOP_KAFKA"]}
    try:
        AdminClient(servers).create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result(30)
    except KafkaException as error:
        print(f"{TOPIC}: {error.args[0].str()}")
    # Keys are placed as Java's clients do, which is what `partitioner: murmur2` says.
    settings = {"partitioner": "murmur2_random", "enable.idempotence": True, "linger.ms": 20}
    producer = Producer({**servers, **settings, "compression.type": "lz4"})
    for number in range(arguments.messages):
        order = f"order-{number % KEYS}"
        value = json.dumps({"order_id": order, "sequence": number // KEYS, "status": "paid"})
        while True:
            try:
                producer.produce(TOPIC, value.encode(), order.encode())
                break
            except BufferError:
                producer.poll(0.1)
        producer.poll(0)
    producer.flush()
    print(f"{arguments.messages:,} messages of {KEYS:,} orders")


if __name__ == "__main__":
    main()
