"""A consumer that pays each order once, and is killed where a test says.

    python -m tests.delivery.paying BOOTSTRAP TOPIC GROUP TOTAL STORE FILE POINT

STORE is a database's URL, or `redis:PORT` with its work in FILE: an order's id in each line. POINT is
one of `POINTS`, where it dies with the third order that it is to pay; or `never`. It ends when it has
committed the offset TOTAL of partition 0.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import sqlalchemy as sa
from confluent_kafka import Consumer, Message
from sqlalchemy.orm import Session

from backlogctl_delivery.idempotent.sql import Marks

# Begun and nothing done; done and the attempt not ended; the attempt ended and not committed; committed in
# the database and not in Kafka; committed in Kafka. Redis has no commit.
POINTS = ("begun", "worked", "marked", "committed", "read")
IDENTITY = "order-id"
PAID = sa.table("paid", sa.column("order_id"))
# Longer than a attempt, so that nobody takes over from who is alive.
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


def pay_in_sql(url: str, crash: Crash) -> Callable[[Message], None]:
    engine = sa.create_engine(url)
    marks = Marks("paid_marks", identity=IDENTITY)
    marks.create_tables(engine)

    def pay(message: Message) -> None:
        with Session(engine) as session, session.begin():
            with marks.handle_once(session, message) as attempt:
                if attempt.is_first:
                    crash.begin()
                    crash.reach("begun")
                    session.execute(sa.insert(PAID), {"order_id": attempt.message_id})
                    crash.reach("worked")
            crash.reach("marked")
        crash.reach("committed")

    return pay


def pay_in_redis(port: int, file: Path, crash: Crash) -> Callable[[Message], None]:
    from redis import Redis

    from backlogctl_delivery.idempotent.redis import RedisMarks

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
    bootstrap, topic, group, total, store, file, point = sys.argv[1:]
    crash = Crash(point)
    if store.startswith("redis:"):
        pay = pay_in_redis(int(store.removeprefix("redis:")), Path(file), crash)
    else:
        pay = pay_in_sql(store, crash)
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
