"""A consumer such as many shops have, as a process: it handles orders, so many a second at most.

    BACKLOG_TOPIC=orders BACKLOG_GROUP=order-service BACKLOG_BOOTSTRAP_SERVERS=localhost:9092 \\
        ORDER_LOG=handled ORDER_RATE=1000 python -m examples.order_consumer

What to read comes from the environment, as `backlogctl` sets it. It handles before it commits. In
the directory ORDER_LOG it keeps a file of its own with a line for each order it handled: when, in
nanoseconds, the customer, and which of this customer's orders it was.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time

from confluent_kafka import Consumer, KafkaException

COMMIT_SECONDS = 0.25
_BATCHES_PER_SECOND = 10
_MOST_BEHIND = 0.2  # seconds of waiting for messages that it may make up for


class OrderConsumer:
    """One member of the group."""

    def __init__(self, environment: dict[str, str]) -> None:
        topic = environment["BACKLOG_TOPIC"]
        self._rate = float(environment.get("ORDER_RATE", "1000"))
        directory, mode = environment.get("ORDER_LOG", "."), os.O_WRONLY | os.O_CREAT | os.O_APPEND
        os.makedirs(directory, exist_ok=True)  # noqa: PTH103 - thirty of us start at once
        self._log = os.open(f"{directory}/{topic}.{os.getpid()}.log", mode, 0o600)
        self._stopping = False
        self._uncommitted = False
        self._commit_at = 0.0
        self._consumer = Consumer(
            {
                "bootstrap.servers": environment["BACKLOG_BOOTSTRAP_SERVERS"],
                "group.id": environment["BACKLOG_GROUP"],
                "client.id": f"order-service-{environment.get('BACKLOG_INDEX', '0')}",
                "isolation.level": "read_committed",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                # A member that joins is noticed at once.
                "heartbeat.interval.ms": 500,
                "session.timeout.ms": 6_000,
                "fetch.wait.max.ms": 100,
                "log_level": 3,
            }
        )
        self._consumer.subscribe([topic], on_revoke=lambda *_: self._commit(wait=True))

    def run(self) -> None:
        """Handles orders until SIGTERM."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        size, due = max(1, round(self._rate / _BATCHES_PER_SECOND)), time.monotonic()
        try:
            while not self._stopping:
                count = self._handle(size)
                if self._uncommitted and time.monotonic() >= self._commit_at:
                    self._commit(wait=False)
                now = time.monotonic()
                due = max(due, now - _MOST_BEHIND) + count / self._rate
                if due > now:
                    time.sleep(due - now)
        finally:
            self._commit(wait=True)
            self._consumer.close()

    def _handle(self, size: int) -> int:
        lines: list[bytes] = []
        at = 0
        for message in self._consumer.consume(size, 0.1):
            if message.error() is not None:
                sys.stderr.write(f"{message.error()}\n")
                continue
            at = at or time.time_ns()
            order = json.loads(message.value() or b"{}")
            lines.append(b"%d %s %d\n" % (at, message.key(), order["number"]))
        if lines:
            os.write(self._log, b"".join(lines))
            self._uncommitted = True
        return len(lines)

    def _commit(self, *, wait: bool) -> None:
        """What was handled; before partitions go to another member, it waits for the answer."""
        if self._uncommitted:
            try:
                if wait:
                    self._consumer.commit(asynchronous=False)
                else:
                    self._consumer.commit(asynchronous=True)
            except KafkaException as error:  # then they are handled again
                sys.stderr.write(f"{error}\n")
        self._uncommitted, self._commit_at = False, time.monotonic() + COMMIT_SECONDS

    def _stop(self, *_: object) -> None:
        self._stopping = True


if __name__ == "__main__":
    OrderConsumer(dict(os.environ)).run()
