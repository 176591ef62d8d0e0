"""Where a keyed message goes: the partitioners of Kafka's clients, whole columns at a time."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Hashes = npt.NDArray[np.uint32]

_M = 0x5BD1E995
_SEED = 0x9747B28C
_MASK = 0xFFFFFFFF


def place_murmur2(keys: pa.Array, partitions: int) -> npt.NDArray[np.int32]:
    """Java's default for keys: `(murmur2(key) & 0x7fffffff) % n`; -1 for a NULL key."""
    hashes = _hash_by_length(keys, _murmur2_matrix)
    placed = (hashes & np.uint32(0x7FFFFFFF)) % np.uint32(partitions)
    return _unplace_nulls(keys, placed)


def place_crc32(keys: pa.Array, partitions: int) -> npt.NDArray[np.int32]:
    """librdkafka's default for keys, `consistent`: `crc32(key) % n`; -1 for a NULL key."""
    hashes = np.fromiter(
        (zlib.crc32(key or b"") for key in keys.to_pylist()), dtype=np.uint32, count=len(keys)
    )
    return _unplace_nulls(keys, hashes % np.uint32(partitions))


PARTITIONERS: Mapping[str, Callable[[pa.Array, int], npt.NDArray[np.int32]]] = {
    "murmur2": place_murmur2,
    "crc32": place_crc32,
}


def _unplace_nulls(keys: pa.Array, placed: npt.NDArray[Any]) -> npt.NDArray[np.int32]:
    result: npt.NDArray[np.int32] = placed.astype(np.int32)
    if keys.null_count:
        result[keys.is_null().to_numpy(zero_copy_only=False)] = -1
    return result


def _hash_by_length(
    keys: pa.Array, hash_matrix: Callable[[npt.NDArray[np.uint8]], Hashes]
) -> Hashes:
    """Hashes keys of one length together, as the rows of one matrix of bytes."""
    raw = keys.cast(pa.large_binary())
    offsets = np.frombuffer(raw.buffers()[1], dtype=np.int64)
    offsets = offsets[raw.offset : raw.offset + len(raw) + 1]
    starts = offsets[:-1]
    lengths = np.diff(offsets)
    buffer = raw.buffers()[2]
    data = np.frombuffer(buffer, dtype=np.uint8) if buffer else np.empty(0, dtype=np.uint8)
    hashes = np.zeros(len(raw), dtype=np.uint32)
    for length in np.unique(lengths):
        rows = np.nonzero(lengths == length)[0]
        index = starts[rows][:, None] + np.arange(int(length), dtype=np.int64)[None, :]
        hashes[rows] = hash_matrix(data[index] if length else np.empty((len(rows), 0), np.uint8))
    return hashes


def _murmur2_matrix(matrix: npt.NDArray[np.uint8]) -> Hashes:
    rows, length = matrix.shape
    m = np.uint32(_M)
    h = np.full(rows, (_SEED ^ length) & _MASK, dtype=np.uint32)
    whole = length & ~3
    words = np.ascontiguousarray(matrix[:, :whole]).view("<u4")
    for column in range(whole // 4):
        k = words[:, column] * m
        k ^= k >> np.uint32(24)
        k *= m
        h *= m
        h ^= k
    if length & 3:
        for i in range(length & 3):
            h ^= matrix[:, whole + i].astype(np.uint32) << np.uint32(8 * i)
        h *= m
    h ^= h >> np.uint32(13)
    h *= m
    h ^= h >> np.uint32(15)
    return h
