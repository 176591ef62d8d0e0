"""Traffic of every sort, and what each message says as one short text."""

from __future__ import annotations

import hashlib
import random
import threading
from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import Producer

from tests.kit.kafka import repeating

_STAMPS = "backlog-"


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """Where a message is."""

    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.partition}:{self.offset}"


@dataclass(frozen=True, slots=True)
class Content:
    """A message's bytes: NULL, empty, and headers in their order and as often as they are there."""

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]

    @classmethod
    def of(
        cls,
        key: bytes | None,
        value: bytes | None,
        headers: Iterable[tuple[str, bytes | None]] | None,
    ) -> Content:
        """Without what a recovery stamped on it."""
        own = tuple((name, at) for name, at in headers or () if not name.startswith(_STAMPS))
        return cls(key, value, own)

    @classmethod
    def of_message(cls, message: Any) -> Content:
        """That of a message which was read."""
        return cls.of(message.key(), message.value(), message.headers())

    @property
    def hash(self) -> str:
        """Another one for each other byte."""
        return hashlib.sha256(repr((self.key, self.value, self.headers)).encode()).hexdigest()


KEYS = 12
_SECONDS = 60
_HANGING_MS = 600_000


def make_content(chance: random.Random, number: int) -> Content:
    """One message, with its number in it, so that no two are equal."""
    mark = f"n{number}".encode()
    key: bytes | None = f"k{number % KEYS}".encode()
    if not number % 11:
        key = chance.choice((None, b""))
    headers: list[tuple[str, bytes | None]] = []
    if not number % 3:
        headers = [("mark", mark), ("trace", b"\x00\xff"), ("trace", b""), ("nothing", None)]
    value: bytes | None = b'{"order": "%s", "text": "caf\xc3\xa9"}' % mark
    if headers and not number % 2:
        value = chance.choice((None, b"", b"\x00\x01\xfe"))
    return Content(key, value, tuple(headers))


@dataclass
class Traffic:
    """The producers of one topic."""

    bootstrap: str
    topic: str
    partitions: int
    seed: int
    committed: dict[Place, Content] = field(default_factory=dict)
    aborted: set[str] = field(default_factory=set)  # hashes
    _number: int = 0
    _transactions: int = 0
    _lock: threading.RLock = field(default_factory=threading.RLock)
    _open: list[tuple[Producer, dict[Place, Content]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._chance = random.Random(self.seed)
        self._plain = self._make()

    def publish(self, count: int) -> None:
        """Without a transaction."""
        with self._lock:
            self._produce(self._plain, count, self.committed)

    def begin(self, count: int) -> None:
        """A transaction that stays open: the last stable offsets stand still before it."""
        with self._lock:
            self._transactions += 1
            name = f"{self.topic}-traffic-{self._transactions}"
            settings = {"transactional.id": name, "transaction.timeout.ms": _HANGING_MS}
            producer = self._make(**settings)
            pending: dict[Place, Content] = {}
            producer.init_transactions(_SECONDS)
            producer.begin_transaction()
            self._open.append((producer, pending))
            self._produce(producer, count, pending)

    def end_open(self, *, commit: bool, left: int = 0) -> None:
        """Ends the open transactions but the oldest `left` ones."""
        with self._lock:
            while len(self._open) > left:
                producer, pending = self._open.pop()
                if commit:
                    producer.commit_transaction(_SECONDS)
                    self.committed.update(pending)
                else:
                    producer.abort_transaction(_SECONDS)
                    self.aborted.update(content.hash for content in pending.values())

    def going_on(self) -> AbstractContextManager[None]:
        """Producers that do not stop for a recovery."""
        return repeating(lambda: self.mix(10), 0.5)

    def mix(self, count: int) -> None:
        """Some in transactions, most of which end well; open ones stay."""
        with self._lock:
            here = len(self._open)
            self.publish(count // 2)
            self.begin(count - count // 2)
            self.end_open(commit=self._chance.random() < 0.7, left=here)

    def _make(self, **settings: Any) -> Producer:
        own = {"bootstrap.servers": self.bootstrap, "enable.idempotence": True, "linger.ms": 5}
        return Producer({**own, "log_level": 3, **settings})

    def _produce(self, producer: Producer, count: int, into: dict[Place, Content]) -> None:
        def note(content: Content) -> Any:
            def delivered(error: Any, message: Any) -> None:
                assert error is None, error
                into[Place(message.partition(), message.offset())] = content

            return delivered

        for _ in range(count):
            self._number += 1
            content = make_content(self._chance, self._number)
            number = content.key[1:] if content.key else b"%d" % self._number
            producer.produce(
                self.topic,
                content.value,
                content.key,
                int(number) % self.partitions,
                headers=list(content.headers),
                on_delivery=note(content),
            )
            producer.poll(0)
        assert producer.flush(_SECONDS) == 0
