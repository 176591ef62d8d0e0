"""A consumer that pays each order once, and is killed where a test says.

    python -m tests.delivery.paying BOOTSTRAP TOPIC GROUP TOTAL PORT FILE POINT

PORT is that of Redis; the work is in FILE: an order's id in each line. POINT is where it dies with the
third order that it is to pay: `begun` and nothing done, `worked` and the attempt not ended, `marked`
and not committed in Kafka, `read`; or `never`. It ends when it has committed the offset TOTAL of
partition 0.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

from confluent_kafka import Consumer, Message
from redis import Redis

from backlogctl_delivery.idempotent.redis import RedisMarks

IDENTITY = "order-id"
# Longer than an attempt, so that nobody takes over from who is alive.
LEASE = timedelta(seconds=2)


class Crash:
    """SIGKILL at one point of the third order."""

    def __init__(self, point: str) -> None:
        self._point, self._orders = point, 0

    def begin(self) -> None:
        self._orders += 1

    def reach(self, point: str) -> None:
        if point == self._point and self._orders == 3:
            os.kill(os.getpid(), signal.SIGKILL)


def make_pay(port: int, file: Path, crash: Crash) -> Callable[[Message], None]:
    marks = RedisMarks(
        Redis("127.0.0.1", port, socket_timeout=30),
        f"payer-{file.parent.name}-{file.stat().st_ino}",
        lease=LEASE,
        keep=timedelta(hours=1),
        when_away="closed",
        identity=IDENTITY,
    )

    def pay(message: Message) -> None:
        with marks.handle_once(message) as attempt:
            if attempt.is_first:
                crash.begin()
                crash.reach("begun")
                with file.open("a") as work:
                    work.write(f"{attempt.message_id} {int(attempt.was_begun)}\n")
                crash.reach("worked")
        crash.reach("marked")

    return pay


def main() -> None:
    bootstrap, topic, group, total, port, file, point = sys.argv[1:]
    crash = Crash(point)
    pay = make_pay(int(port), Path(file), crash)
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            # Who comes after a kill waits for nobody's session.
            "group.instance.id": "one",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 50,
        }
    )
    consumer.subscribe([topic])
    while True:
        message = consumer.poll(0.5)
        if message is None or message.error() is not None:
            continue
        pay(message)
        consumer.commit(message=message, asynchronous=False)
        crash.reach("read")
        if message.offset() == int(total) - 1:
            return


if __name__ == "__main__":
    main()
