"""What the relay's tests do again and again, members beside it, and the oracle of a copy."""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
from confluent_kafka import Consumer, Message, Producer

from backlogctl.fanout.quiet import await_decided
from backlogctl.fanout.relay.guard import GroupGuard
from backlogctl.fanout.relay.interface import (
    RECORD,
    Position,
    RelayEngine,
    RelayTask,
    SourceRange,
)
from backlogctl.fanout.relay.pool import RelayPool
from backlogctl.fanout.relay.session import RelaySession
from backlogctl.kafka.admin import committed_offsets, list_offsets
from backlogctl.kafka.clients import (
    Admin,
    make_admin,
    make_consumer,
    make_producer,
)
from backlogctl.partitioners import PARTITIONERS
from tests.kit.kafka import need_kafka, read_all, repeating, wait_until

OLD_MS = 1_400_000_000_000  # 2014
Identity = tuple[bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...], int]


@dataclass(frozen=True)
class RelayWorld:
    """A source topic, a temporary topic and a group whose commits are 0."""

    properties: dict[str, str]
    source: str
    target: str
    group: str
    partitions: int
    target_partitions: int
    recovery_id: str = "r-20261121-0001"

    @cached_property
    def admin(self) -> Admin:
        """Kept, so that it connects once."""
        return make_admin(self.properties)

    def task(self, metadata: bytes, **changes: Any) -> RelayTask:
        """The relays' task with the guard's membership."""
        settings: dict[str, Any] = {
            "properties": self.properties,
            "recovery_id": self.recovery_id,
            "source": self.source,
            "target": self.target,
            "target_partitions": self.target_partitions,
            "group": self.group,
            "group_metadata": metadata,
            "recovery_group": f"{self.group}.recovery",
        }
        return RelayTask(**{**settings, **changes})

    def guard(self) -> GroupGuard:
        """A guard that has not joined."""
        return GroupGuard(
            self.properties, self.group, self.source, self.partitions, self.recovery_id
        )

    @contextmanager
    def guarded(self, **changes: Any) -> Iterator[RelayTask]:
        """The task, while a guard is in the group."""
        guard = self.guard()
        try:
            yield self.task(guard.join(lambda: None), **changes)
        finally:
            guard.leave()

    def ends(self) -> dict[int, int]:
        """The source's last stable offsets."""
        numbers = range(self.partitions)
        return list_offsets(self.admin, self.source, numbers, "latest", "read_committed")

    def ranges(self) -> list[SourceRange]:
        """Every source partition up to what is stable now."""
        return [SourceRange(number, 0, end) for number, end in self.ends().items()]

    def commits(self) -> dict[int, int]:
        found = committed_offsets(
            self.admin, self.group, self.source, range(self.partitions), require_stable=True
        )
        return {number: at or 0 for number, at in found.items()}

    def read_target(self) -> list[Message]:
        """Every committed message of the temporary topic.

        A commit is answered before its markers are in every partition.
        """
        wait_until(lambda: not self.has_open_transactions(), what="every transaction has ended")
        return read_all(self.properties, self.target, range(self.target_partitions))

    def has_open_transactions(self) -> bool:
        """Whether a partition of the temporary topic is held back."""
        numbers = range(self.target_partitions)
        stable = list_offsets(self.admin, self.target, numbers, "latest", "read_committed")
        return stable != list_offsets(self.admin, self.target, numbers, "latest")


def identify(message: Message) -> Identity:
    """Everything of a message that a copy must keep."""
    headers = cast("list[tuple[str, bytes | None]]", message.headers() or [])
    return message.key(), message.value(), tuple(headers), message.timestamp()[1]


def check_copied(
    world: RelayWorld,
    *,
    order: str = "key",
    partitioner: str = "murmur2",
    also: Sequence[Message] = (),
) -> list[str]:
    """What is wrong with the copy, in words; empty where nothing is.

    Args:
        also: messages that another consumer of the group has handled.
    """
    source = read_all(world.properties, world.source, range(world.partitions))
    target = world.read_target()
    wanted = Counter(map(identify, source))
    found = Counter(map(identify, [*target, *also]))
    wrong = [f"lost: {what} x {count}" for what, count in list((wanted - found).items())[:3]]
    wrong += [f"too many: {what} x {count}" for what, count in list((found - wanted).items())[:3]]
    return (
        wrong
        + _check_order(source, target, wanted)
        + _check_places(world, target, order, partitioner)
    )


def _check_order(
    source: Sequence[Message], target: Sequence[Message], counts: Counter[Identity]
) -> list[str]:
    """In each temporary partition, the messages of one source partition are in its order."""
    where = {
        identify(message): (message.partition(), message.offset() or 0)
        for message in source
        if counts[identify(message)] == 1
    }
    last: dict[tuple[int | None, int | None], int] = {}
    for message in target:
        if (known := where.get(identify(message))) is None:
            continue
        way = (known[0], message.partition())
        if known[1] <= last.get(way, -1):
            return [f"out of order: source offset {known[1]} in partition {way[1]}"]
        last[way] = known[1]
    return []


def _check_places(
    world: RelayWorld, target: Sequence[Message], order: str, partitioner: str
) -> list[str]:
    """A key is where its producers' hash puts it, modulo the new count."""
    if order != "key" or not target:
        return []
    keys: list[bytes | None] = [message.key() for message in target]
    places = PARTITIONERS[partitioner](pa.array(keys, pa.binary()), world.target_partitions)
    return [
        f"key {key!r} is in partition {message.partition()}, not {place}"
        for message, key, place in zip(target, keys, places.tolist(), strict=True)
        if key is not None and message.partition() != place
    ][:3]


def fill(
    properties: Mapping[str, str],
    topic: str,
    counts: Mapping[int, int],
    *,
    first: int = 0,
    keys: int = 40,
    size: int = 0,
    transaction: str = "",
    commit: bool = True,
) -> None:
    """Distinct messages of years ago, every eleventh without a key; maybe in one transaction."""
    # An idempotent producer needs half a second to begin.
    settings: dict[str, Any] = (
        {"transactional.id": transaction}
        if transaction
        else {"enable.idempotence": False, "linger.ms": 1}
    )
    producer = make_producer(properties, settings)
    if transaction:
        producer.init_transactions(90)
        producer.begin_transaction()
    for partition, count in counts.items():
        for number in range(first, first + count):
            key = f"k{partition}-{number % keys}".encode() if number % 11 else None
            value = f"{partition}-{number}-".encode() + b"x" * size
            while True:
                try:
                    producer.produce(topic, value, key, partition, timestamp=OLD_MS + number)
                    break
                except BufferError:
                    producer.poll(0.1)
        producer.poll(0)
    assert producer.flush(90) == 0
    if transaction:
        (producer.commit_transaction if commit else producer.abort_transaction)(90)
        # That is answered before the markers are in every partition.
        await_decided(properties, topic, max(counts) + 1, lambda: None, within=90)


@contextmanager
def filling(properties: Mapping[str, str], topic: str, partitions: int) -> Iterator[None]:
    """Somebody goes on producing, one message to each partition at a time."""
    producer = make_producer(properties, {"enable.idempotence": False})
    numbers = itertools.count(1_000_000)

    def produce() -> None:
        number = next(numbers)
        for partition in range(partitions):
            value = f"{partition}-{number}".encode()
            producer.produce(topic, value, value[-2:], partition, timestamp=OLD_MS + number)
        producer.poll(0)

    try:
        with repeating(produce, each=0.005):
            yield
    finally:
        assert producer.flush(90) == 0


@dataclass
class Running:
    """Relays on threads of the test's own."""

    positions: dict[int, Position] = field(default_factory=dict)
    ended: dict[int, Position] = field(default_factory=dict)
    errors: list[BaseException] = field(default_factory=list)
    stopping: threading.Event = field(default_factory=threading.Event)
    threads: list[threading.Thread] = field(default_factory=list)

    def end(self) -> dict[int, Position]:
        """Waits for the ends; raises the first error."""
        for thread in self.threads:
            thread.join(120)
            assert not thread.is_alive()
        if self.errors:
            raise self.errors[0]
        return self.ended


def start_relays(
    engine: RelayEngine,
    task: RelayTask,
    ranges: Sequence[SourceRange],
    notify: Callable[[Position], None] = lambda _: None,
) -> Running:
    running = Running()

    def told(position: Position) -> None:
        running.positions[position.partition] = position
        notify(position)

    def run(part: SourceRange) -> None:
        try:
            running.ended[part.partition] = engine.relay(task, part, told, running.stopping.is_set)
        except BaseException as error:  # noqa: BLE001 - `end` raises it
            running.errors.append(error)

    for part in ranges:
        thread = threading.Thread(target=run, args=(part,), daemon=True)
        running.threads.append(thread)
        thread.start()
    return running


def relay(
    engine: RelayEngine,
    task: RelayTask,
    ranges: Sequence[SourceRange],
    notify: Callable[[Position], None] = lambda _: None,
) -> dict[int, Position]:
    return start_relays(engine, task, ranges, notify).end()


def pin_nothing(world: RelayWorld) -> bytes:
    """The metadata of a consumer that never joined: generation −1, no fence at all."""
    consumer = make_consumer(world.properties, {"group.id": world.group})
    try:
        return bytes(consumer.consumer_group_metadata())
    finally:
        consumer.close()


def open_transaction(
    properties: Mapping[str, str], name: str, topic: str, partition: int
) -> Producer:
    """A transaction with one message in it, left open."""
    producer = make_producer(
        properties, {"transactional.id": name, "transaction.timeout.ms": 600_000}
    )
    producer.init_transactions(90)
    producer.begin_transaction()
    producer.produce(topic, b"stranger", b"stranger", partition, timestamp=OLD_MS)
    assert producer.flush(90) == 0
    return producer


def await_commits(world: RelayWorld, wanted: Mapping[int, int]) -> None:
    wait_until(lambda: world.commits() == wanted, 90.0, f"commits become {wanted}")


def check_until(checked: RelaySession | RelayPool, condition: Callable[[], bool]) -> None:
    """Looks again and again, as the runner does, until the condition holds."""

    def holds() -> bool:
        checked.check()
        return condition()

    wait_until(holds)


def keep_checking(checked: RelaySession | RelayPool) -> None:
    """Until that raises."""
    check_until(checked, lambda: False)


@contextmanager
def pool_of(
    task: RelayTask, ranges: list[SourceRange], log: Path, count: int = 1, engine: str = RECORD
) -> Iterator[RelayPool]:
    """A pool that leaves no process behind."""
    pool = RelayPool(task, ranges, log / "relay.log", processes=count, engine=engine)
    try:
        yield pool
    finally:
        pool.kill()


def run(pool: RelayPool) -> None:
    """Until every range is done."""
    pool.start()
    check_until(pool, lambda: pool.is_done)


@contextmanager
def member_of(world: RelayWorld, **settings: str) -> Iterator[Consumer]:
    """A consumer of the original group, as the launcher's would be."""
    if settings.get("group_protocol") == "consumer":
        need_kafka(4, 0)
    named = {name.replace("_", "."): value for name, value in settings.items()}
    consumer = make_consumer(
        world.properties, {"group.id": world.group, "fetch.wait.max.ms": 50, **named}
    )
    consumer.subscribe([world.source])
    try:
        yield consumer
    finally:
        consumer.close()


def read_on(consumer: Consumer, count: int) -> list[Message]:
    """Reads `count` messages and commits them."""
    found: list[Message] = []
    end = time.monotonic() + 90
    while len(found) < count:
        assert time.monotonic() < end, f"read {len(found)} of {count}"
        message = consumer.poll(0.1)
        if message is not None and message.error() is None:
            found.append(message)
    last = {message.partition(): message for message in found}
    for message in last.values():
        consumer.commit(message=message, asynchronous=False)
    return found
