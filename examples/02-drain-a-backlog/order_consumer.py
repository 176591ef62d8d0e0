"""A consumer of orders that may be started thirty times, on any topic and in any group.

    python order_consumer.py [--rate 1000]

backlogctl sets what to read by BACKLOG_TOPIC, BACKLOG_GROUP and BACKLOG_BOOTSTRAP_SERVERS; without
them it is the shop's usual consumer. Each batch is handled, then committed, so a message may come
twice and none is lost: handling an order must be idempotent.

With ORDER_LOG set to a file, a line `key sequence partition topic time_ns` is appended for each
order that was handled, before its offset is committed.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

TOPIC = os.environ.get("BACKLOG_TOPIC", "orders")
GROUP = os.environ.get("BACKLOG_GROUP", "order-service")
SERVERS = os.environ.get("BACKLOG_BOOTSTRAP_SERVERS") or os.environ.get(
    "SHOP_KAFKA", "localhost:9092"
)

BATCH = 500
BATCH_SECONDS = 0.25  # a batch is at most that much work where there is a rate

SETTINGS = {
    "bootstrap.servers": SERVERS,
    "group.id": GROUP,
    "client.id": f"order-consumer-{os.environ.get('BACKLOG_INDEX', os.getpid())}",
    "partition.assignment.strategy": "range",
    "auto.offset.reset": "earliest",
    "enable.auto.commit": False,  # committed here, once the orders are handled
    "enable.auto.offset.store": False,
    "isolation.level": "read_committed",
    # Thirty of them on one machine: each keeps little in memory.
    "queued.max.messages.kbytes": 4096,
    "fetch.wait.max.ms": 250,
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

    def __init__(self, rate: float, log: int | None) -> None:
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
        lines: list[str] = []
        now = time.time_ns()
        for message in orders:
            partition, key = message.partition(), (message.key() or b"-").decode()
            self._handled[int(partition or 0)] = int(message.offset() or 0) + 1
            lines.append(f"{key} {_read_sequence(message)} {partition} {TOPIC} {now}\n")
        if self._log is not None:
            data = "".join(lines).encode()
            while data:  # one write as a rule: lines of several consumers do not mix
                data = data[os.write(self._log, data) :]

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


def _read_sequence(message: Message) -> str:
    """The number that the shop counts an order's messages by."""
    try:
        return str(json.loads(message.value() or b"")["sequence"])
    except (ValueError, KeyError, TypeError):
        return "-"


def main() -> None:
    """Opens the log and consumes."""
    parser = argparse.ArgumentParser(description="Handles orders.")
    parser.add_argument("--rate", type=float, default=0, help="messages per second; 0: no limit")
    arguments = parser.parse_args()
    log = os.environ.get("ORDER_LOG")
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    descriptor = os.open(log, flags, 0o644) if log else None
    print(f"reading {TOPIC} as {GROUP} at {SERVERS}", file=sys.stderr, flush=True)
    OrderConsumer(arguments.rate, descriptor).run()


if __name__ == "__main__":
    main()
