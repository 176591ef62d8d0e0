"""A consumer of orders that may be started thirty times, on any topic and in any group.

    BACKLOG_TOPIC=orders BACKLOG_GROUP=order-service BACKLOG_BOOTSTRAP_SERVERS=localhost:9092 \\
        ORDER_LOG=handled ORDER_RATE=1000 python order_consumer.py

What to read comes from the environment, as backlogctl sets it. Each batch is handled, then
committed, so a message may come twice and none is lost: handling an order must be idempotent. It
keeps a file of its own in the directory ORDER_LOG, with a line for each order that it handled,
before the commit: when, in nanoseconds, the key, and which of the key's orders it was.
"""

from __future__ import annotations

import json
import os
import signal
import time

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

TOPIC = os.environ.get("BACKLOG_TOPIC", "orders")
BATCH = 500
BATCH_SECONDS = 0.25  # a batch is at most that much work where there is a rate

SETTINGS = {
    "bootstrap.servers": os.environ.get("BACKLOG_BOOTSTRAP_SERVERS", "localhost:9092"),
    "group.id": os.environ.get("BACKLOG_GROUP", "order-service"),
    "client.id": f"order-consumer-{os.environ.get('BACKLOG_INDEX', os.getpid())}",
    "partition.assignment.strategy": "range",
    "auto.offset.reset": "earliest",
    "enable.auto.commit": False,  # committed here, once the orders are handled
    "enable.auto.offset.store": False,
    "isolation.level": "read_committed",
    # Thirty of them on one machine: each keeps little in memory.
    "queued.max.messages.kbytes": 4096,
    "fetch.wait.max.ms": 100,
    # A member that joins is noticed at once.
    "heartbeat.interval.ms": 500,
    "session.timeout.ms": 6_000,
    "log_level": 3,
}
# Others have these partitions now, and read again what was not committed.
LOST = {
    KafkaError.ILLEGAL_GENERATION,
    KafkaError.UNKNOWN_MEMBER_ID,
    KafkaError.REBALANCE_IN_PROGRESS,
    KafkaError._ASSIGNMENT_LOST,
    KafkaError._STATE,
    KafkaError._NO_OFFSET,
}


class OrderConsumer:
    """Reads, handles, commits, until it is asked to end."""

    def __init__(self, rate: float, log: int) -> None:
        self._rate = rate
        self._log = log
        self._ending = False
        self._owned: set[int] = set()
        self._handled: dict[int, int] = {}  # next offset of each partition, not yet committed
        self._free_at = time.monotonic()
        self._consumer = Consumer(SETTINGS)

    def run(self) -> None:
        """Until SIGTERM or Ctrl-C; then what was handled is committed, and the group is left."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self._end())
        self._consumer.subscribe(
            [TOPIC], on_assign=self._assign, on_revoke=self._revoke, on_lost=self._lose
        )
        size = BATCH if not self._rate else max(1, min(BATCH, int(self._rate * BATCH_SECONDS)))
        try:
            while not self._ending:
                messages = self._consumer.consume(size, timeout=0.25)
                # Of a partition that was taken away meanwhile, others have read already.
                orders = [m for m in messages if _is_order(m) and m.partition() in self._owned]
                if orders:
                    self._handle(orders)
                    self._commit()
                    self._keep_pace(len(orders))
        finally:
            self._consumer.close()  # calls `_revoke`

    def _end(self) -> None:
        self._ending = True

    def _handle(self, orders: list[Message]) -> None:
        """What the shop does with orders: here, only a note that it did."""
        lines: list[bytes] = []
        now = time.time_ns()
        for message in orders:
            self._handled[int(message.partition() or 0)] = int(message.offset() or 0) + 1
            number = json.loads(message.value() or b"{}")["number"]
            lines.append(b"%d %s %d\n" % (now, message.key(), number))
        os.write(self._log, b"".join(lines))

    def _commit(self) -> None:
        offsets = [TopicPartition(TOPIC, p, at) for p, at in self._handled.items()]
        if not offsets:
            return
        try:
            self._consumer.commit(offsets=offsets, asynchronous=False)
        except KafkaException as error:
            if error.args[0].code() not in LOST:
                raise
        self._handled.clear()

    def _keep_pace(self, count: int) -> None:
        """One sleep for a batch; time that was not used is not saved up."""
        if self._rate:
            now = time.monotonic()
            self._free_at = max(self._free_at, now - BATCH_SECONDS) + count / self._rate
            if self._free_at > now:
                time.sleep(self._free_at - now)

    def _assign(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        self._owned |= {partition.partition for partition in partitions}

    def _revoke(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        self._commit()
        self._owned -= {partition.partition for partition in partitions}

    def _lose(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        for partition in partitions:
            self._owned.discard(partition.partition)
            self._handled.pop(partition.partition, None)


def _is_order(message: Message) -> bool:
    error = message.error()
    if error is None:
        return True
    # A topic made a moment ago may be unknown for a while; the client asks again by itself.
    if error.fatal() or not (error.retriable() or error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART):
        raise KafkaException(error)
    return False


def main() -> None:
    directory = os.environ.get("ORDER_LOG", ".")
    os.makedirs(directory, exist_ok=True)  # noqa: PTH103 - thirty of us start at once
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    log = os.open(f"{directory}/{TOPIC}.{os.getpid()}.log", flags, 0o600)
    OrderConsumer(float(os.environ.get("ORDER_RATE", "0")), log).run()


if __name__ == "__main__":
    main()
