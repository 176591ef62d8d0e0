"""The record engine: confluent-kafka reads each message and writes it again (protocol P4.6)."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any, cast

import numpy as np
import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from backlogctl.clock import Deadline
from backlogctl.errors import KafkaFailure
from backlogctl.fanout.relay.interface import (
    Notify,
    Order,
    Position,
    PositionExpired,
    RelayTask,
    ShouldStop,
    SourceRange,
)
from backlogctl.fanout.relay.partition import (
    CALL_SECONDS,
    Copied,
    PartitionRelay,
    SourceBatch,
)
from backlogctl.kafka.clients import (
    Admin,
    assign_partitions,
    make_consumer,
    make_producer,
)
from backlogctl.kafka.errors import translate
from backlogctl.kafka.markers import require_ended
from backlogctl.kafka.throttling import RECORD_BYTES
from backlogctl.partitioners import PARTITIONERS
from backlogctl_delivery.crashpoints import reach
from backlogctl_delivery.kafka import Silence, close_consumer, unwrap

# Settings of a relay's reader and writer; a process's partitions share its memory.

# Of one process.
READ_KBYTES, WRITE_KBYTES = 65_536, 262_144
_LEAST_KBYTES = 2_048

_CONSUMER: Mapping[str, Any] = {
    "enable.partition.eof": True,
    "fetch.wait.max.ms": 50,
    "max.partition.fetch.bytes": 8 * 1024 * 1024,
}
_PRODUCER: Mapping[str, Any] = {
    # A transaction's end sends what waits, and fuller batches cost everybody less.
    "linger.ms": 100,
    "queue.buffering.max.messages": 200_000,
    # The broker's limit on the temporary topic decides, not the client's.
    "message.max.bytes": 100_000_000,
}


def make_reader_settings(side_by_side: int) -> dict[str, Any]:
    """For one of `side_by_side` partitions of a process."""
    share = max(_LEAST_KBYTES, READ_KBYTES // side_by_side)
    return {**_CONSUMER, "queued.max.messages.kbytes": share}


def make_writer_settings(side_by_side: int) -> dict[str, Any]:
    share = max(_LEAST_KBYTES, WRITE_KBYTES // side_by_side)
    return {**_PRODUCER, "queue.buffering.max.kbytes": share}


# Which temporary partition a message goes to.


class Router:
    """Places the messages of one source partition.

    `key`: the hash of the source's producers modulo the temporary partitions; messages without a
    key go round robin. `round_robin`: one after another over all partitions. The turn starts at
    `turn`, which is how many messages went before, so a restart keeps it even.
    """

    def __init__(self, order: Order, partitioner: str, partitions: int, turn: int) -> None:
        self._place = PARTITIONERS[partitioner] if order == "key" else None
        self._partitions = partitions
        self._turn = turn

    def place(self, keys: Sequence[bytes | None]) -> list[int]:
        """The temporary partitions of messages with these keys, in order."""
        count = len(keys)
        turns = (np.arange(self._turn, self._turn + count) % self._partitions).astype(np.int32)
        self._turn += count
        if self._place is None:
            found: list[int] = turns.tolist()
            return found
        placed = self._place(_make_array(keys), self._partitions)
        if None in keys:
            without = np.fromiter((key is None for key in keys), np.bool_, count)
            placed = np.where(without, turns, placed)
        mixed: list[int] = placed.tolist()
        return mixed


def _make_array(keys: Sequence[bytes | None]) -> pa.Array:
    """The keys as a column, an empty one for none.

    `pa.array(keys)` would load pandas to see whether they are its own: half a second of a relay's
    start.
    """
    filled = [key or b"" for key in keys]
    offsets = np.zeros(len(filled) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, filled), np.int64, len(filled)), out=offsets[1:])
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(b"".join(filled))]
    return pa.Array.from_buffers(pa.large_binary(), len(filled), buffers)


# Reads of one source partition (protocol P4.6, step 4).

READ_AT_ONCE = 5_000
# A coordinator looks for transactions to time out every 10 s; 5 s are slack.
_COORDINATOR_SECONDS = 15.0


@dataclass
class RecordBatch(SourceBatch):
    """Messages in order."""

    messages: list[Message] = field(default_factory=list)

    def cut(self, size: int) -> tuple[RecordBatch, RecordBatch | None]:
        """Its first messages of so many bytes together, but one at least, and the rest."""
        sizes = list(accumulate(map(_measure, self.messages)))
        if not sizes:
            return self, None
        first = max(1, bisect_right(sizes, size))
        some, others = self.messages[:first], self.messages[first:]
        if not others:
            return replace(self, size=sizes[-1]), None
        rest = replace(self, count=len(others), messages=others)
        reached = others[0].offset() or 0
        return RecordBatch(
            reached, at_end=False, count=first, size=sizes[first - 1], messages=some
        ), rest


def _measure(message: Message) -> int:
    """Bytes that it takes of a request, at most."""
    headers = cast("list[tuple[str, bytes | None]]", message.headers() or [])
    size = len(message.key() or b"") + len(message.value() or b"") + RECORD_BYTES
    return size + sum(len(name) + len(data or b"") for name, data in headers)


def read_batch(consumer: Consumer, position: int, end: int | None, subject: str) -> RecordBatch:
    """The next messages from `position` on, before `end`.
    Raises PositionExpired: retention was faster.
    """
    found = RecordBatch(position, at_end=False)
    for message in consumer.consume(READ_AT_ONCE, 0.1):
        error = message.error()
        if error is None:
            offset = message.offset()
            if offset is None or (end is not None and offset >= end):
                found.reached, found.at_end = max(found.reached, end or 0), True
                break
            found.messages.append(message)
            found.reached = offset + 1
            found.at_end = False
        elif error.code() == KafkaError._PARTITION_EOF:
            # What lies before it and was not delivered are control and aborted records.
            at = message.offset() or 0
            found.reached = max(found.reached, at if end is None else min(at, end))
            found.at_end = True
        elif error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
            raise PositionExpired(
                f"the messages at offset {position} are gone before they were relayed",
                subject=subject,
                hint="`backlogctl gaps` shows what is lost; the relay goes on behind it",
            )
        elif error.code() not in (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN):
            raise translate(error, subject, "read the source")
    found.count = len(found.messages)
    return found


class RecordEngine:
    name = "record"

    def relay(
        self, task: RelayTask, part: SourceRange, notify: Notify, should_stop: ShouldStop
    ) -> Position:
        return _RecordRelay(task, part, notify, should_stop).run()

    def take_over(self, task: RelayTask, partition: int, limit: Deadline, *, ends: bool) -> None:
        part = SourceRange(partition, 0)
        _RecordRelay(task, part, lambda _: None, lambda: True).take_over(limit, ends=ends)


# Messages behind a failed one fail with these, which do not show the cause.
_CONSEQUENCES = (
    KafkaError._PURGE_QUEUE,
    KafkaError._PURGE_INFLIGHT,
    KafkaError._MSG_TIMED_OUT,  # in the queue, which a failed transaction does not send
)


class _RecordRelay(PartitionRelay):
    """confluent-kafka's producer and consumer."""

    _producer: Producer | None = None
    _reader: Consumer | None = None
    _rest: RecordBatch | None = None  # of what was read, what is for another `_read`

    def _open_producer(self) -> Producer:
        task = self._task
        producer = self._producer = make_producer(
            task.properties,
            {
                **make_writer_settings(task.side_by_side),
                "batch.size": self._read_limit(),
                "throttle_cb": lambda event: self._throttle.note(event.throttle_time),
            },
            **{
                "transactional.id": task.transactional_id(self._part.partition),
                "transaction.timeout.ms": task.transaction_timeout_ms,
                "compression.type": task.compression,
            },
        )
        return producer

    def _open_reader(self) -> None:
        task = self._task
        self._router = Router(
            task.order, task.partitioner, task.target_partitions, self._counters.relayed
        )
        self._silence = Silence(task.source, seconds=30.0)
        self._reader = self._make_reader()
        assign_partitions(self._reader, self._place)

    @property
    def _place(self) -> list[TopicPartition]:
        return [TopicPartition(self._task.source, self._part.partition, self._next)]

    def _make_reader(self) -> Consumer:
        settings = make_reader_settings(self._task.side_by_side)
        return make_consumer(self._task.properties, settings)

    def _read(self) -> SourceBatch:
        assert self._reader is not None
        batch, self._rest = self._rest, None
        if batch is None:
            batch = read_batch(self._reader, self._next, self._part.end, self._subject)
        if batch.messages or batch.at_end:
            self._silence.end()
            if self._pace:
                batch, self._rest = batch.cut(self._most_bytes)
            return batch
        try:
            self._silence.check(self._reader)
        except KafkaException:
            close_consumer(self._reader)
            self._reader = self._make_reader()
            self._reader.assign(self._place)
            self._silence.end()
        return batch

    def _write(self, batch: SourceBatch, opened: Copied) -> None:
        assert isinstance(batch, RecordBatch)
        assert self._producer is not None
        producer, messages, target = self._producer, batch.messages, self._task.target
        self._epoch = messages[-1].leader_epoch()
        opened.sent += batch.size
        keys = [message.key() for message in messages]
        places = self._router.place(keys)
        last = {place: at for at, place in enumerate(places)}
        # Only each partition's last message reports back: a call for every one would cost too much.
        report = dict.fromkeys(last.values(), self._note_offset).get
        produce, size, largest = producer.produce, 0, opened.largest[0]
        for at, (message, key, place) in enumerate(zip(messages, keys, places, strict=True)):
            value = message.value()
            length = len(key or b"") + len(value or b"")
            size += length
            if headers := message.headers():
                pairs = cast("list[tuple[str, bytes | None]]", headers)
                length += sum(len(name) + len(data or b"") for name, data in pairs)
            if length > largest:
                largest, opened.largest = length, (length, message.offset() or 0)
            while True:
                try:
                    # By position, which is faster: the fifth hides the sixth, its other name.
                    sent_at = message.timestamp()[1]
                    produce(target, value, key, place, report(at), None, sent_at, headers or None)
                    break
                except BufferError:
                    self._call(lambda: producer.poll(0.05), "write")
                except KafkaException as error:
                    self._raise_write(error)
            if at == len(messages) // 2:
                reach("p4.6.produce.middle")
        self._call(lambda: producer.poll(0), "write")
        opened.count += len(messages)
        opened.bytes += size
        for place, count in Counter(places).items():
            opened.counts[place] = opened.counts.get(place, 0) + count

    def _raise_write(self, error: KafkaException) -> None:
        inner = unwrap(error)
        if inner is not None and inner.code() in (KafkaError._STATE, KafkaError._FATAL):
            # The transaction has failed before; only a transactional call returns the reason. This
            # one changes nothing: either it fails, or what it sends is aborted.
            self._send_offsets(self._counters)
        raise self._explain(error, "write") from error

    def _flush(self) -> None:
        producer = self._producer
        assert producer is not None
        if self._call(lambda: producer.flush(CALL_SECONDS), "write"):
            late = KafkaFailure(
                f"the messages were not written within {CALL_SECONDS:g} s",
                subject=self._subject,
                hint="are the brokers there?",
                retryable=True,
            )
            raise self._mention_quota(late)

    def _send_position(self, counters: str, membership: bytes) -> None:
        position = TopicPartition(
            self._task.source,
            self._part.partition,
            self._next,
            counters,
            # A reader's commit carries it; one without looks like an operator's reset.
            **({} if self._epoch is None else {"leader_epoch": self._epoch}),
        )
        assert self._producer is not None
        self._producer.send_offsets_to_transaction([position], membership, CALL_SECONDS)

    def _end_unmarked(self, admin: Admin) -> None:
        # Only found: of librdkafka's transactions nobody knows which one it is.
        task = self._task
        places = [(task.target, number) for number in range(task.target_partitions)]
        limit = Deadline(task.transaction_timeout_ms / 1000.0 + _COORDINATOR_SECONDS)
        name = task.transactional_id(self._part.partition)
        require_ended(task.properties, name, places, limit)

    def _close(self) -> None:
        if self._reader is not None:
            close_consumer(self._reader)

    def _note_offset(self, error: KafkaError | None, message: Message) -> None:
        # Nothing may be raised in a callback; a failed delivery fails the commit.
        if error is not None:
            if error.code() not in _CONSEQUENCES:
                self._failed = self._failed or error
            return
        place, offset = message.partition(), message.offset()
        if place is not None and offset is not None:
            self._last_offsets[place] = max(offset, self._last_offsets.get(place, -1))

    def _ask_reason(self) -> KafkaException | None:
        """The fatal error that the client has lost; an abort answers with it."""
        try:
            if self._producer is not None:
                self._producer.abort_transaction(5.0)
        except KafkaException as error:
            return error
        except SystemError as error:
            cause = error.__cause__
            return cause if isinstance(cause, KafkaException) else None
        return None
