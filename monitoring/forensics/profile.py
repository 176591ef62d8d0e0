"""What the batch headers of a range of a topic show, as frozen values.

Times are those of the batches, in UTC: producers set them, unless the topic says LogAppendTime.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from backlog.values import OffsetRange


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
