"""Batches of producers: of a log in memory, and on a real broker."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping

from confluent_kafka import Producer

from backlogctl.kafka.batches import BatchHeader, add_sequence
from backlogctl.kafka.clients import make_producer
from backlogctl.kafka.raw_fetch import FetchedBatches
from backlogctl.monitoring.producers.profile import Folding, LogProfile
from backlogctl.values import OffsetRange

START_MS = 1_800_000_000_000


class Log:
    """One partition, to which producers append."""

    def __init__(self, partition: int = 0) -> None:
        self.partition = partition
        self.end = 0
        self.headers: list[BatchHeader] = []
        self._next: dict[tuple[int, int], int] = {}

    def append(
        self,
        producer: int = 1,
        epoch: int = 0,
        count: int = 10,
        *,
        sequence: int | None = None,
        size: int = 5_000,
        codec: str = "lz4",
        at: int | None = None,
        transactional: bool = False,
        control: bool = False,
        commit: bool | None = None,
    ) -> None:
        """A batch; its sequence is the next one of this producer and epoch unless it is given."""
        known = self._next.get((producer, epoch), 0) if sequence is None else sequence
        base = -1 if producer < 0 or control else known
        moment = START_MS + 10 * self.end if at is None else at
        self.headers.append(
            BatchHeader(
                self.end,
                self.end + count - 1,
                size,
                codec,
                transactional or control,
                control,
                0,
                producer,
                epoch if producer >= 0 else -1,
                base,
                moment,
                moment,
                False,
                count,
                commit,
            )
        )
        self.end += count
        if base >= 0:
            self._next[producer, epoch] = add_sequence(base, count)

    def skip(self, count: int) -> None:
        """Offsets that are gone."""
        self.end += count


def fold(logs: Iterable[Log], *, is_compacted: bool = False) -> LogProfile:
    found = list(logs)
    ranges = tuple(OffsetRange(one.partition, 0, one.end) for one in found)
    folding = Folding("orders", ranges, is_compacted=is_compacted)
    for one in found:
        folding.add(FetchedBatches(one.partition, tuple(one.headers), 0, None, one.end))
    return folding.freeze()


class Busy:
    """Two idempotent producers, and transactional ones that commit and abort; all stay open."""

    def __init__(
        self, properties: Mapping[str, str], topic: str, partitions: int, name: str
    ) -> None:
        self._topic, self._partitions = topic, partitions
        self._plain = [make_producer(properties, {"linger.ms": 2}) for _ in range(2)]
        self._transactional = [
            make_producer(properties, {"transactional.id": f"{name}-{number}", "linger.ms": 2})
            for number in range(2)
        ]
        for producer in self._transactional:
            producer.init_transactions(30)
        self._properties, self._name = properties, name
        self._dice = random.Random(7)
        self.sent = self.aborted = 0

    def work(self, rounds: int) -> None:
        """Some rounds of everything; the first transactional producer starts again in between."""
        for number in range(rounds):
            for producer in self._plain:
                self._send(producer, 60)
            for producer in self._transactional:
                producer.begin_transaction()
                self._send(producer, 30)
                producer.flush(30)
                if self._dice.random() < 0.4:
                    producer.abort_transaction(30)
                    self.aborted += 30
                else:
                    producer.commit_transaction(30)
            if number % 5 == 4:
                settings = {"transactional.id": f"{self._name}-0", "linger.ms": 2}
                self._transactional[0] = make_producer(self._properties, settings)
                self._transactional[0].init_transactions(30)
        self.flush()

    def flush(self) -> None:
        assert not any(producer.flush(60) for producer in self._plain)

    def _send(self, producer: Producer, count: int) -> None:
        for _ in range(count):
            place = self._dice.randrange(self._partitions)
            producer.produce(self._topic, b"value" * self._dice.randrange(1, 50), partition=place)
            producer.poll(0)
        self.sent += count
        producer.flush(30)


def send(
    producer: Producer, topic: str, places: Iterable[int], failed: list[int] | None = None
) -> None:
    """One message to each place, numbered; those that fail are noted."""
    for number, place in enumerate(places):
        producer.produce(
            topic,
            str(number).encode(),
            partition=place,
            on_delivery=lambda error, message: (
                failed.append(message.partition() or 0) if error and failed is not None else None
            ),
        )
        producer.poll(0)
