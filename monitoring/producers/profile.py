"""What the batch headers of a range of a topic show, as frozen values.

Times are those of the batches, in UTC: producers set them, unless the topic says LogAppendTime.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from backlogctl.clock import read_millis
from backlogctl.kafka.batches import BatchHeader, add_sequence
from backlogctl.kafka.raw_fetch import FetchedBatches
from backlogctl.values import OffsetRange

# When a batch was written, as its header says.


def read_first(header: BatchHeader) -> int:
    """Milliseconds of its first record; -1 where it has none.

    With LogAppendTime the broker sets only the newest one.
    """
    if header.is_log_append_time or header.first_timestamp_ms < 0:
        return header.max_timestamp_ms
    return header.first_timestamp_ms


class BreakKind(StrEnum):
    """How a producer's numbering goes on otherwise than one by one, in one partition."""

    JUMP = "jump"  # numbers are left out, or come again; the epoch is the same
    RESTART = "restart"  # from 0 again with the same epoch
    EPOCH = "epoch"  # a higher epoch, outside of transactions


@dataclass(frozen=True, slots=True)
class Mark:
    """A place in a partition's log: the first or last record of a batch, as a producer numbered it.

    `at` is None where the batch has no usable time.
    """

    offset: int
    at: datetime | None
    epoch: int
    sequence: int


@dataclass(frozen=True, slots=True)
class SequenceBreak:
    """Where a producer's numbering in a partition breaks: after `before`, at `after`.

    Attributes:
        left_out: sequence numbers between the two that no batch has; 0 where they come again, and
            None with another epoch.
    """

    kind: BreakKind
    partition: int
    producer_id: int
    before: Mark
    after: Mark
    left_out: int | None


@dataclass(frozen=True, slots=True)
class EpochSpan:
    """The batches of one producer with one epoch in one partition."""

    epoch: int
    first_offset: int
    last_offset: int
    first_time: datetime | None
    last_time: datetime | None
    batches: int
    messages: int


@dataclass(frozen=True, slots=True)
class ProducerProfile:
    """One idempotent or transactional producer in one partition.

    Attributes:
        epochs: the newest ones, oldest first; a transaction may have its own (KIP-890).
        epochs_left_out: older ones that are not listed.
    """

    producer_id: int
    partition: int
    is_transactional: bool
    batches: int
    messages: int
    epochs: tuple[EpochSpan, ...]
    epochs_left_out: int = 0


@dataclass(frozen=True, slots=True)
class PartitionProfile:
    """One partition.

    Attributes:
        start, end: the offsets that were read, `[start, end)`.
        messages: records, those of aborted transactions too, without control records.
        bytes: of its batches as they lie in the log, compressed; replicas do not count.
        aborted: of `messages`, those of transactions that were aborted.
        undecided: of `messages`, those of transactions whose end was not read: they are open, it
            lies after the range, or compaction may have taken it.
        control_batches: ends of transactions; in no other figure but bytes.
        batches_below_1kb: batches of less than 1,024 B.
        codecs: batches by compression; a producer leaves a batch uncompressed that would not
            become smaller.
        not_idempotent: messages without a producer id, and between which times they lie.
        old_format: entries of format 0 or 1, which are in no other figure.
        holes: places where offsets are missing, as compaction leaves them.
        passed_over: offsets that expired, or were deleted, before they were read.
    """

    partition: int
    start: int
    end: int
    messages: int = 0
    aborted: int = 0
    undecided: int = 0
    bytes: int = 0
    batches: int = 0
    control_batches: int = 0
    batches_below_1kb: int = 0
    codecs: Mapping[str, int] = field(default_factory=dict)
    first_time: datetime | None = None
    last_time: datetime | None = None
    not_idempotent: int = 0
    not_idempotent_first: datetime | None = None
    not_idempotent_last: datetime | None = None
    log_append_time_batches: int = 0
    leader_epochs: int = 0
    old_format: int = 0
    holes: int = 0
    passed_over: tuple[OffsetRange, ...] = ()

    @property
    def committed(self) -> int:
        """Messages that a consumer with `read_committed` gets, once the open transactions before
        them have ended."""
        return self.messages - self.aborted - self.undecided


@dataclass(frozen=True, slots=True)
class LogProfile:
    """A topic's log between two times.

    Attributes:
        is_compacted: `cleanup.policy` has `compact`: sequences are not judged then.
        producers: the busiest ones, by messages; `producers_left_out` more are not listed.
        breaks: the first ones, in the order they were met; `breaks_left_out` more are not listed.
        forgotten: producers whose sequences were no longer followed because there were too many.
        seconds: how long reading took.
    """

    topic: str
    since: datetime | None
    until: datetime | None
    is_compacted: bool
    partitions: tuple[PartitionProfile, ...]
    producers: tuple[ProducerProfile, ...] = ()
    producers_left_out: int = 0
    breaks: tuple[SequenceBreak, ...] = ()
    breaks_left_out: int = 0
    forgotten: int = 0
    seconds: float = 0.0

    @property
    def messages(self) -> int:
        return sum(one.messages for one in self.partitions)

    @property
    def bytes(self) -> int:
        return sum(one.bytes for one in self.partitions)

    @property
    def batches(self) -> int:
        return sum(one.batches for one in self.partitions)

    @property
    def first_time(self) -> datetime | None:
        times = [one.first_time for one in self.partitions if one.first_time is not None]
        return min(times, default=None)

    @property
    def last_time(self) -> datetime | None:
        times = [one.last_time for one in self.partitions if one.last_time is not None]
        return max(times, default=None)


# Follows the sequence numbers of every idempotent producer, per partition (KIP-98, KIP-360).
#
# A broker takes a batch of a known producer and epoch only with the next sequence number, so within
# an epoch the log has no break, unless the broker forgot the producer or the log lost batches that
# had been taken. Retries and duplicates cannot be seen: the broker drops them. What is no break:
#
# - a new producer, or the first batch that is seen of one: retention, or where reading began
# - control batches, and aborted transactions, which use up numbers as others do
# - another epoch in transactions: each may have its own (KIP-890), and so has one after an abort
# - numbers after missing offsets: compaction or retention took batches away

MOST_PRODUCERS = 50_000
_MOST_LISTED = 1_000
_MOST_BREAKS = 1_000
_MOST_EPOCHS = 32
# Sequence numbers are a ring: what is further ahead than half of it lies behind.
_AHEAD = 2**30


@dataclass(slots=True)
class _Span:
    epoch: int
    first: BatchHeader
    last: BatchHeader
    batches: int = 0
    messages: int = 0

    def freeze(self) -> EpochSpan:
        return EpochSpan(
            self.epoch,
            self.first.base_offset,
            self.last.last_offset,
            read_millis(read_first(self.first)),
            read_millis(self.last.max_timestamp_ms),
            self.batches,
            self.messages,
        )


@dataclass(slots=True)
class _Producer:
    spans: list[_Span]
    is_transactional: bool
    skips: int = 0  # of its partition, when its last batch was seen
    left_out: int = 0
    batches: int = 0
    messages: int = 0


class Sequences:
    """The producers of a topic, as many as are remembered at once.
    `judges`: False for a compacted topic, where any batch may be gone: only epochs are judged.
    """

    def __init__(self, *, judges: bool = True, most: int = MOST_PRODUCERS) -> None:
        self._judges, self._most = judges, most
        self._producers: OrderedDict[tuple[int, int], _Producer] = OrderedDict()
        self._skips: Counter[int] = Counter()
        self.breaks: list[SequenceBreak] = []
        self.breaks_left_out = 0
        self.forgotten = 0

    def add(self, partition: int, header: BatchHeader) -> None:
        """A data batch with a producer id, the next one of its partition."""
        key = partition, header.producer_id
        producer = self._producers.get(key)
        if producer is None:
            producer = _Producer([_Span(header.producer_epoch, header, header)], False)
            self._producers[key] = producer
            if len(self._producers) > self._most:
                self._producers.popitem(last=False)
                self.forgotten += 1
        else:
            self._producers.move_to_end(key)
            self._judge(partition, producer, header)
        self._count(producer, header)
        producer.skips = self._skips[partition]

    def skip(self, partition: int) -> None:
        """Offsets of the partition are missing here: what comes next is no break."""
        self._skips[partition] += 1

    def list_producers(self) -> tuple[tuple[ProducerProfile, ...], int]:
        """The busiest ones first, and how many are not listed."""
        found = sorted(
            self._producers.items(), key=lambda one: (-one[1].messages, one[0][1], one[0][0])
        )
        listed = tuple(
            ProducerProfile(
                producer_id,
                partition,
                one.is_transactional,
                one.batches,
                one.messages,
                tuple(span.freeze() for span in one.spans),
                one.left_out,
            )
            for (partition, producer_id), one in found[:_MOST_LISTED]
        )
        return listed, len(found) - len(listed) + self.forgotten

    def _judge(self, partition: int, producer: _Producer, header: BatchHeader) -> None:
        before = producer.spans[-1].last
        if header.producer_epoch != before.producer_epoch:
            is_transactional = header.is_transactional or producer.is_transactional
            if header.producer_epoch > before.producer_epoch and not is_transactional:
                self._note(BreakKind.EPOCH, partition, before, header, None)
            return
        if producer.skips != self._skips[partition] or not self._judges:
            return
        expected = add_sequence(before.last_sequence, 1)
        found = header.base_sequence
        if found == expected:
            return
        ahead = add_sequence(found, -expected)
        if found == 0:
            self._note(BreakKind.RESTART, partition, before, header, 0)
        else:
            self._note(BreakKind.JUMP, partition, before, header, ahead if ahead < _AHEAD else 0)

    def _note(
        self,
        kind: BreakKind,
        partition: int,
        before: BatchHeader,
        after: BatchHeader,
        left_out: int | None,
    ) -> None:
        if len(self.breaks) >= _MOST_BREAKS:
            self.breaks_left_out += 1
            return
        last = Mark(
            before.last_offset,
            read_millis(before.max_timestamp_ms),
            before.producer_epoch,
            before.last_sequence,
        )
        first = Mark(
            after.base_offset,
            read_millis(read_first(after)),
            after.producer_epoch,
            after.base_sequence,
        )
        self.breaks.append(SequenceBreak(kind, partition, after.producer_id, last, first, left_out))

    def _count(self, producer: _Producer, header: BatchHeader) -> None:
        span = producer.spans[-1]
        if span.epoch != header.producer_epoch:
            span = _Span(header.producer_epoch, header, header)
            producer.spans.append(span)
            if len(producer.spans) > _MOST_EPOCHS:
                del producer.spans[0]
                producer.left_out += 1
        span.last = header
        span.batches += 1
        span.messages += header.record_count
        producer.batches += 1
        producer.messages += header.record_count
        producer.is_transactional = producer.is_transactional or header.is_transactional


# Folds batch headers into a profile as they are read; what it keeps does not grow with the log.

SMALL_BYTES = 1024


@dataclass(slots=True)
class _Extent:
    """Between which times something lies, in milliseconds; -1 is no time."""

    first: int = -1
    last: int = -1

    def add(self, first: int, last: int) -> None:
        if first >= 0 and (first < self.first or self.first < 0):
            self.first = first
        if last > self.last:
            self.last = last


@dataclass(slots=True)
class _Partition:
    start: int
    end: int
    next_offset: int | None = None
    messages: int = 0
    aborted: int = 0
    lost_sight: int = 0
    open: Counter[int] = field(default_factory=Counter)  # messages by producer
    bytes: int = 0
    batches: int = 0
    control: int = 0
    small: int = 0
    codecs: Counter[str] = field(default_factory=Counter)
    span: _Extent = field(default_factory=_Extent)
    not_idempotent: int = 0
    not_idempotent_span: _Extent = field(default_factory=_Extent)
    append_time: int = 0
    leader_epoch: int = -1
    leader_epochs: int = 0
    old_format: int = 0
    holes: int = 0
    passed_over: list[OffsetRange] = field(default_factory=list)


class Folding:
    """A profile in the making.

    Args:
        ranges: the offsets to read; each partition once.
        is_compacted: see `LogProfile`.
    """

    def __init__(
        self, topic: str, ranges: tuple[OffsetRange, ...], *, is_compacted: bool = False
    ) -> None:
        self._topic, self._is_compacted = topic, is_compacted
        self._partitions = {one.partition: _Partition(one.start, one.end) for one in ranges}
        self._sequences = Sequences(judges=not is_compacted)

    def add(self, fetched: FetchedBatches) -> None:
        part = self._partitions[fetched.partition]
        if fetched.passed_over is not None:
            part.passed_over.append(fetched.passed_over)
            self._skip(fetched.partition, part)
        if fetched.old_format:
            part.old_format += fetched.old_format
            self._skip(fetched.partition, part)
        for header in fetched.headers:
            self._add(fetched.partition, part, header)

    def _skip(self, partition: int, part: _Partition) -> None:
        """Offsets are missing here, and ends of transactions may be among them."""
        part.next_offset = None
        part.lost_sight += part.open.total()
        part.open.clear()
        self._sequences.skip(partition)

    def _add(self, partition: int, part: _Partition, header: BatchHeader) -> None:
        if part.next_offset is not None and header.base_offset != part.next_offset:
            part.holes += 1
            self._skip(partition, part)
        part.next_offset = header.last_offset + 1
        part.bytes += header.size
        if header.leader_epoch != part.leader_epoch:
            part.leader_epoch = header.leader_epoch
            part.leader_epochs += 1
        if header.is_control:
            part.control += 1
            if header.is_commit is not None:
                left = part.open.pop(header.producer_id, 0)
                part.aborted += 0 if header.is_commit else left
            return
        count, first, last = header.record_count, read_first(header), header.max_timestamp_ms
        part.batches += 1
        part.messages += count
        if header.is_transactional:
            part.open[header.producer_id] += count
        part.codecs[header.codec] += 1
        part.span.add(first, last)
        part.small += header.size < SMALL_BYTES
        part.append_time += header.is_log_append_time
        if header.producer_id < 0:
            part.not_idempotent += count
            part.not_idempotent_span.add(first, last)
        else:
            self._sequences.add(partition, header)

    def freeze(
        self, since: datetime | None = None, until: datetime | None = None, seconds: float = 0.0
    ) -> LogProfile:
        producers, left_out = self._sequences.list_producers()
        return LogProfile(
            topic=self._topic,
            since=since,
            until=until,
            is_compacted=self._is_compacted,
            partitions=tuple(_freeze(*one) for one in sorted(self._partitions.items())),
            producers=producers,
            producers_left_out=left_out,
            breaks=tuple(self._sequences.breaks),
            breaks_left_out=self._sequences.breaks_left_out,
            forgotten=self._sequences.forgotten,
            seconds=seconds,
        )


def _freeze(partition: int, part: _Partition) -> PartitionProfile:
    return PartitionProfile(
        partition=partition,
        start=part.start,
        end=part.end,
        messages=part.messages,
        aborted=part.aborted,
        undecided=part.lost_sight + part.open.total(),
        bytes=part.bytes,
        batches=part.batches,
        control_batches=part.control,
        batches_below_1kb=part.small,
        codecs=dict(part.codecs),
        first_time=read_millis(part.span.first),
        last_time=read_millis(part.span.last),
        not_idempotent=part.not_idempotent,
        not_idempotent_first=read_millis(part.not_idempotent_span.first),
        not_idempotent_last=read_millis(part.not_idempotent_span.last),
        log_append_time_batches=part.append_time,
        leader_epochs=part.leader_epochs,
        old_format=part.old_format,
        holes=part.holes,
        passed_over=tuple(part.passed_over),
    )
