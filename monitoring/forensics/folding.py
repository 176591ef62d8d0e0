"""Folds batch headers into a profile as they are read; what it keeps does not grow with the log."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime

from backlog.kafka.batches import BatchHeader
from backlog.kafka.raw_fetch import FetchedBatches
from backlog.values import OffsetRange
from monitoring.forensics.profile import LogProfile, PartitionProfile
from monitoring.forensics.sequences import Sequences
from monitoring.forensics.times import read_first, read_last, to_time

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
        """What was read next of one partition."""
        part = self._partitions[fetched.partition]
        if fetched.passed_over is not None:
            part.passed_over.append(fetched.passed_over)
            part.next_offset = None
            self._sequences.skip(fetched.partition)
        if fetched.old_format:
            part.old_format += fetched.old_format
            part.next_offset = None
            self._sequences.skip(fetched.partition)
        for header in fetched.headers:
            self._add(fetched.partition, part, header)

    def _add(self, partition: int, part: _Partition, header: BatchHeader) -> None:
        if part.next_offset is not None and header.base_offset != part.next_offset:
            part.holes += 1
            self._sequences.skip(partition)
        part.next_offset = header.last_offset + 1
        part.bytes += header.size
        if header.leader_epoch != part.leader_epoch:
            part.leader_epoch = header.leader_epoch
            part.leader_epochs += 1
        if header.is_control:
            part.control += 1
            return
        count, first, last = header.record_count, read_first(header), read_last(header)
        part.batches += 1
        part.messages += count
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
        """The profile of what was added so far."""
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
        bytes=part.bytes,
        batches=part.batches,
        control_batches=part.control,
        batches_below_1kb=part.small,
        codecs=dict(part.codecs),
        first_time=to_time(part.span.first),
        last_time=to_time(part.span.last),
        not_idempotent=part.not_idempotent,
        not_idempotent_first=to_time(part.not_idempotent_span.first),
        not_idempotent_last=to_time(part.not_idempotent_span.last),
        log_append_time_batches=part.append_time,
        leader_epochs=part.leader_epochs,
        old_format=part.old_format,
        holes=part.holes,
        passed_over=tuple(part.passed_over),
    )
