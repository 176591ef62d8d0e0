"""The record engine: confluent-kafka reads each message and writes it again (protocol P4.6)."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import numpy as np
import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from backlogctl.clock import Deadline
from backlogctl.errors import BacklogError, KafkaFailure
from backlogctl.fanout.relay.commits import Counters, read_positions, read_start, write_counters
from backlogctl.fanout.relay.interface import (
    LASTING,
    PASSING,
    GuardLost,
    Notify,
    Order,
    Position,
    PositionExpired,
    RelayTask,
    ShouldStop,
    SourceRange,
    UnexplainedRefusal,
)
from backlogctl.formats import format_bytes, format_plural
from backlogctl.kafka.clients import (
    Admin,
    assign_partitions,
    make_admin,
    make_consumer,
    make_producer,
)
from backlogctl.kafka.errors import GROUP_ACTIVE_CODES, is_abortable, is_fenced, translate
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


@dataclass
class RecordBatch:
    """Messages in order, the position after them, and whether nothing more is there now."""

    messages: list[Message]
    reached: int
    at_end: bool


def read_batch(consumer: Consumer, position: int, end: int | None, subject: str) -> RecordBatch:
    """The next messages from `position` on, before `end`.
    Raises PositionExpired: retention was faster.
    """
    found = RecordBatch([], position, at_end=False)
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
    return found


# Ends the relay's process where a call of the client does not come back.
#
# `send_offsets_to_transaction` was seen to hang for minutes, far beyond its own timeout, after the
# group's coordinator had moved to another broker (librdkafka 2.16.0, three brokers, one of them
# killed). A relay may be killed at any moment: the next one aborts what is open, and goes on from
# the last commit.

LATE_SECONDS = 15.0  # beyond a call's own timeout
HUNG = 71  # exit code
_LOOK_SECONDS = 1.0


class Watchdog:
    """Watches calls of any number of threads."""

    def __init__(
        self, late: float = LATE_SECONDS, *, end: Callable[[int], object] = os._exit
    ) -> None:
        self._late = late
        self._end = end
        self._due: dict[int, tuple[float, str]] = {}
        self._started = False
        self._lock = threading.Lock()

    @contextmanager
    def watching(self, doing: str, seconds: float) -> Iterator[None]:
        """A call that has a timeout of so many seconds."""
        self._start()
        thread = threading.get_ident()
        self._due[thread] = (time.monotonic() + seconds + self._late, doing)
        try:
            yield
        finally:
            self._due.pop(thread, None)

    def _start(self) -> None:
        with self._lock:
            if not self._started:
                self._started = True
                threading.Thread(target=self._watch, name="watchdog", daemon=True).start()

    def _watch(self) -> None:
        while True:
            time.sleep(min(_LOOK_SECONDS, self._late))
            now = time.monotonic()
            for due, doing in list(self._due.values()):
                if now > due:
                    sys.stderr.write(f"the client did not come back from: {doing}\n")
                    sys.stderr.flush()
                    self._end(HUNG)


WATCHDOG = Watchdog()

_TOO_LARGE = (KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE)
# Messages behind a failed one fail with these, which do not show the cause.
_CONSEQUENCES = (KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT)
# A transaction holds back every read_committed reader of the temporary topic, so it is short.
TRANSACTION_SECONDS = 0.5
TRANSACTION_MESSAGES = 50_000
_INIT_SECONDS = 60.0
_CALL_SECONDS = 30.0


class RecordEngine:
    name = "records"

    def relay(
        self, task: RelayTask, part: SourceRange, notify: Notify, should_stop: ShouldStop
    ) -> Position:
        return _Relay(task, part, notify, should_stop).run()


@dataclass
class _Transaction:
    """What one open transaction holds."""

    began: float
    count: int = 0
    bytes: int = 0
    counts: dict[int, int] = field(default_factory=dict)
    largest: tuple[int, int] = (0, 0)  # bytes and source offset of a message


class _Relay:
    """One source partition's relay: a producer and a reader of its own."""

    def __init__(
        self, task: RelayTask, part: SourceRange, notify: Notify, should_stop: ShouldStop
    ) -> None:
        self._task = task
        self._part = part
        self._notify = notify
        self._should_stop = should_stop
        self._subject = f"relay of {task.source}[{part.partition}]"
        self._last_offsets: dict[int, int] = {}
        self._failed: KafkaError | None = None
        self._counters = Counters(task.recovery_id)
        self._next = part.start
        self._jumps = False  # retention was faster: it starts behind the group's commit
        self._epoch: int | None = None
        self._router: Router | None = None
        self._opened = _Transaction(0.0)
        self._own_metadata: object | None = None
        self._producer: Producer | None = None
        self._reader: Consumer | None = None
        self._silence = Silence(task.source, seconds=30.0)

    def run(self) -> Position:
        """P4.6. The order of these lines is what copies each message once."""
        admin = make_admin(self._task.properties)
        producer = self._producer = self._make_producer()  # 1. with the partition's static id
        take_over = partial(producer.init_transactions, _INIT_SECONDS)
        self._call(take_over, "take over", _INIT_SECONDS)  # 2. fences
        reach("p4.6.init.after")
        self._read_start(admin)  # 3. the group's stable commit says how far we are
        self._reader = self._make_reader()
        assign_partitions(self._reader, self._place)
        try:
            if self._jumps:  # at once: where nothing is left, no message would ever commit it
                self._copy(producer, RecordBatch([], self._next, at_end=True))
            while not (self._should_stop() or self._is_done()):
                batch = self._read()  # 4. read before a transaction is opened
                if batch.messages or batch.reached > self._next:
                    self._copy(producer, batch)  # 5. to 8.
        except Exception:
            self._abort(producer)
            raise
        finally:
            close_consumer(self._reader)
        return self._position()

    def _copy(self, producer: Producer, batch: RecordBatch) -> None:
        """One transaction: the messages and the source offsets, both or neither."""
        self._call(producer.begin_transaction, "begin")  # 5.
        opened = self._opened = _Transaction(time.monotonic())
        while True:
            self._produce(producer, batch, opened)  # 6. bytes, headers and timestamp untouched
            if self._is_full(opened) or batch.at_end or self._is_done():
                break
            batch = self._read()
        # All written first: while an offset is pending, a reader of uncommitted data that joins the
        # group would begin before it, and handle these messages too.
        self._flush(producer)
        reach("p4.6.produce.after")
        after = self._count(opened)
        self._send_offsets(producer, after)  # 7. into the original group, by the guard's metadata
        reach("p4.6.offsets.after")
        self._call(lambda: producer.commit_transaction(_CALL_SECONDS), "commit")  # 8.
        reach("p4.6.commit.after")
        self._call(lambda: producer.poll(0), "commit")
        self._counters = after
        self._notify(self._position())

    def _make_producer(self) -> Producer:
        task = self._task
        return make_producer(
            task.properties,
            make_writer_settings(task.side_by_side),
            **{
                "transactional.id": task.transactional_id(self._part.partition),
                "transaction.timeout.ms": task.transaction_timeout_ms,
                "compression.type": task.compression,
            },
        )

    def _read_start(self, admin: Admin) -> None:
        task, part = self._task, self._part
        found = read_start(admin, task.group, task.source, part.partition, Deadline(60.0))
        self._next = max(part.start, found.offset)
        self._jumps = self._next > found.offset
        self._epoch = found.epoch
        counted = found
        if task.recovery_group:
            place = (task.recovery_group, task.source, [part.partition], task.recovery_id)
            own = read_positions(admin, *place, Deadline(60.0))
            counted = own.get(part.partition, found)
            reader = admin.open_reader(task.recovery_group, require_stable=True)
            self._own_metadata = reader.consumer_group_metadata()
        self._counters = counted.counters(task.recovery_id)
        self._router = Router(
            task.order, task.partitioner, task.target_partitions, self._counters.relayed
        )

    @property
    def _place(self) -> list[TopicPartition]:
        return [TopicPartition(self._task.source, self._part.partition, self._next)]

    def _make_reader(self) -> Consumer:
        settings = make_reader_settings(self._task.side_by_side)
        return make_consumer(self._task.properties, settings)

    def _read(self) -> RecordBatch:
        assert self._reader is not None
        batch = read_batch(self._reader, self._next, self._part.end, self._subject)
        if batch.messages or batch.at_end:
            self._silence.end()
            return batch
        try:
            self._silence.check(self._reader)
        except KafkaException:
            close_consumer(self._reader)
            self._reader = self._make_reader()
            self._reader.assign(self._place)
            self._silence.end()
        return batch

    def _produce(self, producer: Producer, batch: RecordBatch, opened: _Transaction) -> None:
        assert self._router is not None
        messages, target = batch.messages, self._task.target
        self._next = batch.reached
        if not messages:
            return
        self._epoch = messages[-1].leader_epoch()
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
                    self._raise_write(producer, error)
            if at == len(messages) // 2:
                reach("p4.6.produce.middle")
        self._call(lambda: producer.poll(0), "write")
        opened.count += len(messages)
        opened.bytes += size
        for place, count in Counter(places).items():
            opened.counts[place] = opened.counts.get(place, 0) + count

    def _raise_write(self, producer: Producer, error: KafkaException) -> None:
        inner = unwrap(error)
        if inner is not None and inner.code() in (KafkaError._STATE, KafkaError._FATAL):
            # The transaction has failed before; only a transactional call returns the reason. This
            # one changes nothing: either it fails, or what it sends is aborted.
            self._send_offsets(producer, self._counters)
        raise self._explain(error, "write") from error

    def _flush(self, producer: Producer) -> None:
        if self._call(lambda: producer.flush(_CALL_SECONDS), "write"):
            raise KafkaFailure(
                f"the messages were not written within {_CALL_SECONDS:g} s",
                subject=self._subject,
                hint="are the brokers there?",
                retryable=True,
            )

    def _note_offset(self, error: KafkaError | None, message: Message) -> None:
        # Nothing may be raised in a callback; a failed delivery fails the commit.
        if error is not None:
            if error.code() not in _CONSEQUENCES:
                self._failed = self._failed or error
            return
        place, offset = message.partition(), message.offset()
        if place is not None and offset is not None:
            self._last_offsets[place] = max(offset, self._last_offsets.get(place, -1))

    def _count(self, opened: _Transaction) -> Counters:
        before = self._counters
        counts = None
        if before.counts is not None:
            counts = dict(before.counts)
            for place, count in opened.counts.items():
                counts[place] = counts.get(place, 0) + count
        return Counters(
            before.recovery_id, before.relayed + opened.count, before.bytes + opened.bytes, counts
        )

    def _send_offsets(self, producer: Producer, after: Counters) -> None:
        task = self._task
        counters = write_counters(after, task.target_partitions)
        position = TopicPartition(
            task.source,
            self._part.partition,
            self._next,
            counters,
            # A reader's commit carries it; one without looks like an operator's reset.
            **({} if self._epoch is None else {"leader_epoch": self._epoch}),
        )
        for metadata in (task.group_metadata, self._own_metadata):
            if metadata is not None:
                send = partial(producer.send_offsets_to_transaction, [position], metadata)
                self._call(partial(send, _CALL_SECONDS), "commit the source offsets")

    def _is_full(self, opened: _Transaction) -> bool:
        return (
            opened.count >= TRANSACTION_MESSAGES
            or time.monotonic() - opened.began >= TRANSACTION_SECONDS
        )

    def _is_done(self) -> bool:
        return self._part.end is not None and self._next >= self._part.end

    def _position(self) -> Position:
        counters = self._counters
        return Position(
            self._part.partition,
            self._next,
            counters.relayed,
            counters.bytes,
            dict(counters.counts or {}),
            dict(self._last_offsets),
        )

    def _call(
        self, call: Callable[[], object], doing: str, seconds: float = _CALL_SECONDS
    ) -> object:
        try:
            with WATCHDOG.watching(f"{doing} ({self._subject})", seconds):
                return call()
        except KafkaException as error:
            raise self._explain(error, doing) from error
        except SystemError as error:
            # A fatal error, then a delivery's report, in one call: it may lose the reason (2.16.1).
            cause = error.__cause__
            reason = cause if isinstance(cause, KafkaException) else self._ask_reason()
            if reason is not None:
                raise self._explain(reason, doing) from error
            raise KafkaFailure(
                f"could not {doing}: the client gave no reason",
                subject=self._subject,
                retryable=True,
            ) from error

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

    def _explain(self, error: KafkaException, doing: str) -> BacklogError:
        """The error of a failed call, with whether to try again."""
        inner = unwrap(error)
        if is_fenced(error):
            return translate(error, self._subject, doing)
        if inner is not None and inner.code() in GROUP_ACTIVE_CODES:
            return GuardLost(
                f"could not {doing}: the group has changed ({inner.name()})", subject=self._subject
            )
        if self._failed is not None:
            doing, inner = "write a message", self._failed
        if inner is not None and inner.code() in _TOO_LARGE:
            return self._explain_size(inner)
        failure = translate(inner or error, self._subject, doing)
        code = None if inner is None else inner.code()
        if code == KafkaError.OFFSET_METADATA_TOO_LARGE:
            failure.hint = (
                "the relay's counters go beside its commits: set the brokers' "
                "`offset.metadata.max.bytes` to 4096, Kafka's own default"
            )
        if not is_abortable(error) or not isinstance(failure, KafkaFailure):
            return failure
        # The broker ended this transaction; the messages are sent again in another one.
        failure.retryable = (failure.retryable or code in PASSING) and code not in LASTING
        if failure.retryable or code in LASTING:
            return failure
        opened, target = self._opened, self._task.target
        copied = f"{format_plural(opened.count, 'message')} ({format_bytes(opened.bytes)})"
        return UnexplainedRefusal(
            f"{failure.message}; {copied} were copied in vain: they stay in {target} as aborted "
            "records, until it is deleted",
            subject=self._subject,
            hint="the brokers' logs say why",
        )

    def _explain_size(self, error: KafkaError) -> BacklogError:
        size, offset = self._opened.largest
        return KafkaFailure(
            f"could not write a message ({error.name()}): the largest of the transaction, "
            f"offset {offset} of the source, has {size} bytes with its key and headers",
            subject=self._subject,
            hint=f"raise max.message.bytes of {self._task.target}, then run the recovery again",
        )

    def _abort(self, producer: Producer) -> None:
        """Ends an open transaction at once; where that fails, the next `init` ends it."""
        try:
            # It drops what is queued, and waits for what is on its way: a write that came behind
            # its own abort would hang in the topic for ever.
            producer.abort_transaction(5.0)
        except KafkaException:
            return
