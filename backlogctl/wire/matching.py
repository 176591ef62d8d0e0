"""Whether the log of a partition has the rows of Arrow tables, in their order, each once."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from backlogctl.kafka.batches import BatchHeader
from backlogctl.values import OffsetRange
from backlogctl.wire.codecs import Arena
from backlogctl.wire.encoding import encode_rows, read_column
from backlogctl.wire.kernels import (
    COUNT,
    PLACED,
    RECORD_COLUMNS,
    ROUND_ROBIN,
    TOTALS,
    Bytes,
    Numbers,
    crc_table,
    hash_texts,
    match_tails,
    place_records,
)
from backlogctl.wire.routing import refuse_records, unpack

_AT_ONCE = 1 << 25  # bytes of decompressed records; the last batch may reach beyond it
_NO_ROWS: tuple[Bytes, Numbers] = np.empty(0, np.uint8), np.empty((0, RECORD_COLUMNS), np.int64)


class RowMatcher:
    """Records are compared byte for byte from their key on, so are their headers; not their time.

    Args:
        tables: `key`, `value`, `headers`, as for `encode_table`.
        names: two headers; a record with neither of them is somebody else's, and passed over.
    """

    def __init__(self, tables: Iterator[pa.Table], names: tuple[str, str]) -> None:
        self._tables = tables
        first, second = (np.array(list(name.encode()), np.uint8) for name in names)
        self._names = first, second
        self._arena = Arena()
        self._tails, self._rows = _NO_ROWS

    def take(
        self,
        headers: tuple[BatchHeader, ...],
        data: tuple[memoryview, ...],
        place: OffsetRange,
        subject: str,
    ) -> bool:
        """Whether the records of these batches that lie in the range are the next rows.
        Raises BatchesUnreadable, and what `tables` raises.
        """
        batches = list(zip(headers, data, strict=True))
        while batches:
            table = unpack(self._arena, batches, subject, _AT_ONCE)
            records = np.empty((int(table[:, COUNT].sum()), RECORD_COLUMNS), np.int64)
            totals = np.zeros(TOTALS, np.int64)
            args = (ROUND_ROBIN, 1, 0, crc_table(), records, totals)
            bad = place_records(self._arena.data, table, place.start, place.end, *args)
            if bad >= 0:
                raise refuse_records(batches[bad][0], subject)
            if not self._match(records[: totals[PLACED]]):
                return False
            batches = batches[len(table) :]
        return True

    def is_at_end(self) -> bool:
        """No row is left."""
        return not len(self._rows) and not self._load()

    def _match(self, records: Numbers) -> bool:
        while True:
            args = (self._tails, self._rows, *self._names)
            count, rows = match_tails(self._arena.data, records, *args)
            records, self._rows = records[count:], self._rows[rows:]
            if not len(records):
                return True
            if len(self._rows) or not self._load():
                return False

    def _load(self) -> bool:
        """The next rows; whether there are any."""
        for table in self._tables:
            if table.num_rows:
                self._tails, self._rows = encode_rows(table)
                return True
        return False


def hash_column(table: pa.Table, name: str) -> Numbers:
    """A number of 64 bits for each text of a column; equal texts have equal ones."""
    offsets, data, _ = read_column(table[name].combine_chunks())
    hashes = np.empty(table.num_rows, np.int64)
    hash_texts(offsets, data, hashes)
    return hashes
