"""A shop whose consumer is slower than its producer, and a retention that is short."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from backlog.kafka.admin import committed_offsets, list_offsets
from backlog.kafka.clients import make_admin, make_consumer, make_producer

SEGMENT_SECONDS = 1.0
CHECK_SECONDS = 1.0  # log.retention.check.interval.ms of the embedded broker


def make_settings(retention_seconds: float) -> dict[str, str]:
    """Topic settings: time deletes, a segment a second."""
    return {
        "retention.ms": str(int(retention_seconds * 1000)),
        "retention.bytes": "-1",
        "segment.ms": str(int(SEGMENT_SECONDS * 1000)),
    }


@dataclass
class SlowShop:
    """Produces and consumes partition 0 at even rates until it is told to stop.

    Attributes:
        overtaken_at: when the log start was first seen above the committed offset, by the
            monotonic clock; then the consumer is closed, as one that crashes.
    """

    properties: Mapping[str, str]
    topic: str
    group: str
    produced_per_second: float = 200.0
    consumed_per_second: float = 80.0
    overtaken_at: float | None = None
    handled: list[int] = field(default_factory=list)
    _stop: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)

    def start(self) -> None:
        """Starts the producer and the consumer."""
        for work in (self._produce, self._consume, self._look):
            thread = threading.Thread(target=work, daemon=True)
            thread.start()
            self._threads.append(thread)

    def stop(self) -> None:
        """Stops both."""
        self._stop.set()
        for thread in self._threads:
            thread.join(20)

    def _produce(self) -> None:
        producer = make_producer(self.properties, {"linger.ms": 5})
        begun, sent = time.monotonic(), 0
        while not self._stop.wait(0.05):
            due = int((time.monotonic() - begun) * self.produced_per_second)
            for number in range(sent, due):
                producer.produce(self.topic, b"order", str(number).encode(), 0)
            sent = due
            producer.poll(0)
        producer.flush(10)

    def _consume(self) -> None:
        consumer = make_consumer(
            self.properties,
            {
                "group.id": self.group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "fetch.wait.max.ms": 50,
            },
        )
        consumer.subscribe([self.topic])
        begun = 0.0
        try:
            while not self._stop.is_set() and self.overtaken_at is None:
                message = consumer.poll(0.2)
                offset = None if message is None or message.error() else message.offset()
                if message is None or offset is None:
                    continue
                begun = begun or time.monotonic()
                self.handled.append(offset)
                if len(self.handled) % 20 == 0:
                    consumer.commit(message=message, asynchronous=False)
                due = begun + len(self.handled) / self.consumed_per_second
                self._stop.wait(max(0.0, due - time.monotonic()))
        finally:
            consumer.close()

    def _look(self) -> None:
        admin = make_admin(self.properties)
        while not self._stop.wait(0.2):
            low = list_offsets(admin, self.topic, [0], "earliest")[0]
            committed = committed_offsets(admin, self.group, self.topic, [0])[0]
            if committed is not None and low > committed and self.overtaken_at is None:
                self.overtaken_at = time.monotonic()
                return
