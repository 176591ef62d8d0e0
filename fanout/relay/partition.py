"""One source partition's relay: the order in which it takes over, copies and commits (P4.6).

How messages are read and written is an engine's: see `records` and `wire`.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from confluent_kafka import KafkaError, KafkaException

from backlogctl.clock import Deadline
from backlogctl.errors import BacklogError, KafkaFailure
from backlogctl.fanout.relay.commits import Counters, read_positions, read_start, write_counters
from backlogctl.fanout.relay.interface import (
    LASTING,
    PASSING,
    GuardLost,
    Notify,
    Position,
    RelayTask,
    ShouldStop,
    SourceRange,
    UnexplainedRefusal,
)
from backlogctl.fanout.relay.pace import SharedPace
from backlogctl.formats import format_bytes, format_plural
from backlogctl.kafka.clients import Admin, make_admin, wait_for_broker
from backlogctl.kafka.errors import GROUP_ACTIVE_CODES, is_abortable, is_fenced, translate
from backlogctl.kafka.markers import ProducerIdAndEpoch
from backlogctl.kafka.throttling import ThrottleClock, Throttling, mention_quota
from backlogctl.kafka.topics import read_topic_settings
from backlogctl_delivery.crashpoints import reach
from backlogctl_delivery.kafka import unwrap

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
# A transaction holds back every read_committed reader of the temporary topic, so it is short.
TRANSACTION_SECONDS = 0.5
TRANSACTION_MESSAGES = 50_000
# It grows while brokers take it at once: one larger than a quota lets through would time out, again
# and again. What a quota lets through before it throttles is not yet what it allows.
_FIRST_BYTES, _GROWTH = 1 << 20, 1.5
_QUICK, _SLOW = 2 * TRANSACTION_SECONDS, 0.2  # seconds; a part of the transaction's timeout
INIT_SECONDS = 60.0
CALL_SECONDS = 30.0
_TURN_SECONDS = 0.1


class TransactionalProducer(Protocol):
    """What both clients' producers do; times are seconds."""

    def init_transactions(self, seconds: float, /) -> Any: ...

    def begin_transaction(self) -> Any: ...

    def commit_transaction(self, seconds: float, /) -> Any: ...

    def abort_transaction(self, seconds: float, /) -> Any: ...


@dataclass
class SourceBatch:
    """The position after it, whether nothing more is there now, and how many messages it has; with
    a shared pace, the bytes that are sent of it at once, about."""

    reached: int
    at_end: bool
    count: int = 0
    size: int = 0


@dataclass
class Copied:
    """What one open transaction holds."""

    began: float
    count: int = 0
    bytes: int = 0
    sent: int = 0  # bytes of its requests, at most; where a pace is shared
    counts: dict[int, int] = field(default_factory=dict)
    largest: tuple[int, int] = (0, 0)  # bytes and source offset of a message
    told: float = 0.0  # the throttle clock's, as it began
    passed: float = 0.0


# What a batch may have where the topic allows more: librdkafka's own default.
_LIMIT, _BATCH_BYTES = "max.message.bytes", 1_000_000


class PartitionRelay(ABC):
    """A reader and a producer of its own, for one source partition."""

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
        self._opened = Copied(0.0)
        self._throttle = ThrottleClock()
        self._throttling = Throttling()
        rate = task.bytes_per_second
        self._pace = SharedPace(Path(task.pace_file), rate) if rate else None
        self._taken = 0  # of it, by the transaction
        self._cap = max(1, int(rate * TRANSACTION_SECONDS)) if rate else sys.maxsize
        self._most_bytes = min(_FIRST_BYTES, self._cap)
        self._own_metadata: bytes | None = None
        self._watchdog: Watchdog | None = WATCHDOG

    def _read_limit(self) -> int:
        """Bytes of a batch that the temporary topic takes; Kafka's default where we may not ask."""
        try:
            found = read_topic_settings(self._task.properties, self._task.target, [_LIMIT])
            return min(_BATCH_BYTES, int(found[_LIMIT].value or _BATCH_BYTES))
        except KafkaFailure:
            return _BATCH_BYTES

    @abstractmethod
    def _open_producer(self) -> TransactionalProducer:
        """With the partition's static id; called once."""

    @abstractmethod
    def _open_reader(self) -> None:
        """Of the source, from `_next` on."""

    @abstractmethod
    def _read(self) -> SourceBatch:
        """The next messages, or an empty batch where there are none for a moment.
        Raises PositionExpired: retention was faster.
        """

    @abstractmethod
    def _write(self, batch: SourceBatch, opened: Copied) -> None:
        """Sends a batch of `_read` on its way, and counts it; an engine that leaves some of it for
        the next `_read` sets how far it came."""

    @abstractmethod
    def _flush(self) -> None:
        """Until all that was sent is in the log."""

    @abstractmethod
    def _send_position(self, counters: str, membership: bytes) -> None:
        """Commits `_next` with the transaction, into a group."""

    @abstractmethod
    def _close(self) -> None: ...

    @abstractmethod
    def _end_unmarked(self, admin: Admin) -> None:
        """What older relays of the partition have left open, though it has ended, ends as it did:
        see `kafka.markers`.
        Raises HangingTransaction: how it ended is not known.
        """

    def _producer_id(self) -> ProducerIdAndEpoch | None:
        """Of the transaction, where it is known."""
        return None

    def _ask_reason(self) -> KafkaException | None:
        """The fatal error that the client has lost."""
        return None

    def run(self) -> Position:
        """P4.6. The order of these lines is what copies each message once."""
        admin = make_admin(self._task.properties)
        try:
            wait_for_broker(admin, self._subject, "connect", Deadline(INIT_SECONDS))
            producer = self._open_producer()  # 1. with the partition's static id
            take_over = partial(producer.init_transactions, INIT_SECONDS)
            self._call(take_over, "take over", INIT_SECONDS)  # 2. fences
            reach("p4.6.init.after")
            self._end_unmarked(admin)  # also what its coordinator left without a marker
            self._read_start(admin)  # 3. the group's stable commit says how far we are
            self._open_reader()
            try:
                if self._jumps:  # at once: where nothing is left, no message would ever commit it
                    self._copy(producer, SourceBatch(self._next, at_end=True))
                while not (self._should_stop() or self._is_done()):
                    batch = self._read()  # 4. read before a transaction is opened
                    if batch.count or batch.reached > self._next:
                        if not self._await_turn(batch):
                            break
                        self._copy(producer, batch)  # 5. to 8.
            except Exception:
                _abort(producer)
                raise
        finally:
            self._close()
        return self._position()

    def take_over(self, limit: Deadline, *, ends: bool) -> None:
        """Only that, in a process that must not be ended: see `RelayEngine.take_over`."""
        self._watchdog = None
        admin = make_admin(self._task.properties)
        try:
            producer = self._open_producer()
            seconds = max(1.0, limit.remaining(INIT_SECONDS))
            self._call(partial(producer.init_transactions, seconds), "take over", seconds)
            if ends:
                self._end_unmarked(admin)
        finally:
            self._close()

    def _await_turn(self, batch: SourceBatch) -> bool:
        """Until the shared pace lets it be sent; False where it is to stop instead. No transaction
        is open meanwhile: it would time out."""
        while self._pace and (seconds := self._pace.take(batch.size)):
            if self._should_stop():
                return False
            time.sleep(min(seconds, _TURN_SECONDS))
        self._taken = batch.size
        return True

    def _copy(self, producer: TransactionalProducer, batch: SourceBatch) -> None:
        """One transaction: the messages and the source offsets, both or neither."""
        self._call(producer.begin_transaction, "begin")  # 5.
        clock = self._throttle
        opened = Copied(time.monotonic(), told=clock.told, passed=clock.passed)
        self._opened = opened
        while True:
            if batch.count:
                self._write(batch, opened)  # 6. bytes, headers and timestamp untouched
            self._next = batch.reached
            if self._is_full(opened) or batch.at_end or self._is_done():
                break
            batch = self._read()
        # All written first: while an offset is pending, a reader of uncommitted data that joins the
        # group would begin before it, and handle these messages too.
        self._flush()
        reach("p4.6.produce.after")
        after = self._count(opened)
        self._send_offsets(after)  # 7. into the original group, by the guard's metadata
        reach("p4.6.offsets.after")
        self._call(lambda: producer.commit_transaction(CALL_SECONDS), "commit")  # 8.
        reach("p4.6.commit.after")
        if self._pace:
            self._pace.add(opened.sent - self._taken)
        self._learn_pace(opened)  # brokers throttle after they have answered
        took = time.monotonic() - opened.began
        self._throttling += Throttling(clock.passed - opened.passed, took)
        self._counters = after
        self._notify(self._position())

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
            self._own_metadata = bytes(reader.consumer_group_metadata())
        self._counters = counted.counters(task.recovery_id)

    def _count(self, opened: Copied) -> Counters:
        before = self._counters
        counts = None
        if before.counts is not None:
            counts = dict(before.counts)
            for place, count in opened.counts.items():
                counts[place] = counts.get(place, 0) + count
        return Counters(
            *(before.recovery_id, before.relayed + opened.count, before.bytes + opened.bytes),
            *(counts, self._producer_id()),
        )

    def _send_offsets(self, after: Counters) -> None:
        counters = write_counters(after, self._task.target_partitions)
        for membership in (self._task.group_metadata, self._own_metadata):
            if membership is not None:
                send = partial(self._send_position, counters, membership)
                self._call(send, "commit the source offsets")

    def _is_full(self, opened: Copied) -> bool:
        return (
            self._pace is not None  # has let one batch go
            or opened.count >= TRANSACTION_MESSAGES
            or opened.bytes >= self._most_bytes
            or time.monotonic() - opened.began >= TRANSACTION_SECONDS
        )

    def _learn_pace(self, opened: Copied) -> None:
        took = time.monotonic() - opened.began
        if took > _SLOW * self._task.transaction_timeout_ms / 1000:
            self._most_bytes = min(self._cap, max(_FIRST_BYTES // 16, self._most_bytes // 2))
        elif took < _QUICK and opened.bytes >= self._most_bytes:
            self._most_bytes = min(self._cap, int(self._most_bytes * _GROWTH))

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
            self._throttling,
        )

    def _call(
        self, call: Callable[[], object], doing: str, seconds: float = CALL_SECONDS
    ) -> object:
        try:
            if self._watchdog is None:
                return call()
            with self._watchdog.watching(f"{doing} ({self._subject})", seconds):
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

    def _explain(self, error: KafkaException, doing: str) -> BacklogError:
        """The error of a failed call, whether to try again, and the quota that time went to."""
        failure = self._judge(error, doing)
        return self._mention_quota(failure) if is_fenced(error) or failure.retryable else failure

    def _mention_quota(self, failure: BacklogError) -> BacklogError:
        if isinstance(failure, GuardLost):
            return failure
        opened, timeout_ms = self._opened, self._task.transaction_timeout_ms
        told, holds = self._throttle.told - opened.told, f" of {format_bytes(opened.bytes)}"
        return mention_quota(failure, told, timeout_ms, holds)

    def _judge(self, error: KafkaException, doing: str) -> BacklogError:
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


def _abort(producer: TransactionalProducer) -> None:
    """Ends an open transaction at once; where that fails, the next `init` ends it."""
    try:
        # It drops what is queued, and waits for what is on its way: a write that came behind its
        # own abort would hang in the topic for ever.
        producer.abort_transaction(5.0)
    except Exception:  # noqa: BLE001 - what failed before is raised
        return
