"""Headers of record batches, read from the raw bytes of a fetch answer.

A batch of format 2 ("magic" 2; Kafka protocol guide, "Record Batch") begins with 61 bytes that
are never compressed. Its records and its checksum are passed over; of control batches the kind is
read.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import NamedTuple

from backlogctl.errors import KafkaFailure

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
_SEQUENCES = 2**31
_HEADER = struct.Struct(">qiibIhiqqqhii")
# Offset and size, then what both formats have at the same place: the format's number.
_LENGTH = struct.Struct(">qi")
_PREFIX_BYTES = 12
_MAGIC_AT = 16
_LEAST_OLD = 14 + _PREFIX_BYTES
_CODEC, _LOG_APPEND_TIME, _TRANSACTIONAL, _CONTROL, _DELETE_HORIZON = 7, 8, 16, 32, 64
_ENDS = {b"\0\0": False, b"\0\1": True}  # ControlRecordType: abort, commit
_MORE = 0x80  # of a varint's byte: another one follows
_CODEC_OF = (*CODECS, "unknown", "unknown", "unknown")


class BatchesUnreadable(KafkaFailure):
    """Bytes of a partition's log are not record batches."""

    code = "batches_unreadable"


class BatchHeader(NamedTuple):
    """One batch of format 2. A tuple, since a topic has millions of them.

    Attributes:
        last_offset: that of its last record when it was written; after compaction it may have
            fewer records, or none.
        size: bytes as they lie in the log, with the header.
        codec: one of CODECS, or "unknown".
        producer_id: -1 where the producer is not idempotent (KIP-98); then `producer_epoch` and
            `base_sequence` are -1 too.
        base_timestamp_ms: the records' times are counted from it; `has_delete_horizon`: a cleaner
            has set it (KIP-534).
        max_timestamp_ms: the newest record's; the broker's clock with `is_log_append_time`.
        record_count: records that are left.
        is_commit: of a control batch, whether it ends its producer's transaction with a commit;
            None where it is no end of one.
    """

    base_offset: int
    last_offset: int
    size: int
    codec: str
    is_transactional: bool
    is_control: bool
    leader_epoch: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    base_timestamp_ms: int
    max_timestamp_ms: int
    is_log_append_time: bool
    record_count: int
    is_commit: bool | None = None
    has_delete_horizon: bool = False

    @property
    def first_timestamp_ms(self) -> int:
        """As the producer set it; -1 where it is unknown."""
        return -1 if self.has_delete_horizon else self.base_timestamp_ms

    @property
    def last_sequence(self) -> int:
        """The sequence number of its last record; -1 without a producer id."""
        if self.base_sequence < 0:
            return -1
        return add_sequence(self.base_sequence, self.last_offset - self.base_offset)


def add_sequence(sequence: int, count: int) -> int:
    """A sequence number so many records on: after 2**31 - 1 comes 0."""
    return (sequence + count) % _SEQUENCES


@dataclass(frozen=True, slots=True)
class Scan:
    """What the bytes hold.

    Attributes:
        old_format: entries of format 0 or 1, which have neither producer nor sequence.
        next_offset: the one after the last whole entry; None where there is none.
        is_cut: the bytes end inside an entry, as brokers end an answer.
        places: at which byte each batch begins.
    """

    headers: tuple[BatchHeader, ...]
    old_format: int
    next_offset: int | None
    is_cut: bool
    places: tuple[int, ...] = ()


def scan_batches(buffer: bytes | bytearray | memoryview, subject: str = "", at: int = 0) -> Scan:
    """The headers of all whole batches, in the order of the log.

    Args:
        buffer: the `records` of one partition of a fetch answer.
        subject: `topic orders[2]`, for errors.
        at: the offset that was asked for, for errors about the first entry.

    Raises:
        BatchesUnreadable: it is no log; says near which offset.
    """
    view = memoryview(buffer)
    end, position, last, old = len(view), 0, -1, 0
    headers: list[BatchHeader] = []
    places: list[int] = []
    append, unpack = headers.append, _HEADER.unpack_from
    while end - position > _MAGIC_AT:
        magic = view[position + _MAGIC_AT]
        if magic != 2:
            offset, length = _LENGTH.unpack_from(view, position)
            if magic > 2 or length < _LEAST_OLD - _PREFIX_BYTES or offset <= last:
                raise _refuse(subject, max(at, last + 1), f"format {magic}, {length} B")
            if position + _PREFIX_BYTES + length > end:
                break
            # A compressed entry has the offset of the last message in it.
            last, old = offset, old + 1
            position += _PREFIX_BYTES + length
            continue
        if end - position < _HEADER.size:
            break
        (
            base,
            length,
            leader_epoch,
            _,
            _,
            attributes,
            delta,
            first,
            newest,
            producer,
            epoch,
            sequence,
            count,
        ) = unpack(view, position)
        size = length + _PREFIX_BYTES
        if size < _HEADER.size or base <= last or delta < 0 or not 0 <= count <= delta + 1:
            told = f"{size} B, offsets from {base}, {count} records"
            raise _refuse(subject, max(at, last + 1), told)
        if position + size > end:
            break
        last = base + delta
        append(
            BatchHeader(
                base,
                last,
                size,
                _CODEC_OF[attributes & _CODEC],
                attributes & _TRANSACTIONAL != 0,
                attributes & _CONTROL != 0,
                leader_epoch,
                producer,
                epoch,
                sequence,
                first,
                newest,
                attributes & _LOG_APPEND_TIME != 0,
                count,
                _read_end(view[position + _HEADER.size : position + size], attributes),
                attributes & _DELETE_HORIZON != 0,
            )
        )
        places.append(position)
        position += size
    next_offset = last + 1 if last >= 0 else None
    return Scan(tuple(headers), old, next_offset, position < end, tuple(places))


def _read_end(records: memoryview, attributes: int) -> bool | None:
    """Of a control batch, whose one record is never compressed: its key is a version and a type."""
    if not attributes & _CONTROL:
        return None
    at = 0
    for is_varint in (
        True,
        False,
        True,
        True,
        True,
    ):  # length, attributes, time, offset, key's length
        while is_varint and at < len(records) and records[at] & _MORE:
            at += 1
        at += 1
    return _ENDS.get(bytes(records[at + 2 : at + 4]))


def _refuse(subject: str, offset: int, found: str) -> BatchesUnreadable:
    return BatchesUnreadable(
        f"could not read the batch at offset {offset}: its header makes no sense ({found})",
        subject=subject,
        hint="read the same offsets with kafka-dump-log on the leader: its log may be damaged",
    )
