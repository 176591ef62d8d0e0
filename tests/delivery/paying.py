"""A consumer that pays each order once, and is killed where a test says.

    python -m tests.delivery.paying BOOTSTRAP TOPIC GROUP TOTAL PORT FILE

PORT is that of Redis; the work is in FILE: an order's id in each line. An order that it is to pay
reaches `begun` and nothing done, `worked` and the attempt not ended, `marked` and not committed in
Kafka, `read`. It ends when it has committed the offset TOTAL of partition 0.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

from confluent_kafka import Consumer, Message
from redis import Redis

from backlogctl_delivery.crashpoints import reach
from backlogctl_delivery.idempotent.redis import RedisMarks

IDENTITY = "order-id"
# Longer than an attempt, so that nobody takes over from who is alive.
LEASE = timedelta(seconds=2)


def make_pay(port: int, file: Path) -> Callable[[Message], bool]:
    marks = RedisMarks(
        Redis("127.0.0.1", port, socket_timeout=30),
        f"payer-{file.parent.name}-{file.stat().st_ino}",
        lease=LEASE,
        keep=timedelta(hours=1),
        when_away="closed",
        identity=IDENTITY,
    )

    def pay(message: Message) -> bool:
        with marks.handle_once(message) as attempt:
            if attempt.is_first:
                reach("begun")
                with file.open("a") as work:
                    work.write(f"{attempt.message_id} {int(attempt.was_begun)}\n")
                reach("worked")
        return attempt.is_first

    return pay


def main() -> None:
    bootstrap, topic, group, total, port, file = sys.argv[1:]
    pay = make_pay(int(port), Path(file))
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
        if is_order := pay(message):
            reach("marked")
        consumer.commit(message=message, asynchronous=False)
        if is_order:
            reach("read")
        if message.offset() == int(total) - 1:
            return


if __name__ == "__main__":
    main()
