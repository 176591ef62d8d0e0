"""How a demo's customers order: an idempotent producer that waits for room."""

from __future__ import annotations

from confluent_kafka import Producer

from backlog.errors import KafkaFailure


class OrderProducer:
    """Publishes one topic's orders; Kafka's own partitioner, so that a key keeps its partition."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._topic = topic
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "partitioner": "murmur2_random",
                "enable.idempotence": True,
                "linger.ms": 20,
                "compression.type": "lz4",
                "log_level": 0,
            }
        )

    def publish(self, value: bytes, key: bytes) -> None:
        """Waits while the producer's queue is full."""
        while True:
            try:
                self._producer.produce(self._topic, value, key)
                return
            except BufferError:
                self._producer.poll(0.1)

    def poll(self) -> None:
        """Serves what was delivered."""
        self._producer.poll(0)

    def flush(self) -> None:
        """Waits until the broker has all of them.

        Raises:
            KafkaFailure: it has not after a minute.
        """
        if self._producer.flush(60):
            raise KafkaFailure(
                "the demo's orders could not be published", subject=f"topic {self._topic}"
            )
