"""A shop whose consumer is slower than its producer, and a retention that is short."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from backlogctl.clock import utc_now
from backlogctl.kafka.admin import committed_offsets, list_offsets
from backlogctl.kafka.clients import make_admin, make_consumer, make_producer

SEGMENT_SECONDS = 1.0
CHECK_SECONDS = 1.0  # log.retention.check.interval.ms of the embedded broker
LOOK_SECONDS = 0.2


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
        overtaken_at: when the log start was first seen above the committed offset; then the
            consumer is closed, as one that crashes, and commits nothing more.
        pause: the longest time, in seconds, that the machine or the broker let it wait: with a long
            one the rates were not even.
        between_checks: the longest time, in seconds, from one move of the log start to the next.
    """

    properties: Mapping[str, str]
    topic: str
    group: str
    produced_per_second: float = 200.0
    consumed_per_second: float = 80.0
    overtaken_at: datetime | None = None
    pause: float = 0.0
    between_checks: float = CHECK_SECONDS
    handled: list[int] = field(default_factory=list)
    _stop: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)
    # Nothing is committed between a look at the offsets and what is made of it.
    _looking: threading.Lock = field(default_factory=threading.Lock)

    @property
    def late(self) -> float:
        """How many seconds after the earliest moment it may be seen overtaken.

        The log start is behind by up to a segment, and the consumer goes on meanwhile; then by the
        time between two checks, and two looks of ours.
        """
        gaining = 1 - self.consumed_per_second / self.produced_per_second
        return SEGMENT_SECONDS / gaining + self.between_checks + LOOK_SECONDS

    def start(self) -> None:
        for work in (self._produce, self._consume, self._look):
            thread = threading.Thread(target=work, daemon=True)
            thread.start()
            self._threads.append(thread)

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(60)

    def _produce(self) -> None:
        producer = make_producer(self.properties, {"linger.ms": 5})
        begun, sent = time.monotonic(), 0
        last = begun
        while not self._stop.wait(0.05):
            last = self._note(last)
            due = int((time.monotonic() - begun) * self.produced_per_second)
            for number in range(sent, due):
                producer.produce(self.topic, b"order", str(number).encode(), 0)
            sent = due
            producer.poll(0)
        producer.flush(60)

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
                    with self._looking:
                        if self.overtaken_at is None:
                            consumer.commit(message=message, asynchronous=False)
                due = begun + len(self.handled) / self.consumed_per_second
                self.pause = max(self.pause, time.monotonic() - due)
                self._stop.wait(max(0.0, due - time.monotonic()))
        finally:
            consumer.close()

    def _look(self) -> None:
        admin = make_admin(self.properties)
        last = moved = time.monotonic()
        start = 0
        while not self._stop.wait(LOOK_SECONDS):
            with self._looking:
                low = list_offsets(admin, self.topic, [0], "earliest")[0]
                if low > start:
                    now = time.monotonic()
                    if start:
                        self.between_checks = max(self.between_checks, now - moved)
                    start, moved = low, now
                committed = committed_offsets(admin, self.group, self.topic, [0])[0]
                if committed is not None and low > committed:
                    self.overtaken_at = utc_now()
                    return
            last = self._note(last)

    def _note(self, last: float) -> float:
        now = time.monotonic()
        self.pause = max(self.pause, now - last)
        return now
