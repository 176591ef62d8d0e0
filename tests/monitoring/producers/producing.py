"""Producers of every kind, at once, on one topic."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping

from confluent_kafka import Producer

from backlogctl.kafka.clients import make_producer


class Busy:
    """Two idempotent producers, and transactional ones that commit and abort; all stay open."""

    def __init__(
        self, properties: Mapping[str, str], topic: str, partitions: int, name: str
    ) -> None:
        self._topic, self._partitions = topic, partitions
        self._plain = [make_producer(properties, {"linger.ms": 2}) for _ in range(2)]
        self._transactional = [
            make_producer(properties, {"transactional.id": f"{name}-{number}", "linger.ms": 2})
            for number in range(2)
        ]
        for producer in self._transactional:
            producer.init_transactions(30)
        self._properties, self._name = properties, name
        self._dice = random.Random(7)
        self.sent = 0

    def work(self, rounds: int) -> None:
        """Some rounds of everything; the first transactional producer starts again in between."""
        for number in range(rounds):
            for producer in self._plain:
                self._send(producer, 60)
            for producer in self._transactional:
                producer.begin_transaction()
                self._send(producer, 30)
                producer.flush(30)
                if self._dice.random() < 0.4:
                    producer.abort_transaction(30)
                else:
                    producer.commit_transaction(30)
            if number % 5 == 4:
                settings = {"transactional.id": f"{self._name}-0", "linger.ms": 2}
                self._transactional[0] = make_producer(self._properties, settings)
                self._transactional[0].init_transactions(30)
        self.flush()

    def flush(self) -> None:
        assert not any(producer.flush(60) for producer in self._plain)

    def _send(self, producer: Producer, count: int) -> None:
        for _ in range(count):
            place = self._dice.randrange(self._partitions)
            producer.produce(self._topic, b"value" * self._dice.randrange(1, 50), partition=place)
            producer.poll(0)
        self.sent += count
        producer.flush(30)


def send(
    producer: Producer, topic: str, places: Iterable[int], failed: list[int] | None = None
) -> None:
    """One message to each place, numbered; those that fail are noted."""
    for number, place in enumerate(places):
        producer.produce(
            topic,
            str(number).encode(),
            partition=place,
            on_delivery=lambda error, message: (
                failed.append(message.partition() or 0) if error and failed is not None else None
            ),
        )
        producer.poll(0)
