"""Reads the topic `payments` from its beginning; ends when nothing has come for some seconds."""

from __future__ import annotations

import os

from confluent_kafka import Consumer, KafkaException

SILENT_SECONDS = 15.0


def main() -> None:
    consumer = Consumer(
        {
            "bootstrap.servers": os.environ["SHOP_KAFKA"],
            "group.id": "read-payments",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe(["payments"])
    while (message := consumer.poll(SILENT_SECONDS)) is not None:
        if message.error() is not None:
            raise KafkaException(message.error())
        print(f"payment {(message.key() or b'').decode()} is in the topic", flush=True)
    consumer.close()


if __name__ == "__main__":
    main()
