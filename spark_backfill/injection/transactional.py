"""Writes a chunk exactly once, in a Kafka transaction of its own (protocol P3, steps 1 to 7)."""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import Any, Protocol, Self

import pyarrow as pa
import pyarrow.compute as pc

from backlogctl.clock import Deadline
from backlogctl.errors import (
    BacklogError,
    HangingTransaction,
    KafkaFailure,
    PlanStale,
    Refused,
    StagingChanged,
)
from backlogctl.kafka.admin import list_offsets
from backlogctl.kafka.clients import Admin, make_admin
from backlogctl.kafka.markers import ProducerIdAndEpoch, Unmarked
from backlogctl.kafka.throttling import RECORD_BYTES
from backlogctl.spark_backfill.injection.ledger_topic import (
    CLOSED,
    COORDINATOR_SECONDS,
    CommittedChunk,
    find_foreign_chunks,
    make_record,
    read_visible,
)
from backlogctl.spark_backfill.injection.newer import (
    NewerMessages,
    Overtaken,
    drop_rows,
    require_newest,
)
from backlogctl.spark_backfill.injection.producing import AttemptError, SlotProducer
from backlogctl.spark_backfill.injection.snapshots import LedgerSnapshot
from backlogctl.values import Chunk
from backlogctl.wire import explain_absence
from backlogctl_delivery.crashpoints import reach

# The interface that writes one chunk to Kafka.


class CommitOutcome(StrEnum):
    """What became of a chunk."""

    INJECTED = "injected"  # committed now
    SKIPPED = "skipped"  # it was committed before


class OutcomeUnknown(Exception):
    """The chunk may be committed or not, and the writer must not find out by itself.

    It has been at it for so long that the recovery may be another runner's by now. Whoever knows
    that it is not (the driver, which holds the lease) writes the chunk again, from step 1.
    """

    def __init__(self, error: BacklogError) -> None:
        super().__init__(str(error))
        self.error = error


@dataclass(frozen=True, slots=True)
class ChunkResult:
    """One chunk is in the topic; `count` of its messages, without those left out.

    Attributes:
        left_out: its messages, counted from 0, that were not sent: see `NewerMessages`.
        session: names this commit of its producer; the next chunk of the slot may go on with the
            producer whose last commit it is, and with no other. Empty where there is none.
        first_offset, last_offset: of its messages in the target partition, where known.
        seconds: of the last attempt, from begin to committed.
        size: bytes that it took of the brokers at most, of one attempt.
        throttled: of these seconds, those in which brokers took nothing, by a quota.
        not_wire: why it was written message by message; empty where it was not.
    """

    slot: int
    number: int
    count: int
    outcome: CommitOutcome
    session: str = ""
    first_offset: int | None = None
    last_offset: int | None = None
    seconds: float = 0.0
    attempts: int = 1
    left_out: tuple[int, ...] = ()
    size: int = 0
    throttled: float = 0.0
    not_wire: str = ""


@dataclass(frozen=True, slots=True)
class ChunkMessages:
    """What of a chunk is sent: `table` is without the messages that are left out."""

    chunk: Chunk
    table: pa.Table
    pace: float | None = None
    newer: NewerMessages | None = None
    left_out: tuple[int, ...] = ()

    @property
    def size(self) -> int:
        """Bytes that they take of the brokers at most: uncompressed."""
        content: Any = self.table.select(["key", "value", "headers"])
        return int(content.nbytes + RECORD_BYTES * content.num_rows)

    @classmethod
    def choose(
        cls, chunk: Chunk, table: pa.Table, pace: float | None, newer: NewerMessages | None
    ) -> Self:
        """Leaves out what has a newer message."""
        left_out = () if newer is None else newer.find_rows(table)
        return cls(chunk, drop_rows(table, left_out), pace, newer, left_out)


class ChunkWriter(Protocol):
    """Writes a chunk's messages and its ledger record, both or neither, at most once ever."""

    def write(
        self,
        chunk: Chunk,
        table: pa.Table,
        *,
        after: str = "",
        pace: float | None = None,
        newer: NewerMessages | None = None,
    ) -> ChunkResult:
        """Writes the chunk, or finds that it is committed already.

        Args:
            table: the chunk's messages, `CHUNK_SCHEMA`, hash checked.
            after: `session` of the slot's previous chunk of this run; empty for none.
            pace: messages per second at most; None for as fast as it goes.
            newer: of the slot's partition; what has a newer message is not sent. None sends all.

        Raises:
            Overtaken: newer messages came meanwhile; look again, then write it again.
            OutcomeUnknown: ask whether the recovery still is ours, then write it again.
            PlanStale: another recovery wrote to this slot, or the ledger is not the plan's.
            ProducerFenced: another runner took the slot over.
            HangingTransaction, KafkaFailure, Refused: nothing of the chunk was committed, or it
                is not known whether it was; writing it again is safe.
        """

    def close(self) -> None:
        """Closes every producer."""


TRANSACTION_TIMEOUT_MS = 15_000
DEFAULT_PREFIX = "backlog"
DEFAULT_MAX_MESSAGE_BYTES = 1_048_588
_KEPT_PRODUCERS = 16


@dataclass(frozen=True, slots=True)
class WriterSettings:
    """What a writer needs; travels to Spark executors. `properties` hold secrets."""

    properties: Mapping[str, str] = field(repr=False)
    topic: str
    recovery_id: str
    plan_hash: str
    ledger: LedgerSnapshot
    prefix: str = DEFAULT_PREFIX
    compression: str = "none"
    transaction_timeout_ms: int = TRANSACTION_TIMEOUT_MS
    max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES

    @property
    def hanging_wait(self) -> float:
        """Seconds until an open transaction is called hanging: its timeout + 10 s + slack."""
        return self.transaction_timeout_ms / 1000.0 + COORDINATOR_SECONDS


def name_transactional_id(prefix: str, topic: str, slot: int) -> str:
    """The slot's transactional.id.

    Without the recovery's id: with it, a zombie of a cancelled recovery, or of a plan that
    overlaps, would not be fenced, and would send the messages a second time.
    """
    return f"{prefix}.{topic}.{slot}"


class TransactionalWriter:
    def __init__(self, settings: WriterSettings) -> None:
        self.settings = settings
        self._kept: OrderedDict[int, SlotProducer] = OrderedDict()
        self._admin: Admin | None = None

    def write(
        self,
        chunk: Chunk,
        table: pa.Table,
        *,
        after: str = "",
        pace: float | None = None,
        newer: NewerMessages | None = None,
    ) -> ChunkResult:
        """See `ChunkWriter.write`; an attempt whose outcome is unknown starts from step 1.

        But only within the transaction's timeout. Step 1 takes the slot from whoever has it, and a
        process that was stopped for longer may take it from a runner that has replaced it.
        """
        _check_table(chunk, table)
        sent = ChunkMessages.choose(chunk, table, pace, newer)
        attempt, limit = 1, Deadline(self.settings.transaction_timeout_ms / 1000.0)
        while True:
            try:
                return self._write_once(sent, after if attempt == 1 else "", attempt)
            except Overtaken:
                raise
            except AttemptError as failed:
                error: BacklogError = failed.error
            except KafkaFailure as failed:
                # Before begin: the ledger could not be read.
                if not failed.retryable:
                    raise
                error = failed
            # Back off before asking a broker that just failed.
            time.sleep(limit.remaining(min(3.0, 0.1 * 2**attempt)))
            if limit.expired:
                raise OutcomeUnknown(error) from error
            attempt += 1

    def _write_once(self, sent: ChunkMessages, after: str, attempt: int) -> ChunkResult:
        """P3. The order of these lines is what makes a chunk commit exactly once."""
        chunk = sent.chunk
        producer = self._take_kept(chunk.slot, after)
        fresh = producer is None
        if producer is None:
            reach("p3.1.producer.before")
            producer = self._make_producer(chunk.slot)  # 1. a new producer with the slot's id
            reach("p3.1.producer.after")
        try:
            if fresh and (record := self._find_committed(producer, chunk)):  # 2. to 4.
                producer.drop()
                return skip_chunk(chunk, record, attempt)
            seconds = self._commit(producer, sent)  # 5. begin, produce, commit
        except AttemptError as failed:  # 6. abort; or unknown: never assume, start from 1
            reach("p3.6.abort.before")
            if failed.abortable:
                producer.abort()
            producer.drop()
            reach("p3.6.abort.after")
            raise
        except BacklogError:
            producer.abort()
            producer.drop()
            raise
        self._keep(chunk.slot, producer)
        return ChunkResult(  # 7. goes back to the driver, which copies it into SQL
            slot=chunk.slot,
            number=chunk.number,
            count=sent.table.num_rows,
            outcome=CommitOutcome.INJECTED,
            session=producer.session,
            first_offset=producer.first_offset,
            last_offset=producer.last_offset,
            seconds=seconds,
            attempts=attempt,
            left_out=sent.left_out,
            size=sent.size,
            throttled=producer.throttling.throttled,
            not_wire=producer.not_wire,
        )

    def _find_committed(self, producer: SlotProducer, chunk: Chunk) -> CommittedChunk | None:
        """Steps 2 to 4: the chunk's record where it is committed already, for certain."""
        reach("p3.2.init.before")
        producer.init()  # 2. older ones are fenced, their transaction aborted or ended
        scan = partial(self._scan, chunk.slot)
        _end_unmarked(producer, self.settings.ledger, self.settings.topic, chunk.slot, scan)
        reach("p3.2.init.after")
        reach("p3.3.scan.before")
        records = scan()  # 3. the whole ledger partition, up to H, is visible
        reach("p3.3.scan.after")
        reach("p3.4.decide.before")
        found = self._find_record(records, chunk)  # 4. there: skip; another recovery's: refuse
        reach("p3.4.decide.after")
        return found

    def _commit(self, producer: SlotProducer, sent: ChunkMessages) -> float:
        """Step 5: the messages and their ledger record, both or neither."""
        reach("p3.5.begin.before")
        producer.begin()
        reach("p3.5.begin.after")
        producer.produce(sent.chunk.slot, sent.table, sent.pace)
        reach("p3.5.produce.after")
        self._produce_record(producer, sent)
        reach("p3.5.record.after")
        producer.flush()
        reach("p3.5.flush.after")
        self._require_newest(producer, sent)
        reach("p3.5.commit.before")
        seconds = producer.commit()
        reach("p3.5.commit.after")
        return seconds

    def _produce_record(self, producer: SlotProducer, sent: ChunkMessages) -> None:
        settings, ledger, slot = self.settings, self.settings.ledger, sent.chunk.slot
        key, value = make_record(
            *(settings.recovery_id, settings.topic, settings.plan_hash),
            *(sent.chunk, slot, sent.left_out),
            producer=producer.producer,
        )
        place = ledger.place(settings.topic, slot)
        producer.produce_record(ledger.topic, place, key, value)

    def _require_newest(self, producer: SlotProducer, sent: ChunkMessages) -> None:
        """Nothing newer came since the driver's look, and stands before our messages.

        Raises:
            Overtaken.
        """
        if sent.newer is None or not sent.table.num_rows:
            return
        topic, slot, last = self.settings.topic, sent.chunk.slot, producer.last_offset
        end = last + 1 if last is not None else self._ask_end(slot)
        require_newest(self.settings.properties, topic, slot, sent.table, sent.newer, end)

    def _ask_end(self, slot: int) -> int:
        topic = self.settings.topic
        return list_offsets(self._connect(), topic, [slot], "latest", "read_uncommitted")[slot]

    def _connect(self) -> Admin:
        if self._admin is None:
            self._admin = make_admin(self.settings.properties)
        return self._admin

    def _scan(self, slot: int) -> list[CommittedChunk]:
        settings = self.settings
        place = settings.ledger.place(settings.topic, slot)
        return read_visible(
            settings.properties,
            settings.ledger,
            [place],
            wait=settings.hanging_wait,
            admin=self._connect(),
        )

    def _find_record(
        self, records: Iterable[CommittedChunk], chunk: Chunk
    ) -> CommittedChunk | None:
        """Step 4.

        Raises:
            PlanStale: another recovery wrote to this topic and slot since the plan was made. The
                check before a run is not enough: a runner that was stopped between that check and
                its `init_transactions` fences no live producer when it wakes up, and would
                send again what the other recovery has put back meanwhile. Here, after fencing,
                nobody else can commit to the slot, so what is not seen now never comes.
        """
        settings = self.settings
        seen = list(records)
        foreign = find_foreign_chunks(
            seen,
            settings.ledger,
            recovery=settings.recovery_id,
            topic=settings.topic,
            slot=chunk.slot,
        )
        subject = f"topic {settings.topic}[{chunk.slot}]"
        if foreign:
            raise PlanStale(
                f"recovery {foreign[0].recovery} has injected messages here since this plan was "
                "made; nothing was sent",
                subject=subject,
                hint="cancel this recovery and plan again",
            )
        own = [
            record
            for record in seen
            if record.recovery == settings.recovery_id
            and record.topic == settings.topic
            and record.slot == chunk.slot
        ]
        for record in own:
            if record.chunk == chunk.number:
                require_same_hash(record, chunk, subject)
                return record
        if any(record.chunk == CLOSED for record in own):
            raise Refused(
                f"recovery {settings.recovery_id} was cancelled; nothing was sent",
                subject=subject,
                hint="plan again",
            )
        return None

    def _make_producer(self, slot: int) -> SlotProducer:
        settings = self.settings
        return _make_producer(
            settings.properties,
            settings.topic,
            name_transactional_id(settings.prefix, settings.topic, slot),
            settings.transaction_timeout_ms,
            settings.max_message_bytes,
            settings.compression,
        )

    def _take_kept(self, slot: int, after: str) -> SlotProducer | None:
        """The producer that committed the slot's previous chunk, if it was ours and that very one.

        The driver says which one that was. A producer kept from longer ago was fenced by the one
        that came after it.
        """
        producer = self._kept.pop(slot, None)
        if producer is None or (after and producer.session == after):
            return producer
        producer.drop()
        return None

    def _keep(self, slot: int, producer: SlotProducer) -> None:
        self._kept[slot] = producer
        while len(self._kept) > _KEPT_PRODUCERS:
            self._kept.popitem(last=False)[1].drop()

    def close(self) -> None:
        while self._kept:
            self._kept.popitem()[1].drop()


def skip_chunk(chunk: Chunk, record: CommittedChunk, attempt: int = 1) -> ChunkResult:
    """The result of a chunk that is committed already, as its record says."""
    return ChunkResult(
        *(chunk.slot, chunk.number, record.sent, CommitOutcome.SKIPPED),
        attempts=attempt,
        left_out=record.left_out,
    )


def require_same_hash(record: CommittedChunk, chunk: Chunk, subject: str) -> None:
    """A committed chunk must be the staged one.

    Raises:
        PlanStale: it has another hash.
    """
    if record.sha256 != chunk.sha256:
        raise PlanStale(
            f"chunk {chunk.number} is in the Kafka ledger with another hash: other messages were "
            "injected under this number; nothing was sent",
            subject=subject,
            hint="cancel this recovery and plan again",
        )


def fence_slots(
    properties: Mapping[str, str],
    prefix: str,
    topic: str,
    slots: Iterable[int],
    *,
    recovery_id: str = "",
    ledger: LedgerSnapshot | None = None,
    transaction_timeout_ms: int = TRANSACTION_TIMEOUT_MS,
) -> None:
    """Fences every producer of these slots.

    With `ledger`, what their transactions left open ends as they did. With `recovery_id` too, for
    `cancel`, before it changes the state: each slot gets a closing record. A runner of this
    recovery that was stopped before its `init_transactions`, and so is not fenced, finds it when it
    wakes up, and sends nothing.

    Raises:
        HangingTransaction: how one of them ended is not known.
        KafkaFailure, ClusterUnreachable: not every slot is fenced; call again.
    """
    waiting = deque(sorted(set(slots)))
    last_turn = len(waiting)
    while waiting:
        slot = waiting.popleft()
        last_turn -= 1
        producer = _make_producer(
            properties,
            topic,
            name_transactional_id(prefix, topic, slot),
            transaction_timeout_ms,
            DEFAULT_MAX_MESSAGE_BYTES,
        )
        try:
            producer.init()
            if ledger is not None:
                _close_slot(producer, ledger, topic, slot, properties, recovery_id)
        except HangingTransaction:
            # What it must read may be hidden by the slots behind it.
            if last_turn < 0:
                raise
            waiting.append(slot)
        except AttemptError as failed:
            raise failed.error from failed
        finally:
            producer.drop()


def _close_slot(
    producer: SlotProducer,
    ledger: LedgerSnapshot,
    topic: str,
    slot: int,
    properties: Mapping[str, str],
    recovery_id: str,
) -> None:
    place = ledger.place(topic, slot)
    scan = partial(read_visible, properties, ledger, [place], wait=producer.timeout)
    _end_unmarked(producer, ledger, topic, slot, scan)
    if recovery_id:
        key, value = make_record(recovery_id, topic, "", None, slot)
        producer.begin()
        producer.produce_record(ledger.topic, place, key, value)
        producer.flush()
        producer.commit()


def _make_producer(properties: Mapping[str, str], *arguments: Any) -> SlotProducer:
    """The faster one, where its client takes these properties."""
    if why := explain_absence(properties):
        producer = SlotProducer(properties, *arguments)
        producer.not_wire = why
        return producer
    from backlogctl.spark_backfill.injection.batch_producer import BatchSlotProducer

    return BatchSlotProducer(properties, *arguments)


def _end_unmarked(
    producer: SlotProducer,
    ledger: LedgerSnapshot,
    topic: str,
    slot: int,
    scan: Callable[[], Iterable[CommittedChunk]],
) -> None:
    """Still in step 2: what a transaction of the slot has left open ends as its ledger record
    does.

    A coordinator may leave out the marker of a partition, and the next commit of this producer
    would then commit there what was aborted: see `kafka.markers`.

    Raises:
        HangingTransaction: how it ended is not known.
    """
    target, record = (topic, slot), (ledger.topic, ledger.place(topic, slot))

    def was_committed(left: Unmarked) -> bool | None:
        if record in left.places:
            # Nobody has seen any of it, if the target has no marker either, or is no part of it.
            return left.was_committed(None) if target in left.places | left.untouched else None
        last: ProducerIdAndEpoch | None = None
        for one in scan():
            if (one.topic, one.slot) != target or one.chunk == CLOSED:
                continue
            if one.producer is None:
                return None  # librdkafka wrote it, or an earlier release
            if one.producer.id == left.producer.id:
                last = one.producer
        return left.was_committed(last)

    producer.end_unmarked([target, record], was_committed)


def _check_table(chunk: Chunk, table: pa.Table) -> None:
    foreign = pc.sum(pc.not_equal(table["partition"], chunk.slot)).as_py() or 0
    if foreign or table.num_rows != chunk.count or table.num_rows == 0:
        raise StagingChanged(
            f"a chunk of slot {chunk.slot} must hold {chunk.count} messages of that partition; it "
            f"holds {table.num_rows}, {foreign} of them of another one",
            subject=chunk.path,
            hint="cancel this recovery and plan again",
        )
