"""A consumer that notes what it handled: `hash partition offset` lines in ORDER_LOG, before it commits.

A file `ORDER_LOG.<role>` holds messages a second; it is looked at all the time.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from confluent_kafka import Consumer, KafkaException

from tests.crash.offload.traffic import Content

_AT_ONCE = 100


def main() -> None:
    """Reads, notes, commits; until SIGTERM."""
    log_path, role = os.environ["ORDER_LOG"], os.environ["BACKLOG_ROLE"]
    speed_path = Path(f"{log_path}.{role}")
    ending: list[int] = []
    signal.signal(signal.SIGTERM, lambda *_: ending.append(1))
    log = os.open(log_path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    consumer = Consumer(
        {
            "bootstrap.servers": os.environ["BACKLOG_BOOTSTRAP_SERVERS"],
            "group.id": os.environ["BACKLOG_GROUP"],
            "client.id": f"order-service-{role}",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "session.timeout.ms": 10_000,
            "heartbeat.interval.ms": 500,
            "fetch.wait.max.ms": 50,
            "topic.metadata.refresh.fast.interval.ms": 50,
            "log_level": 3,
        }
    )
    consumer.subscribe([os.environ["BACKLOG_TOPIC"]])
    while not ending:
        try:
            speed = float(speed_path.read_text() or 0)
        except FileNotFoundError:
            speed = 1e9
        lines = []
        for message in consumer.consume(min(_AT_ONCE, max(1, int(speed / 10))), 0.05):
            if message.error() is not None:
                continue
            content = Content.of_message(message)
            lines.append(f"{content.hash} {message.partition()} {message.offset()}\n")
        if not lines:
            continue
        os.write(log, "".join(lines).encode())
        try:
            consumer.commit(asynchronous=False)
        except KafkaException as error:
            print(f"not committed: {error}", flush=True)  # read again by who has it now
        time.sleep(len(lines) / speed)
    consumer.close()


if __name__ == "__main__":
    main()
