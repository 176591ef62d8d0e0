"""The relay's benchmark: its messages, one run of each way to copy them, and what came out."""

from __future__ import annotations

import random
import resource
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from confluent_kafka import TopicPartition

from backlog.kafka.admin import create_topic, list_offsets, set_group_offsets
from backlog.kafka.clients import assign_partitions, make_admin, make_consumer, make_producer
from benchmarks.shop import send
from fanout.relay.guard import Guard
from fanout.relay.interface import Order, Position, RelayTask, SourceRange
from fanout.relay.pool import RelayPool
from sandbox.embedded import EmbeddedKafka

SOURCE = "orders"
PARTITIONS = 3
TARGETS = 30
USERS = 100_000
_NUMBER = slice(15, 25)  # where a message's value has its number
_KEEP = {"retention.ms": "-1", "retention.bytes": "-1"}


@dataclass
class Usage:
    """Seconds, and CPU seconds of who copied and of the broker."""

    seconds: float = 0.0
    copier: float = 0.0
    broker: float = 0.0


@dataclass
class Run:
    """One copy of the whole topic.

    Attributes:
        first_commit: seconds until the first messages were committed; None where it is not known.
        committed_first: how many those were.
        spread: messages in the fullest temporary partition by those in the emptiest.
        exact: whether each message is there exactly once.
    """

    usage: Usage = field(default_factory=Usage)
    first_commit: float | None = None
    committed_first: int = 0
    spread: float = 0.0
    exact: bool = False

    def to_json(self, messages: int) -> dict[str, Any]:
        usage, after = self.usage, None
        if self.first_commit is not None:
            after = round((messages - self.committed_first) / (usage.seconds - self.first_commit))
        return {
            "seconds": round(usage.seconds, 2),
            "per_second": round(messages / usage.seconds),
            "first_commit_seconds": None
            if self.first_commit is None
            else round(self.first_commit, 2),
            "after_start_per_second": after,
            "copier_cpu_seconds": round(usage.copier, 2),
            "broker_cpu_seconds": round(usage.broker, 2),
            "fullest_by_emptiest": round(self.spread, 4),
            "exact": self.exact,
        }


@contextmanager
def measured(broker: int) -> Iterator[Usage]:
    """Time and CPU of what happens inside; children count when they have ended.

    Args: `broker` is the pid of its JVM.
    """
    usage = Usage()
    began, children, jvm = time.monotonic(), _cpu_of_children(), _cpu_of(broker)
    yield usage
    usage.seconds = usage.seconds or time.monotonic() - began
    usage.copier = _cpu_of_children() - children
    usage.broker = _cpu_of(broker) - jvm


def publish_orders(kafka: EmbeddedKafka, messages: int) -> float:
    """Publishes numbered orders, keyed by user as Java does; returns bytes a message."""
    properties = {"bootstrap.servers": kafka.bootstrap}
    create_topic(make_admin(properties), SOURCE, partitions=PARTITIONS, replication=1, config=_KEEP)
    producer = make_producer(
        properties,
        {
            "linger.ms": 20,
            "queue.buffering.max.messages": 500_000,
            "partitioner": "murmur2_random",
        },
    )
    size = 0
    for key, value in _make_messages(messages):
        size += len(key) + len(value)
        send(producer, SOURCE, value, key)
    assert producer.flush(60) == 0
    return size / messages


def relay(kafka: EmbeddedKafka, order: Order, messages: int, scratch: Path, number: int) -> Run:
    """One copy through real relay processes and a real guard, into a topic of its own."""
    properties = {"bootstrap.servers": kafka.bootstrap}
    admin = make_admin(properties)
    target, group = f"{SOURCE}.{order}.{number}", f"group-{order}-{number}"
    create_topic(admin, target, partitions=TARGETS, replication=1, config=_KEEP)
    set_group_offsets(admin, group, SOURCE, dict.fromkeys(range(PARTITIONS), 0))
    ends = list_offsets(admin, SOURCE, range(PARTITIONS), "latest")
    guard = Guard(properties, group, SOURCE, PARTITIONS, f"r-{number}")
    task = RelayTask(
        properties,
        f"r-20261121-{number:04}",
        SOURCE,
        target,
        TARGETS,
        group,
        guard.join(lambda: None),
        order,
        transactional_prefix=f"bench-{order}-{number}",
    )
    ranges = [SourceRange(each, 0, ends[each]) for each in range(PARTITIONS)]
    run = Run()
    with measured(kafka.pid) as run.usage:
        began = time.monotonic()
        pool = RelayPool(task, ranges, scratch / "relay.log")
        pool.start()
        while not pool.is_done:
            pool.check()
            if run.first_commit is None and (found := pool.positions):
                run.first_commit = time.monotonic() - began
                run.committed_first = _count(found)
            time.sleep(0.01)
        run.usage.seconds = time.monotonic() - began
        pool.stop()
    guard.check()
    guard.leave()
    assert _count(pool.positions) == messages, "the relay's counters do not say all"
    _check(run, properties, target, messages)
    _remove(kafka, target)
    return run


def pipe(kafka: EmbeddedKafka, messages: int, number: int) -> Run:
    """One copy by kcat into kcat, as fast as it goes: keys and values in lines of text."""
    properties = {"bootstrap.servers": kafka.bootstrap}
    target = f"{SOURCE}.kcat.{number}"
    create_topic(make_admin(properties), target, partitions=TARGETS, replication=1, config=_KEEP)
    reading = ["kcat", "-C", "-b", kafka.bootstrap, "-t", SOURCE, "-o", "beginning", "-e", "-q"]
    reading += ["-K", r"\t", "-X", "fetch.wait.max.ms=50"]
    writing = ["kcat", "-P", "-b", kafka.bootstrap, "-t", target, "-z", "lz4", "-K", r"\t"]
    for setting in (
        "linger.ms=10",
        "queue.buffering.max.messages=500000",
        "topic.partitioner=murmur2_random",
    ):
        writing += ["-X", setting]
    run = Run()
    with measured(kafka.pid) as run.usage:
        reader = subprocess.Popen(reading, stdout=subprocess.PIPE)
        writer = subprocess.Popen(writing, stdin=reader.stdout)
        assert reader.stdout is not None
        reader.stdout.close()
        codes = (writer.wait(), reader.wait())
    assert codes == (0, 0), f"kcat ended with {codes}"
    _check(run, properties, target, messages)
    _remove(kafka, target)
    return run


def _make_messages(messages: int) -> Iterator[tuple[bytes, bytes]]:
    """About 400 B each: an order with some items, as a shop has them."""
    dice = random.Random(7)
    streets = ["Hill Road", "Station Street", "Market Square", "Mill Lane", "Church Street"]
    tails = []
    for _ in range(5_000):
        items = ",".join(
            f'{{"sku":"SKU-{dice.randrange(10**6):06}","quantity":{dice.randrange(1, 6)},'
            f'"price":"{dice.randrange(99, 20_000) / 100:.2f}"}}'
            for _ in range(3)
        )
        tails.append(
            f'"status":"{dice.choice(("paid", "shipped", "refunded"))}","currency":"EUR",'
            f'"amount":"{dice.randrange(999, 99_999) / 100:.2f}","items":[{items}],'
            f'"ship_to":{{"street":"{dice.randrange(1, 200)} {dice.choice(streets)}",'
            f'"postal_code":"{dice.randrange(10_000, 99_999)}","country":"DE"}},'
            f'"updated_at":"2026-11-21T08:{dice.randrange(60):02}:{dice.randrange(60):02}.000Z"}}'
        )
    pick, throw = dice.choices, dice.random
    for start in range(0, messages, 10_000):
        count = min(10_000, messages - start)
        for number, tail in enumerate(pick(tails, k=count), start):
            user = int(throw() * USERS)
            value = f'{{"order_id":"o-{number:010}","user_id":{user},{tail}'
            yield f"u-{user}".encode(), value.encode()


def _check(run: Run, properties: dict[str, str], target: str, messages: int) -> None:
    """Reads the copy, read committed: each number once, and how evenly it lies."""
    admin = make_admin(properties)
    ends = list_offsets(admin, target, range(TARGETS), "latest", "read_committed")
    consumer = make_consumer(
        properties, {"enable.partition.eof": True, "max.partition.fetch.bytes": 4 * 1024 * 1024}
    )
    seen = np.zeros(messages, np.int32)
    places = np.zeros(TARGETS, np.int64)
    open_ones = {place for place, end in ends.items() if end}
    assign_partitions(consumer, [TopicPartition(target, place, 0) for place in open_ones])
    while open_ones:
        numbers: list[int] = []
        found: list[int] = []
        for message in consumer.consume(20_000, 1.0):
            place = message.partition()
            assert place is not None
            if message.error() is not None:
                open_ones.discard(place)
                continue
            value = message.value()
            assert value is not None
            numbers.append(int(value[_NUMBER]))
            found.append(place)
        np.add.at(seen, np.array(numbers, np.int64), 1)
        places += np.bincount(np.array(found, np.int64), minlength=TARGETS)
    consumer.close()
    run.exact = bool((seen == 1).all())
    run.spread = float(places.max() / max(1, places.min()))


def _remove(kafka: EmbeddedKafka, topic: str) -> None:
    admin = make_admin({"bootstrap.servers": kafka.bootstrap})  # its futures end with it
    admin.delete_topics([topic])[topic].result(30)
    time.sleep(1.0)  # its files go, and the broker is quiet


def _count(positions: dict[int, Position]) -> int:
    return sum(position.relayed for position in positions.values())


def _cpu_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _cpu_of(pid: int) -> float:
    used = psutil.Process(pid).cpu_times()
    return float(used.user + used.system)


@contextmanager
def make_world() -> Iterator[tuple[EmbeddedKafka, Path]]:
    """A broker with 1 GB of heap, and a directory."""
    with (
        tempfile.TemporaryDirectory(prefix="backlogctl-bench-") as name,
        EmbeddedKafka.start(Path(name) / "kafka", heap="1g") as kafka,
    ):
        yield kafka, Path(name)
