"""The compiled inner loops: records of decompressed batches, placed by key and written anew.

Format 2 of a record (Kafka protocol guide, "Record"): length, attributes, timestamp delta, offset
delta, key, value, headers; lengths and deltas are zigzag varints. Only what changes is written
anew: the part from the key's length on is copied as it is.

Every read is bounded by its batch, so bytes that make no sense end in an error, never elsewhere.

Each kernel has one signature, and is loaded from numba's cache when this module is imported: a
third of a second, or ten and more where the cache has none. The cache lies beside this file, or in
`NUMBA_CACHE_DIR`; numba checks it against this file and this processor. What is called later never
waits for a compiler: an open transaction would time out meanwhile.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

Bytes = npt.NDArray[np.uint8]
Numbers = npt.NDArray[np.int64]

# Columns of a batch to be read: bytes `[start, end)`; how many were placed is filled.
START, END, COUNT, BASE_TIME, APPEND_TIME, BASE_OFFSET, LAST_OFFSET, FOUND, BATCH_COLUMNS = range(9)
# Columns of a record that was placed.
AT, LENGTH, TIME, PLACE, RECORD_COLUMNS = range(5)
# Columns of a batch that was written: bytes `[from, to)`, and what its header needs.
TO_PLACE, FROM, TO, RECORDS, FIRST_TIME, LAST_TIME, WRITTEN_COLUMNS = range(7)
# What `place_records` has found: see there.
PLACED, DATA_BYTES, LARGEST, LARGEST_AT, TURN, TOTALS = range(6)
NOT_APPENDED: Final = -1  # an APPEND_TIME: each record has its own
ROUND_ROBIN, MURMUR2, CRC32 = range(3)
LEAST_RECORD_BYTES = 7
# Of a record's own length, attributes, and both deltas, at most.
_HEAD_BYTES = 24
_MASK = 0xFFFFFFFF
_M = 0x5BD1E995
_SEED = 0x9747B28C
_CRC = np.array([zlib.crc32(bytes([one ^ 0xFF])) ^ 0xFF000000 for one in range(256)], np.int64)

# Of arguments. What is only read may be read-only, as Arrow's buffers are; numba takes a writable
# array for a read-only one.
_BYTES, _NUMBERS, _ROWS = types.uint8[::1], types.int64[::1], types.int64[:, ::1]
_READ_BYTES, _READ_NUMBERS, _READ_ROWS = (
    types.Array(one.dtype, one.ndim, one.layout, readonly=True) for one in (_BYTES, _NUMBERS, _ROWS)
)
_COLUMN = types.Tuple((_READ_NUMBERS, _READ_BYTES, _READ_BYTES))
_INT = types.int64


@intrinsic
def _copy(typing: Any, target: Any, to: Any, source: Any, at: Any, count: Any) -> Any:
    """memcpy; a loop over bytes takes ten times as long."""
    signature = types.void(target, types.int64, source, types.int64, types.int64)

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        ends = [
            context.make_array(signature.args[place])(context, builder, values[place]).data
            for place in (0, 2)
        ]
        places = [builder.gep(ends[0], [values[1]]), builder.gep(ends[1], [values[3]])]
        cgutils.raw_memcpy(builder, *places, values[4], 1)
        return context.get_dummy_value()

    return signature, generate


def _kept(*arguments: Any) -> Callable[[Any], Any]:
    """Compiled for these arguments alone, and kept in numba's cache where there is a place for one.

    With others numba would compile it again, when it is called.
    """

    def compile_(kernel: Any) -> Any:
        try:
            return njit([arguments], nogil=True, cache=True)(kernel)
        except Exception:  # noqa: BLE001 - no place for it, a full disk, or what is kept is damaged
            return njit([arguments], nogil=True)(kernel)

    return compile_


@njit(nogil=True, inline="never")
def _murmur2(data, at, count):  # type: ignore[no-untyped-def]
    """As Java's `Utils.murmur2`, made positive."""
    hashed = (_SEED ^ count) & _MASK
    end = at + (count & ~3)
    while at < end:
        word = (
            np.int64(data[at])
            | np.int64(data[at + 1]) << 8
            | np.int64(data[at + 2]) << 16
            | np.int64(data[at + 3]) << 24
        )
        word = (word * _M) & _MASK
        word ^= word >> 24
        word = (word * _M) & _MASK
        hashed = ((hashed * _M) & _MASK) ^ word
        at += 4
    rest = count & 3
    if rest == 3:
        hashed ^= np.int64(data[at + 2]) << 16
    if rest >= 2:
        hashed ^= np.int64(data[at + 1]) << 8
    if rest >= 1:
        hashed ^= np.int64(data[at])
        hashed = (hashed * _M) & _MASK
    hashed ^= hashed >> 13
    hashed = (hashed * _M) & _MASK
    hashed ^= hashed >> 15
    return hashed & 0x7FFFFFFF


@njit(nogil=True, inline="never")
def _crc32(data, at, count, table):  # type: ignore[no-untyped-def]
    """As zlib's."""
    crc = np.int64(_MASK)
    for place in range(at, at + count):
        crc = table[(crc ^ data[place]) & 0xFF] ^ (crc >> 8)
    return crc ^ _MASK


@njit(nogil=True)
def _read_varint(data, at, end):  # type: ignore[no-untyped-def]
    """The number, and where it ends; -1 where it does not."""
    value = np.int64(0)
    shift = 0
    while at < end and shift < 70:
        byte = np.int64(data[at])
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return ((value >> 1) & 0x7FFFFFFFFFFFFFFF) ^ -(value & 1), at
        shift += 7
    return np.int64(0), np.int64(-1)


@njit(nogil=True)
def _measure_varint(number):  # type: ignore[no-untyped-def]
    rest = np.uint64((number << 1) ^ (number >> 63))
    count = 1
    while rest >= np.uint64(0x80):
        rest >>= np.uint64(7)
        count += 1
    return count


@njit(nogil=True)
def _write_varint(out, at, number):  # type: ignore[no-untyped-def]
    rest = np.uint64((number << 1) ^ (number >> 63))
    while rest >= np.uint64(0x80):
        out[at] = np.uint8((rest & np.uint64(0x7F)) | np.uint64(0x80))
        at += 1
        rest >>= np.uint64(7)
    out[at] = np.uint8(rest)
    return at + 1


@njit(nogil=True)
def _skip_headers(data, at, end):  # type: ignore[no-untyped-def]
    """Where a record's headers end; -1 where they make no sense."""
    count, at = _read_varint(data, at, end)
    if at < 0 or count < 0 or count > end - at:
        return np.int64(-1)
    for _ in range(count):
        name, at = _read_varint(data, at, end)
        if at < 0 or name < 0 or name > end - at:
            return np.int64(-1)
        value, at = _read_varint(data, at + name, end)
        if at < 0 or value < -1 or value > end - at:
            return np.int64(-1)
        at += max(value, 0)
    return at


@_kept(
    *(_READ_BYTES, _ROWS, _INT, _INT, _INT, _INT, _INT),
    *(_READ_NUMBERS, _ROWS, _NUMBERS),
)
def place_records(data, batches, start, end, how, partitions, turn, crc, records, totals):  # type: ignore[no-untyped-def]
    """Finds the records with offsets in `[start, end)`, and chooses a partition for each.

    Args:
        data: the decompressed records of all `batches`, whose rows have BATCH_COLUMNS.
        how: MURMUR2 or CRC32 of the key, modulo `partitions`; a null key, and ROUND_ROBIN, take
            the next one of `turn`.
        records: is filled, a row of RECORD_COLUMNS for each.
        totals: is filled: how many, the bytes of their keys and values, the size and the offset of
            the largest, and the next turn.

    Returns:
        -1, or the batch that makes no sense.
    """
    placed = size = largest = np.int64(0)
    largest_at = np.int64(-1)
    for number in range(batches.shape[0]):
        at, last = batches[number, START], batches[number, END]
        before, reached = placed, batches[number, BASE_OFFSET] - 1
        for _ in range(batches[number, COUNT]):
            length, at = _read_varint(data, at, last)
            if at < 0 or length < 1 or length > last - at:
                return number
            after = at + length
            delta, at = _read_varint(data, at + 1, after)
            if at < 0:
                return number
            offset, at = _read_varint(data, at, after)
            if at < 0:
                return number
            offset += batches[number, BASE_OFFSET]
            if offset <= reached or offset > batches[number, LAST_OFFSET]:
                return number
            reached = offset
            tail = at
            key, at = _read_varint(data, at, after)
            if at < 0 or key < -1 or key > after - at:
                return number
            key_at = at
            at += max(key, 0)
            value, at = _read_varint(data, at, after)
            if at < 0 or value < -1 or value > after - at:
                return number
            if _skip_headers(data, at + max(value, 0), after) != after:
                return number
            if start <= offset < end:
                if key >= 0 and how == MURMUR2:
                    place = _murmur2(data, key_at, key) % partitions
                elif key >= 0 and how == CRC32:
                    place = _crc32(data, key_at, key, crc) % partitions
                else:
                    place = turn % partitions
                    turn += 1
                appended = batches[number, APPEND_TIME]
                row = records[placed]
                row[AT], row[LENGTH], row[PLACE] = tail, after - tail, place
                row[TIME] = batches[number, BASE_TIME] + delta if appended < 0 else appended
                placed += 1
                size += max(key, 0) + max(value, 0)
                if after - tail > largest:
                    largest, largest_at = after - tail, offset
            at = after
        if at != last:
            return number
        batches[number, FOUND] = placed - before
    totals[PLACED], totals[DATA_BYTES], totals[TURN] = placed, size, turn
    totals[LARGEST], totals[LARGEST_AT] = largest, largest_at
    return np.int64(-1)


@_kept(_READ_BYTES, _READ_ROWS, _INT, _INT, _BYTES, _ROWS)
def write_batches(data, records, partitions, limit, out, rows):  # type: ignore[no-untyped-def]
    """Writes placed records into batches, each partition's in their order; none has more than
    `limit` bytes unless a single record does.

    Args:
        out: at least the sum of the records' lengths, and `HEAD_BYTES` for each.
        rows: is filled, a row of WRITTEN_COLUMNS for each batch; those of a partition in order.

    Returns:
        How many batches.
    """
    begin = np.zeros(partitions + 1, np.int64)
    for number in range(records.shape[0]):
        begin[records[number, PLACE] + 1] += records[number, LENGTH] + _HEAD_BYTES
    for place in range(partitions):
        begin[place + 1] += begin[place]
    open_ = np.zeros((partitions, WRITTEN_COLUMNS), np.int64)
    for place in range(partitions):
        open_[place, TO_PLACE] = place
        open_[place, FROM] = open_[place, TO] = begin[place]
    written = 0
    for number in range(records.shape[0]):
        record = records[number]
        one = open_[record[PLACE]]
        length, time = record[LENGTH], record[TIME]
        if one[RECORDS] > 0 and one[TO] - one[FROM] + length + _HEAD_BYTES > limit:
            rows[written] = one
            written += 1
            one[FROM], one[RECORDS] = one[TO], 0
        if one[RECORDS] == 0:
            one[FIRST_TIME] = one[LAST_TIME] = time
        one[LAST_TIME] = max(one[LAST_TIME], time)
        delta, count = time - one[FIRST_TIME], one[RECORDS]
        at = one[TO]
        head = 1 + _measure_varint(delta) + _measure_varint(count)
        at = _write_varint(out, at, head + length)
        out[at] = 0  # attributes: none is defined
        at = _write_varint(out, at + 1, delta)
        at = _write_varint(out, at, count)
        _copy(out, at, data, record[AT], length)
        one[TO], one[RECORDS] = at + length, count + 1
    for place in range(partitions):
        if open_[place, RECORDS] > 0:
            rows[written] = open_[place]
            written += 1
    return written


@njit(nogil=True)
def _write_bytes(out, at, column, row):  # type: ignore[no-untyped-def]
    offsets, data, known = column
    if not known[row]:
        return _write_varint(out, at, np.int64(-1))
    count = offsets[row + 1] - offsets[row]
    at = _write_varint(out, at, count)
    _copy(out, at, data, offsets[row], count)
    return at + count


@_kept(_COLUMN, _COLUMN, _READ_NUMBERS, _COLUMN, _COLUMN, _BYTES, _ROWS)
def encode_tails(key, value, lists, name, header, out, records):  # type: ignore[no-untyped-def]
    """Writes what follows a record's offset delta, row after row of Arrow columns.

    Args:
        key, value, name, header: columns of bytes, each (offsets, data, whether it is no NULL).
        lists: where each row's headers begin among all, and the end of the last.
        out: `measure_tails` bytes.
        records: AT and LENGTH are filled.
    """
    at = 0
    for row in range(records.shape[0]):
        records[row, AT] = at
        at = _write_bytes(out, at, key, row)
        at = _write_bytes(out, at, value, row)
        at = _write_varint(out, at, lists[row + 1] - lists[row])
        for place in range(lists[row], lists[row + 1]):
            at = _write_bytes(out, at, name, place)
            at = _write_bytes(out, at, header, place)
        records[row, LENGTH] = at - records[row, AT]


@njit(nogil=True)
def _differ(one, at, other, place, count):  # type: ignore[no-untyped-def]
    """Whether so many bytes do; without an early end, which many can be compared at once."""
    found = np.uint8(0)
    for step in range(count):
        found |= one[at + step] ^ other[place + step]
    return found != 0


@njit(nogil=True)
def _is_named(data, at, end, name):  # type: ignore[no-untyped-def]
    """Whether a tail that `place_records` has found has such a header."""
    for _ in range(2):
        count, at = _read_varint(data, at, end)
        at += max(count, 0)
    headers, at = _read_varint(data, at, end)
    for _ in range(headers):
        count, at = _read_varint(data, at, end)
        if count == name.shape[0] and not _differ(data, at, name, 0, count):
            return True
        count, at = _read_varint(data, at + count, end)
        at += max(count, 0)
    return False


@_kept(_READ_BYTES, _READ_ROWS, _READ_BYTES, _READ_ROWS, _READ_BYTES, _READ_BYTES)
def match_tails(data, records, wanted, rows, first, second):  # type: ignore[no-untyped-def]
    """Goes through placed records as long as each is the next of the wanted ones, byte for byte
    from its key on, or has neither of two headers.

    Args:
        wanted, rows: what `encode_tails` wrote.

    Returns:
        Of how many records, and of how many rows.
    """
    row = 0
    for number in range(records.shape[0]):
        at, length = records[number, AT], records[number, LENGTH]
        if (
            row < rows.shape[0]
            and rows[row, LENGTH] == length
            and not _differ(data, at, wanted, rows[row, AT], length)
        ):
            row += 1
        elif _is_named(data, at, at + length, first) or _is_named(data, at, at + length, second):
            return number, row
    return records.shape[0], row


@_kept(_READ_NUMBERS, _READ_BYTES, _NUMBERS)
def hash_texts(offsets, data, out):  # type: ignore[no-untyped-def]
    """FNV-1a of 64 bits of each text (Fowler, Noll, Vo)."""
    for row in range(out.shape[0]):
        hashed = np.uint64(0xCBF29CE484222325)
        for at in range(offsets[row], offsets[row + 1]):
            hashed = (hashed ^ np.uint64(data[at])) * np.uint64(0x100000001B3)
        out[row] = np.int64(hashed)


def measure_output(records: Numbers) -> int:
    """Bytes that `write_batches` may need for these records."""
    return int(records[:, LENGTH].sum()) + _HEAD_BYTES * len(records)


def crc_table() -> Numbers:
    """For `place_records`."""
    return _CRC
