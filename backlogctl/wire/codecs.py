"""What lies around the records of a batch: its 61 bytes of header, its checksum, its codec.

Kafka protocol guide, "Record Batch". Snappy is framed as Java's xerial library does it, LZ4 has
blocks that depend on none before them: Java reads no others (KIP-57).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import cramjam
import lz4.frame
import numpy as np
from crc32c import crc32c

from backlogctl.formats import format_bytes
from backlogctl.kafka.batches import CODECS, BatchesUnreadable, BatchHeader
from backlogctl.wire.kernels import Bytes

HEADER_BYTES = 61
# What lies before the checksum is not covered by it: a broker sets the offset and the epoch.
_CHECKED_FROM = 21
_CRC_AT = 17
_CODEC_MASK, _TRANSACTIONAL = 0x07, 0x10
_BEFORE = struct.Struct(">qiibI")
_AFTER = struct.Struct(">hiqqqhii")
_XERIAL = b"\x82SNAPPY\0"
_XERIAL_HEADER = _XERIAL + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK = 32 * 1024
_LARGEST = 256_000_000  # bytes of a batch, decompressed


def check_batch(batch: memoryview, subject: str) -> None:
    """Raises BatchesUnreadable: the checksum is not that of the bytes."""
    (stored,) = struct.unpack_from(">I", batch, _CRC_AT)
    if crc32c(batch[_CHECKED_FROM:]) != stored:
        (offset,) = struct.unpack_from(">q", batch)
        raise BatchesUnreadable(
            f"could not read the batch at offset {offset}: its checksum is wrong",
            subject=subject,
            hint="read the same offsets with kafka-dump-log on the leader: its log may be damaged",
        )


def make_batch(
    records: bytes | memoryview,
    *,
    codec: str,
    count: int,
    first_time: int,
    last_time: int,
    producer: tuple[int, int, int],
    is_transactional: bool = True,
) -> bytearray:
    """A batch of records that are compressed already, with CreateTime.

    Args:
        first_time, last_time: the first record's and the newest one's, milliseconds.
        producer: its id, its epoch, and the sequence number of the first record.
    """
    attributes = CODECS.index(codec) | (_TRANSACTIONAL if is_transactional else 0)
    batch = bytearray(HEADER_BYTES + len(records))
    batch[HEADER_BYTES:] = records
    times = (first_time, last_time)
    _AFTER.pack_into(batch, _CHECKED_FROM, attributes, count - 1, *times, *producer, count)
    checksum = crc32c(memoryview(batch)[_CHECKED_FROM:])
    _BEFORE.pack_into(batch, 0, 0, len(batch) - 12, -1, 2, checksum)
    return batch


# Codecs.


def compress(codec: str, records: bytes | memoryview) -> bytes | memoryview:
    """What `codec`, one of CODECS, makes of them."""
    return _COMPRESS[codec](records)


@dataclass(frozen=True, slots=True)
class Unsent:
    """A batch without its producer.

    Attributes:
        records: as `codec` makes them where `is_compressed`, else as they are.
    """

    topic: str
    partition: int
    records: bytes | memoryview
    count: int
    first_time: int
    last_time: int
    codec: str
    is_compressed: bool = False

    def pack(self) -> tuple[str, bytes | memoryview]:
        """The codec, and its records; none where they would get no smaller."""
        if self.is_compressed:
            return self.codec, self.records
        packed = compress(self.codec, self.records)
        is_smaller = len(packed) < len(self.records)
        return (self.codec, packed) if is_smaller else ("none", self.records)


class Arena:
    """Memory that batches are decompressed into, one after another; it grows as it must."""

    def __init__(self, size: int = 1 << 22) -> None:
        self.data: Bytes = np.empty(size, np.uint8)
        self.used = 0

    def clear(self) -> None:
        self.used = 0

    def add(self, header: BatchHeader, batch: memoryview, subject: str) -> tuple[int, int]:
        """Decompresses a batch's records; where they lie, `[start, end)`.
        Raises BatchesUnreadable.
        """
        body, start = batch[HEADER_BYTES:], self.used
        while True:
            try:
                count = _DECOMPRESS[header.codec](body, self.data.data[start:])
                break
            except KeyError:
                raise _refuse(header, subject, f"its codec is {header.codec}") from None
            except (cramjam.DecompressionError, ValueError) as error:
                # Too little room is told as any other failure.
                if len(self.data) - start >= _LARGEST:
                    raise _refuse(header, subject, _explain_codec(header, error)) from None
                self._grow()
        self.used += count
        return start, self.used

    def _grow(self) -> None:
        larger = np.empty(2 * len(self.data), np.uint8)
        larger[: self.used] = self.data[: self.used]
        self.data = larger


def _refuse(header: BatchHeader, subject: str, why: str) -> BatchesUnreadable:
    return BatchesUnreadable(
        f"could not read the batch at offset {header.base_offset}: {why}",
        subject=subject,
        hint="cancel: the group's own consumers may be able to read it; then plan again",
    )


def _explain_codec(header: BatchHeader, error: Exception) -> str:
    size = format_bytes(_LARGEST)
    return f"{header.codec}: {error}; it is damaged, or has more than {size} of records"


def _copy_into(body: memoryview, room: memoryview) -> int:
    room[: len(body)] = body
    return len(body)


def _unsnappy_into(body: memoryview, room: memoryview) -> int:
    if body[:8] != _XERIAL:
        return int(cramjam.snappy.decompress_raw_into(body, room))
    at, used = len(_XERIAL_HEADER), 0
    while at < len(body):
        (size,) = struct.unpack_from(">i", body, at)
        if size < 0 or size > len(body) - at - 4:
            raise ValueError("a block ends behind its batch")
        block = body[at + 4 : at + 4 + size]
        used += int(cramjam.snappy.decompress_raw_into(block, room[used:]))
        at += 4 + size
    return used


def _snappy(records: Any) -> bytes:
    view, parts = memoryview(records), [_XERIAL_HEADER]
    for at in range(0, len(view), _XERIAL_BLOCK):
        block = bytes(cramjam.snappy.compress_raw(view[at : at + _XERIAL_BLOCK]))
        parts += [struct.pack(">i", len(block)), block]
    return b"".join(parts)


def _lz4(records: Any) -> bytes:
    # Blocks of 64 KB, as Java's client.
    packed: bytes = lz4.frame.compress(records, block_linked=False, block_size=4, store_size=False)
    return packed


_COMPRESS: Mapping[str, Callable[[Any], bytes | memoryview]] = {
    "none": memoryview,
    "gzip": lambda records: memoryview(cramjam.gzip.compress(records)),
    "snappy": _snappy,
    "lz4": _lz4,
    "zstd": lambda records: memoryview(cramjam.zstd.compress(records, 3)),
}
_DECOMPRESS: Mapping[str, Callable[[memoryview, memoryview], int]] = {
    "none": _copy_into,
    "gzip": lambda body, room: int(cramjam.gzip.decompress_into(body, room)),
    "snappy": _unsnappy_into,
    "lz4": lambda body, room: int(cramjam.lz4.decompress_into(body, room)),
    "zstd": lambda body, room: int(cramjam.zstd.decompress_into(body, room)),
}
