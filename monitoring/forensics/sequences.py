"""Follows the sequence numbers of every idempotent producer, per partition (KIP-98, KIP-360).

A broker takes a batch of a known producer and epoch only with the next sequence number, so within
an epoch the log has no break, unless the broker forgot the producer or the log lost batches that
had been taken. Retries and duplicates cannot be seen: the broker drops them. What is no break:

- a new producer, or the first batch that is seen of one: retention, or where reading began
- control batches, and aborted transactions, which use up numbers as others do
- another epoch in transactions: each may have its own (KIP-890), and so has one after an abort
- numbers after missing offsets: compaction or retention took batches away
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from dataclasses import dataclass

from backlog.kafka.batches import BatchHeader, add_sequence
from monitoring.forensics.profile import (
    BreakKind,
    EpochSpan,
    Mark,
    ProducerProfile,
    SequenceBreak,
)
from monitoring.forensics.times import read_first, read_last, to_time

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
            to_time(read_first(self.first)),
            to_time(read_last(self.last)),
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

    Args:
        judges: False for a compacted topic, where any batch may be gone: only epochs are judged.
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
            to_time(read_last(before)),
            before.producer_epoch,
            before.last_sequence,
        )
        first = Mark(
            after.base_offset, to_time(read_first(after)), after.producer_epoch, after.base_sequence
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
