"""A producer whose messages are numbered, so that a consumer can tell when one is missing.

    producer = SequencedProducer(Producer({...}), "shop-7")
    producer.produce("orders", value, key, on_delivery=report)

The wrapped producer stays the application's, with all its settings. What it delivers carries the
headers of `sequence.py`; what failed, and was reported to the application, is named by the
next message of the same partition. So a hole that nobody names is a loss.

What this cannot tell: what failed after the last message of a partition, and, without `mark_end`,
the tail of an epoch.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Self

from backlogctl_delivery.errors import UsageError
from backlogctl_delivery.sequenced.clients import (
    Client,
    Headers,
    Partitioner,
    Placement,
    Report,
    adapt,
    find_partitioner,
)
from backlogctl_delivery.sequenced.sequence import (
    MAX_SKIPPED_BYTES,
    MAX_SKIPPED_RANGES,
    SEQUENCE,
    SEQUENCE_END,
    SKIPPED,
    Range,
    RangeSet,
    check_producer,
    hash_topic,
    write_prefix,
    write_skipped,
)
from backlogctl_delivery.stamps import SEQUENCE_HEADERS

# Of a client that never reports what it delivered (`delivery.report.only.error`).
_MOST_CARRIERS = 1_000


class ProducerEpoch:
    """What one epoch of a producer sends to one partition.

    `order` is held while a message is handed to the client, which may wait for its own thread. That
    thread reports failures, so these have a lock of their own.
    """

    __slots__ = (
        "_notes",
        "_start",
        "carriers",
        "has_skipped",
        "next",
        "order",
        "prefix",
        "report",
        "skipped",
        "stays",
    )

    def __init__(self, prefix: str, on_delivery: Report | None) -> None:
        self.order = threading.Lock()
        self.next = 0
        # What a stamp has before the number.
        self.prefix = prefix
        # For messages without a callback of their own.
        self.report = make_delivery_report(self, on_delivery)
        self._notes = threading.Lock()
        # Not delivered, and not yet told to consumers. Asked for each message, whether there are.
        self.skipped = RangeSet()
        self.has_skipped = False
        # Number of the message that tells -> what it tells, until that message is safe.
        self.carriers: dict[int, tuple[Range, ...]] = {}
        # Where the open transaction began.
        self._start = 0
        # Within a transaction a delivered message is not safe yet.
        self.stays = False

    def take_skipped(self, carrier: int) -> bytes:
        """What that message is to tell, as much as fits into its header."""
        with self._notes:
            taken: list[Range] = []
            size = 0
            while len(self.skipped) and len(taken) < MAX_SKIPPED_RANGES:
                size += len(write_skipped([next(iter(self.skipped))])) + 1
                if size > MAX_SKIPPED_BYTES:
                    break
                taken.append(self.skipped.pop_first())
            if len(self.carriers) >= _MOST_CARRIERS:
                del self.carriers[next(iter(self.carriers))]
            self.carriers[carrier] = tuple(taken)
            self.has_skipped = len(self.skipped) > 0
            return write_skipped(taken)

    def give_back(self, carrier: int) -> None:
        """That message was not sent, and its number will be taken again."""
        with self._notes:
            self._add(self.carriers.pop(carrier, ()))

    def note_failure(self, sequence: int) -> None:
        """That message was not delivered, nor was what it told."""
        with self._notes:
            self._add(((sequence, sequence), *self.carriers.pop(sequence, ())))

    def note_delivery(self, sequence: int) -> None:
        """That message was delivered, and consumers will see what it told."""
        with self._notes:
            if not self.stays:
                self.carriers.pop(sequence, None)

    def begin(self) -> None:
        """A transaction begins."""
        with self._notes:
            self._start, self.stays = self.next, True

    def commit(self) -> None:
        """It was committed: all of its messages are safe."""
        with self._notes:
            self._start, self.stays = self.next, False
            self.carriers.clear()

    def abort(self) -> None:
        """It was aborted: consumers see none of its messages."""
        with self._notes:
            if self._start < self.next:
                self._add([(self._start, self.next - 1)])
            for ranges in self.carriers.values():
                self._add(ranges)
            self.carriers.clear()
            self._start, self.stays = self.next, False

    def _add(self, ranges: Iterable[Range]) -> None:
        for first, last in ranges:
            self.skipped.add(first, last)
            self.has_skipped = True


class NumberReport(int):
    """What the client calls when it knows how the message of that number went.

    A number with nothing else in it, since Python's garbage collector would walk over whatever
    refers to something, for each message that waits: that takes longer than all else here.
    """

    __slots__ = ()

    def __bool__(self) -> bool:
        """Also of number 0: a client may ask whether there is a callback."""
        return True

    def __call__(self, error: Any, message: Any) -> None:
        """Each chain has a class of its own, which knows the chain."""
        raise NotImplementedError


def make_delivery_report(chain: ProducerEpoch, on_delivery: Report | None) -> type[NumberReport]:
    """The reports of a chain, that call the application's `on_delivery`."""

    def report(number: NumberReport, error: Any, message: Any) -> None:
        if error is not None:
            chain.note_failure(int(number))
        elif chain.carriers:
            chain.note_delivery(int(number))
        if on_delivery is not None:
            on_delivery(error, message)

    return type("ChainReport", (NumberReport,), {"__slots__": (), "__call__": report})


class DeliveryReport:
    """The same for a message with an `on_delivery` of its own."""

    __slots__ = ("chain", "on_delivery", "sequence")

    def __init__(self, chain: ProducerEpoch, sequence: int, on_delivery: Report) -> None:
        self.chain = chain
        self.sequence = sequence
        self.on_delivery = on_delivery

    def __call__(self, error: Any, message: Any) -> None:
        if error is not None:
            self.chain.note_failure(self.sequence)
        elif self.chain.carriers:
            self.chain.note_delivery(self.sequence)
        self.on_delivery(error, message)


_MARK: Headers = [(SEQUENCE_END, b"1")]

_epoch_lock = threading.Lock()
_last_epoch = 0


def make_epoch() -> int:
    """Microseconds since 1970, later than every epoch this process made before."""
    global _last_epoch  # noqa: PLW0603 - the process has one clock
    with _epoch_lock:
        _last_epoch = max(_last_epoch + 1, time.time_ns() // 1_000)
        return _last_epoch


def _ignore(*_: Any) -> None:
    """For the marks, of which the application knows nothing."""


class _Topic:
    """What is known of one: its chains by partition, and where keys go, once a key has to go."""

    __slots__ = ("chains", "hash", "place")

    def __init__(self, name: str) -> None:
        self.hash = hash_topic(name)
        self.place: Placement | None = None
        self.chains: dict[int, ProducerEpoch] = {}


class SequencedProducer:
    """Numbers what a producer sends. Of any number of threads.

    All that is not here (`init_transactions`, `list_topics`, `metrics`, ...) is the wrapped
    producer's own. Never call `produce`, `send` or `abort_transaction` on that one beside: what is
    sent there has no number, and what is aborted there looks lost.

    One `producer_id` may have many instances, and a restart makes a new one: each has an epoch of
    its own, the microsecond it was made. Two processes that start in the same microsecond would
    share it: let the id hold what differs, such as the pod's name. Do not fork with one open.

    Args:
        producer: a `confluent_kafka.Producer` or a kafka-python `KafkaProducer`.
        producer_id: 1 to 64 letters, digits, dots, underscores and dashes.
        partitioner: `murmur2`, `crc32`, or a function (key's bytes, number of partitions) that
            gives a partition, or None for "any". Without it that of the client's default: crc32 for
            confluent_kafka, murmur2 for kafka-python. A confluent_kafka.Producer with `partitioner`
            `murmur2` or `murmur2_random` needs `murmur2` here: it cannot be asked.
        on_delivery: for each message without its own. An `on_delivery` in the configuration of the
            confluent_kafka.Producer is not called any more: give it here.
        mark_end: `close()` sends to each partition used a message without key and with an empty
            value, which says that the epoch ends there. All consumers must know that and skip it
            (`SequenceChecker` tells it); a compacted topic refuses it.
        refresh_seconds: so often the number of partitions is looked up again, as librdkafka does;
            until then a topic that has grown gets its keys where they were.
        metadata_seconds: the first message to a topic waits so long for that number.

    Raises:
        ValueError: the id cannot be written into a stamp.
        UsageError: the producer is of neither client, or needs a partitioner named.
    """

    def __init__(
        self,
        producer: Any,
        producer_id: str,
        *,
        partitioner: str | Partitioner | None = None,
        on_delivery: Report | None = None,
        mark_end: bool = False,
        refresh_seconds: float = 300.0,
        metadata_seconds: float = 30.0,
    ) -> None:
        self._client: Client = adapt(producer)
        self._producer = producer
        self._produce, self._encode_key = self._client.produce, self._client.encode_key
        self.producer_id = check_producer(producer_id)
        self.epoch = make_epoch()
        self._plain_key = self._client.plain_key
        wanted = partitioner or self._client.partitioner
        if wanted is None:
            raise UsageError(
                "it has a partitioner of its own",
                subject="kafka-python's KafkaProducer",
                hint="give SequencedProducer the same: partitioner=lambda key, partitions: ...",
            )
        self._partitioner = find_partitioner(wanted)
        self._on_delivery = on_delivery
        self._mark_end = mark_end
        self._refresh_seconds, self._metadata_seconds = refresh_seconds, metadata_seconds
        self._topics: dict[str, _Topic] = {}
        self._making = threading.Lock()
        self._has_transactions = self._is_in_transaction = self._is_closed = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._producer, name)

    def __len__(self) -> int:
        """As the wrapped producer's."""
        return len(self._producer)

    def __bool__(self) -> bool:
        """True, also where nothing is waiting."""
        return True

    def produce(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        partition: int | None = None,
        *,
        headers: Mapping[str, Any] | Iterable[tuple[str, Any]] | None = None,
        on_delivery: Report | None = None,
        timestamp: int = 0,
    ) -> Any:
        """Sends a message, as confluent_kafka does.

        Args:
            topic: where to.
            value: bytes; text too with confluent_kafka.
            key: bytes; text too with confluent_kafka.
            partition: None, or -1, where the key chooses it.
            headers: the application's. Stamps among them, of a message that is passed on, are left
                out.
            on_delivery: called with (error, message) as the client does. With kafka-python the
                second is its RecordMetadata.
            timestamp: milliseconds since 1970; 0 is now.

        Returns:
            None with confluent_kafka, the future with kafka-python.

        Raises:
            BacklogError: the topic's number of partitions could not be read, or this is closed.
            BufferError, KafkaException and whatever the client raises; the number is not used up.
        """
        # All in one: each call costs as much as the lock.
        if self._is_closed:
            raise UsageError("it is closed", subject="SequencedProducer", hint="make a new one")
        known = self._topics.get(topic) or self._topics.setdefault(topic, _Topic(topic))
        if partition is None or partition < 0:
            place = known.place or self._open_place(topic, known)
            is_plain = type(key) is self._plain_key
            partition = place.choose(key if is_plain else self._encode_key(topic, key))
        chain = known.chains.get(partition) or self._open_chain(known, partition)
        own = _copy_headers(headers) if headers else []
        # Numbered and given to the client, both before another one has its attempt.
        with chain.order:
            sequence = chain.next
            own.append((SEQUENCE, f"{chain.prefix}{sequence}".encode()))
            if chain.has_skipped:
                own.append((SKIPPED, chain.take_skipped(sequence)))
            report = (
                DeliveryReport(chain, sequence, on_delivery)
                if on_delivery is not None
                else chain.report(sequence)
            )
            try:
                sent = self._produce(topic, value, key, partition, report, None, timestamp, own)
            except Exception as error:
                chain.give_back(sequence)
                self._look_again(known, error)
                raise
            except BaseException:
                # Interrupted: it may be on its way. One that comes all the same does no harm.
                chain.next = sequence + 1
                chain.note_failure(sequence)
                raise
            chain.next = sequence + 1
        if sent is not None:
            self._client.attach(sent, report)
        return sent

    def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        headers: list[tuple[str, bytes]] | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> Any:
        """Sends a message, as kafka-python does; returns its future.

        Raises:
            UsageError: the wrapped producer is confluent_kafka's.
        """
        if not hasattr(self._producer, "send"):
            raise UsageError(
                "confluent_kafka.Producer has no send()",
                subject="SequencedProducer",
                hint="call produce()",
            )
        return self.produce(
            topic, value, key, partition, headers=headers, timestamp=timestamp_ms or 0
        )

    def produce_batch(self, *_: Any, **__: Any) -> int:
        """Refused.

        Raises:
            UsageError: always.
        """
        raise UsageError(
            "produce_batch() takes no headers, so that its messages could not be numbered",
            subject="SequencedProducer",
            hint="call produce() for each message",
        )

    def poll(self, timeout: float | None = None) -> int:
        """As confluent_kafka's; of no effect with kafka-python."""
        return self._client.poll(timeout)

    def flush(self, timeout: float | None = None) -> int:
        """Waits for all reports; returns how many messages have none yet."""
        return self._client.flush(timeout)

    def begin_transaction(self) -> None:
        """As the wrapped producer's."""
        self._producer.begin_transaction()
        self._has_transactions = self._is_in_transaction = True
        self._tell_chains(ProducerEpoch.begin)

    def commit_transaction(self, *arguments: Any) -> None:
        """As the wrapped producer's."""
        self._producer.commit_transaction(*arguments)
        self._is_in_transaction = False
        self._tell_chains(ProducerEpoch.commit)

    def abort_transaction(self, *arguments: Any) -> None:
        """As the wrapped producer's. The next messages tell that these never come."""
        self._producer.abort_transaction(*arguments)
        self._is_in_transaction = False
        self._tell_chains(ProducerEpoch.abort)

    def close(self, timeout: float | None = None) -> int:
        """Flushes, and marks the end where that was asked for. The wrapped producer stays open.

        An open transaction gets no marks.

        Returns:
            how many messages have no report yet.
        """
        left = self.flush(timeout)
        if self._mark_end and not self._is_closed and not self._is_in_transaction:
            if self._has_transactions:
                self.begin_transaction()
            for topic, known in list(self._topics.items()):
                for partition in list(known.chains):
                    self.produce(topic, b"", None, partition, headers=_MARK, on_delivery=_ignore)
            if self._has_transactions:
                self.commit_transaction()
            left = self.flush(timeout)
        self._is_closed = True
        return left

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _look_again(self, known: _Topic, error: Exception) -> None:
        """A refused partition may be of a topic that was made anew, with fewer."""
        if not isinstance(error, BufferError) and known.place is not None:
            known.place.refresh()

    def _open_place(self, topic: str, known: _Topic) -> Placement:
        def count_partitions() -> int:
            return self._client.count_partitions(topic, self._metadata_seconds)

        # Not under the lock: it waits for the cluster.
        place = Placement(count_partitions, self._partitioner, self._refresh_seconds)
        with self._making:
            known.place = known.place or place
            return known.place

    def _open_chain(self, known: _Topic, partition: int) -> ProducerEpoch:
        with self._making:
            chain = known.chains.get(partition)
            if chain is None:
                prefix = write_prefix(self.producer_id, self.epoch, known.hash, partition)
                chain = ProducerEpoch(prefix, self._on_delivery)
                if self._is_in_transaction:
                    chain.begin()
                known.chains[partition] = chain
            return chain

    def _tell_chains(self, event: Callable[[ProducerEpoch], None]) -> None:
        for known in list(self._topics.values()):
            for chain in list(known.chains.values()):
                event(chain)


def _copy_headers(headers: Mapping[str, Any] | Iterable[tuple[str, Any]]) -> Headers:
    """The application's, or the mark of the end."""
    if headers is _MARK:
        return [*_MARK]
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    return [pair for pair in pairs if pair[0] not in SEQUENCE_HEADERS]
