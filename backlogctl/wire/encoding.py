"""Arrow columns become record batches of one partition."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from backlogctl.wire.codecs import Unsent
from backlogctl.wire.kernels import (
    PLACE,
    RECORD_COLUMNS,
    TIME,
    Bytes,
    Numbers,
    encode_tails,
    measure_output,
)
from backlogctl.wire.routing import seal_records

# Of a length, at most.
_VARINT_BYTES = 5
_NO_OFFSETS = bytes(8)
Column = tuple[Numbers, Bytes, Bytes]


def encode_table(
    table: pa.Table, topic: str, partition: int, time_ms: int, codec: str, limit: int
) -> list[Unsent]:
    """Batches of all rows, in their order.

    Args:
        table: `key` and `value`, binary or NULL; `headers`, lists of (`name`, `value`).
        time_ms: of every message.
        limit: bytes of a batch, unless one message is larger.
    """
    tails, records = encode_rows(table)
    records[:, TIME], records[:, PLACE] = time_ms, 0
    out = np.empty(measure_output(records), np.uint8)
    sealed = seal_records(tails, records, out, topic, codec, 1, limit)
    return [replace(one, partition=partition) for one in sealed]


def encode_rows(table: pa.Table) -> tuple[Bytes, Numbers]:
    """What follows the offset delta of each row's record, and where it lies: AT and LENGTH of
    RECORD_COLUMNS are filled."""
    headers = table["headers"].combine_chunks()
    lists = headers.offsets.to_numpy().astype(np.int64)
    names, values = (read_column(headers.values.field(place)) for place in (0, 1))
    key, value = (read_column(table[name].combine_chunks()) for name in ("key", "value"))
    columns = [key, value, names, values]
    size = sum(int(at[-1] - at[0]) + _VARINT_BYTES * len(at) for at, _, _ in columns)
    tails = np.empty(size + _VARINT_BYTES * (len(lists) + 1), np.uint8)
    records = np.zeros((table.num_rows, RECORD_COLUMNS), np.int64)
    encode_tails(key, value, lists, names, values, tails, records)
    return tails, records


def read_column(column: Any) -> Column:
    """(offsets, data, whether it is no NULL), of the rows of the array alone."""
    array = column.cast(pa.large_binary())
    _, offsets, data = array.buffers()
    if not len(array):
        offsets = _NO_OFFSETS
    found = np.frombuffer(offsets, np.int64)[array.offset :][: len(array) + 1]
    known = array.is_valid().to_numpy(zero_copy_only=False).astype(np.uint8)
    return found, np.frombuffer(data or b"", np.uint8), known
