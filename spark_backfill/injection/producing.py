"""One transactional producer of one slot, and what its delivery reports say."""

from __future__ import annotations

import contextlib
import gc
import sys
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from confluent_kafka import KafkaError, KafkaException

from backlogctl.clock import Deadline
from backlogctl.errors import BacklogError, KafkaFailure, Refused
from backlogctl.kafka.clients import Properties, make_producer
from backlogctl.kafka.errors import is_abortable, is_fenced, translate
from backlogctl.kafka.markers import Place, ProducerIdAndEpoch, Unmarked, require_ended
from backlogctl.kafka.throttling import ThrottleClock, Throttling, mention_quota
from backlogctl_delivery.crashpoints import reach
from backlogctl_delivery.kafka import unwrap

_BATCH = 1000
_BATCH_BYTES = 1_000_000
# Trying these again gives the same answer.
_HOPELESS = frozenset(
    {
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.RECORD_LIST_TOO_LARGE,
        KafkaError.INVALID_RECORD,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError._UNKNOWN_PARTITION,
    }
)
# These only say that something else went wrong before.
_SECOND_HAND = frozenset(
    {KafkaError._FATAL, KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT, KafkaError._STATE}
)


class AttemptError(Exception):
    """This attempt ended without a known commit; the chunk may be tried again from step 1.

    `abortable` says that the broker will take an abort, so the outcome is known: not committed.
    """

    def __init__(self, error: BacklogError, *, abortable: bool) -> None:
        super().__init__(str(error))
        self.error = error
        self.abortable = abortable


def list_chunk_messages(table: pa.Table) -> list[tuple[Any, Any, list[tuple[str, bytes | None]]]]:
    """(value, key, headers) of each row, as fast as Python objects can be made.

    Columns become lists as a whole: no dictionary, no scalar object for each row.
    """
    if table.num_rows == 0:
        return []
    headers = _list_headers(table["headers"].combine_chunks())
    return list(zip(table["value"].to_pylist(), table["key"].to_pylist(), headers, strict=True))


def _list_headers(headers: Any) -> list[list[tuple[str, bytes | None]]]:
    """The header lists of all rows.

    Rows of one chunk have the same header names, and most stamps the same value: those pairs are
    made once. Otherwise one list of pairs is cut by the lengths.
    """
    rows = len(headers)
    flat = headers.flatten()
    names, values = flat.field(0), flat.field(1)
    width, rest = divmod(len(flat), rows)
    if rest or not headers.value_lengths().equals(pa.array([width] * rows, pa.int32())):
        pairs = list(zip(names.to_pylist(), values.to_pylist(), strict=True))
        ends = list(accumulate(headers.value_lengths().to_pylist(), initial=0))
        return [pairs[start:end] for start, end in pairwise(ends)]
    first = np.arange(rows, dtype=np.int64) * width
    columns: list[list[tuple[str, bytes | None]]] = []
    for at in range(width):
        index = pa.array(first + at)
        name, value = names.take(index), values.take(index)
        if len(name.unique()) == 1 and len(value.unique()) == 1:
            columns.append([(name[0].as_py(), value[0].as_py())] * rows)
        else:
            columns.append(list(zip(name.to_pylist(), value.to_pylist(), strict=True)))
    return [list(row) for row in zip(*columns, strict=True)] if columns else [[]] * rows


@contextlib.contextmanager
def _without_collector() -> Iterator[None]:
    """No cyclic garbage is made here, and looking for it costs a third of the time (measured)."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class SlotProducer:
    """A transactional producer, from its creation until it is discarded.

    Every delivery report is looked at: the transaction is committed only when each message was
    acknowledged. Everything that goes wrong is raised as AttemptError or as an error of ours.
    """

    def __init__(
        self,
        properties: Properties,
        topic: str,
        transactional_id: str,
        timeout_ms: int,
        max_message_bytes: int,
        compression: str = "none",
    ) -> None:
        self.session = ""
        self.not_wire = ""  # why it writes message by message
        self.throttling = Throttling()  # of the last transaction
        self.subject = f"topic {topic}, transactional.id {transactional_id}"
        self.timeout = timeout_ms / 1000.0
        self._properties, self._topic, self._codec = properties, topic, compression
        self._id, self._timeout_ms = transactional_id, timeout_ms
        # A batch must not be larger than what the topic takes as one message.
        self._limit = min(_BATCH_BYTES, max_message_bytes)
        self._ends: list[int | None] = []
        self._delivered = 0
        self._produced = 0
        self._failure: KafkaError | None = None
        self._begun = 0.0
        self._throttle = ThrottleClock()
        self._throttled_before = (0.0, 0.0)
        self._producer: Any = self._open(max_message_bytes)

    def _open(self, max_message_bytes: int) -> Any:
        return make_producer(
            self._properties,
            {
                "transactional.id": self._id,
                "transaction.timeout.ms": self._timeout_ms,
                "linger.ms": 5,
                "compression.type": self._codec,
                "batch.size": self._limit,
                "message.max.bytes": max(1000, min(max_message_bytes, 1_000_000_000)),
                "queue.buffering.max.messages": 200_000,
                "queue.buffering.max.kbytes": 256 * 1024,
                "throttle_cb": lambda event: self._throttle.note(event.throttle_time),
            },
        )

    def init(self) -> None:
        """Fences older producers of the id; their open transaction is aborted or has ended."""
        # Connected first: asked for the coordinator without a broker, the client waits for half a
        # second before it asks again (tried).
        self._call("reach the cluster", self._producer.list_topics, self._topic, self.timeout)
        self._call("take the slot over", self._producer.init_transactions, self._wait)

    def end_unmarked(
        self, places: Iterable[Place], was_committed: Callable[[Unmarked], bool | None]
    ) -> None:
        """After `init`: what older producers of the id have left open, though it has ended, ends.

        Here it is only found: of librdkafka's transactions nobody knows which one it is.
        """
        require_ended(self._properties, self._id, places, Deadline(self._wait))

    @property
    def producer(self) -> ProducerIdAndEpoch | None:
        """Of the transaction, where it is known."""
        return None

    def begin(self) -> None:
        self._delivered = self._produced = 0
        self._ends = []
        self._begun = time.monotonic()
        self._throttled_before = (self._throttle.told, self._throttle.passed)
        self._call("begin a transaction", self._producer.begin_transaction)

    def produce(self, partition: int, table: pa.Table, pace: float | None) -> None:
        """Hands every message to the client; each stays under the transaction until commit."""
        last = table.num_rows - 1
        for start in range(0, table.num_rows, _BATCH):
            with _without_collector():
                rows = list_chunk_messages(table.slice(start, _BATCH))
                for number, (value, key, headers) in enumerate(rows, start):
                    report = self._on_end if number in (0, last) else self._on_delivery
                    self._send(self._topic, value, key, partition, headers, report)
                self._call("deliver messages", self._producer.poll, 0)
            if start <= last // 2 < start + _BATCH:
                reach("p3.5.produce.middle")
            self._check_reports()
            if pace:
                due = self._begun + min(last + 1, start + _BATCH) / pace
                while (early := due - time.monotonic()) > 0:
                    self._call("deliver messages", self._producer.poll, early)

    def produce_record(self, topic: str, partition: int, key: bytes, value: bytes) -> None:
        """The ledger record, in the same transaction."""
        self._send(topic, value, key, partition, [], self._on_delivery)

    def flush(self) -> None:
        """Waits until every message is acknowledged.

        librdkafka counts failed deliveries itself and refuses the commit (tried), but it does not
        say what failed; the reports do.
        """
        left = self._call("deliver messages", self._producer.flush, self.timeout)
        self._check_reports()
        if left or self._delivered != self._produced:
            failure = KafkaFailure(
                f"{self._produced - self._delivered} of {self._produced} messages were not "
                f"acknowledged within {self.timeout:g} s",
                subject=self.subject,
                hint="look at the brokers' health, then run again",
                retryable=True,
            )
            raise AttemptError(self._mention_quota(failure), abortable=True)

    def commit(self) -> float:
        """Commits; returns seconds since begin. `throttling` says how many a quota took.

        Each commit gets a `session` of its own, so that "after the chunk of that session" is
        true of one moment only: a repeated request to go on after it must not find this producer.
        """
        self._call("commit the chunk", self._producer.commit_transaction, self.timeout + 5)
        self.session = uuid.uuid4().hex
        throttled = self._throttle.passed - self._throttled_before[1]
        self.throttling = Throttling(throttled, self._elapsed)
        return self.throttling.seconds

    def abort(self) -> None:
        """Aborts, as a courtesy to read_committed readers, who would wait for the timeout.

        Whether it works does not matter: the next producer's init aborts what is still open. An
        answer such as INVALID_TXN_STATE only means that this producer is of no more use.
        """
        with contextlib.suppress(AttemptError, BacklogError):
            self._call("abort", self._producer.purge)
            self._call("abort", self._producer.abort_transaction, 5.0)

    def drop(self) -> None:
        """Discards the producer with everything it still holds."""
        with contextlib.suppress(AttemptError, BacklogError):
            self._call("close a producer", self._producer.purge)
            self._call("close a producer", self._producer.poll, 0)

    def _send(
        self,
        topic: str,
        value: Any,
        key: Any,
        partition: int,
        headers: list[Any],
        report: Callable[[Any, Any], None],
    ) -> None:
        # No timestamp is given, so the record's is now: an original, old one would make the
        # broker's retention delete the message again.
        while True:
            try:
                self._producer.produce(
                    topic, value, key, partition, headers=headers, on_delivery=report
                )
            except BufferError:
                self._call("deliver messages", self._producer.poll, 0.05)
                self._check_reports()
            except (KafkaException, TypeError, ValueError) as error:
                raise self._failed("produce a message", error) from error
            else:
                self._produced += 1
                return

    def _on_delivery(self, error: KafkaError | None, _: Any) -> None:
        # Called for every message, so it does as little as possible; it must never raise.
        if error is None:
            self._delivered += 1
        elif self._failure is None or self._failure.code() == KafkaError._PURGE_QUEUE:
            self._failure = error

    def _on_end(self, error: KafkaError | None, message: Any) -> None:
        self._on_delivery(error, message)
        if error is None:
            offset = message.offset()
            # A broker that takes a repeated batch for the same may answer without offsets.
            self._ends.append(offset if offset is not None and offset >= 0 else None)

    def _check_reports(self) -> None:
        if self._failure is not None:
            raise self._failed("deliver a message", self._failure)

    def _call(self, doing: str, call: Callable[..., Any], *arguments: Any) -> Any:
        """Calls the client; whatever it raises becomes AttemptError or an error of ours."""
        try:
            return call(*arguments)
        except KafkaException as error:
            # The message's own failure says more than "some messages failed".
            raise self._failed(doing, self._failure or error) from error
        except:  # noqa: E722
            # After a fatal error confluent-kafka raises a KafkaError, which is no exception class
            # at all, so that no named clause catches it; or a SystemError where it has lost it
            # (tried, 2.16.1).
            reason: Any = sys.exc_info()[1]
            if not isinstance(reason, KafkaError | SystemError):
                raise
        raise self._failed(doing, reason)

    def _failed(self, doing: str, error: Any) -> Exception:
        inner = unwrap(error)
        if isinstance(error, SystemError) or (inner is not None and inner.code() in _SECOND_HAND):
            inner = self._ask_reason() or inner
        ours = translate(inner or error, self.subject, doing)
        if inner is None:
            return AttemptError(ours, abortable=False) if isinstance(error, SystemError) else ours
        code = inner.code()
        if is_fenced(inner) or ours.retryable:
            self._mention_quota(ours)
        if is_fenced(inner) and self._begun and self._elapsed >= self.timeout:
            # The coordinator timed this transaction out, or another runner fenced us while we
            # were stopped: the broker's answer is the same. Step 1 finds out, if the driver, who
            # knows whether the recovery still is ours, lets it be taken.
            return AttemptError(ours, abortable=False)
        if is_fenced(inner):
            return ours
        if code == KafkaError.INVALID_TRANSACTION_TIMEOUT:
            return _refuse_timeout(self.subject, self.timeout)
        if code in _HOPELESS:
            ours.retryable = False
            return ours
        return AttemptError(ours, abortable=is_abortable(inner))

    def _mention_quota(self, failure: BacklogError) -> BacklogError:
        told = self._throttle.told - self._throttled_before[0]
        return mention_quota(failure, told, self._timeout_ms)

    def _ask_reason(self) -> KafkaError | None:
        """The fatal error behind a second-hand one; an abort answers with it."""
        try:
            self._producer.abort_transaction(5.0)
        except KafkaException as error:
            return unwrap(error)
        except:  # noqa: E722 - see _call
            reason: Any = sys.exc_info()[1]
            if not isinstance(reason, KafkaError | SystemError):
                raise
            return unwrap(reason)
        return None

    @property
    def first_offset(self) -> int | None:
        """Of the transaction's messages in the topic, where known."""
        return self._ends[0] if self._ends else None

    @property
    def last_offset(self) -> int | None:
        return self._ends[-1] if self._ends else None

    @property
    def _wait(self) -> float:
        """Seconds until whatever an older producer left open has timed out."""
        return 2 * self.timeout + 15

    @property
    def _elapsed(self) -> float:
        return time.monotonic() - self._begun


def _refuse_timeout(subject: str, seconds: float) -> BacklogError:
    return Refused(
        f"a transaction timeout of {seconds:g} s is above the broker's transaction.max.timeout.ms; "
        "nothing was sent",
        subject=subject,
        hint="raise transaction.max.timeout.ms on the brokers",
    )
