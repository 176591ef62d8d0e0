"""Batches of a source partition become batches for the partitions of another topic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from backlogctl.kafka.batches import BatchesUnreadable, BatchHeader
from backlogctl.wire.codecs import HEADER_BYTES, Arena, Unsent, check_batch
from backlogctl.wire.kernels import (
    BATCH_COLUMNS,
    COUNT,
    CRC32,
    DATA_BYTES,
    FIRST_TIME,
    FOUND,
    FROM,
    LARGEST,
    LARGEST_AT,
    LAST_TIME,
    LEAST_RECORD_BYTES,
    MURMUR2,
    NOT_APPENDED,
    PLACE,
    PLACED,
    RECORD_COLUMNS,
    RECORDS,
    ROUND_ROBIN,
    TO,
    TO_PLACE,
    TOTALS,
    TURN,
    WRITTEN_COLUMNS,
    Bytes,
    Numbers,
    crc_table,
    measure_output,
    place_records,
    write_batches,
)

_HOW: Mapping[str, int] = {"murmur2": MURMUR2, "crc32": CRC32}
Batches = Sequence[tuple[BatchHeader, memoryview]]


@dataclass(frozen=True, slots=True)
class Routed:
    """What became of the records of some batches.

    Attributes:
        batches: to be sent; their memory is used again by the next `route`.
        counts: records by partition.
        bytes: of their keys and values.
        largest: a record's bytes and its source offset.
        taken: of how many source batches.
    """

    batches: list[Unsent]
    counts: Mapping[int, int]
    bytes: int
    largest: tuple[int, int]
    taken: int

    @property
    def count(self) -> int:
        return sum(self.counts.values())


class BatchRouter:
    """By `key`: each record is placed by the hash of its key, null keys take turns.
    `round_robin`: whole batches go to the partition that has least, as they are; what would be
    uneven then, or may not be passed on as it is, record by record.
    """

    def __init__(
        self,
        topic: str,
        order: Literal["key", "round_robin"],
        partitioner: str,
        partitions: int,
        *,
        counts: Mapping[int, int],
        turn: int,
        codec: str,
        limit: int,
    ) -> None:
        """Args:
        topic: the batches are for.
        counts: what each partition has of this source already.
        turn: how many records went before.
        codec: of batches that are written anew.
        limit: bytes of a batch, unless one record is larger.
        """
        self._how = _HOW[partitioner] if order == "key" else ROUND_ROBIN
        self._topic, self._partitions, self._turn = topic, partitions, turn
        self._codec, self._limit = codec, limit
        self._counts = np.array([counts.get(one, 0) for one in range(partitions)], np.int64)
        self._arena = Arena()
        self._out = np.empty(0, np.uint8)

    def route(
        self,
        batches: Batches,
        start: int,
        end: int,
        remaining: int,
        subject: str,
        at_once: int = 1 << 25,
    ) -> Routed:
        """The records with offsets in `[start, end)`, of as many batches as `at_once` allows.

        Args:
            remaining: about how many records are still to come, with these.
            at_once: bytes of decompressed records; the last batch may reach beyond it.

        Raises:
            BatchesUnreadable: a checksum is wrong, or records make no sense.
        """
        table = unpack(self._arena, batches, subject, at_once)
        batches = batches[: len(table)]
        records = np.empty((int(table[:, COUNT].sum()), RECORD_COLUMNS), np.int64)
        totals = np.zeros(TOTALS, np.int64)
        args = (self._partitions, self._turn, crc_table(), records, totals)
        bad = place_records(self._arena.data, table, start, end, self._how, *args)
        if bad >= 0:
            raise refuse_records(batches[bad][0], subject)
        records, self._turn = records[: totals[PLACED]], int(totals[TURN])
        whole: list[Unsent] = []
        if self._how == ROUND_ROBIN:
            whole, records = self._pass_on(
                batches, records, table[:, FOUND], (start, end), remaining
            )
        counts = np.bincount(records[:, PLACE], minlength=self._partitions)
        for one in whole:
            counts[one.partition] += one.count
        if self._how != ROUND_ROBIN:
            self._counts += counts
        return Routed(
            [*whole, *self._write(records)],
            {place: int(count) for place, count in enumerate(counts) if count},
            int(totals[DATA_BYTES]),
            (int(totals[LARGEST]), int(totals[LARGEST_AT])),
            len(table),
        )

    def _write(self, records: Numbers) -> list[Unsent]:
        size = measure_output(records)
        if size > len(self._out):
            self._out = np.empty(size + size // 4, np.uint8)
        told = (self._topic, self._codec, self._partitions, self._limit)
        return seal_records(self._arena.data, records, self._out, *told)

    def _pass_on(
        self,
        batches: Batches,
        records: Numbers,
        found: Numbers,
        bounds: tuple[int, int],
        remaining: int,
    ) -> tuple[list[Unsent], Numbers]:
        """Batches that go on as they are, and the records of all after them, placed evenly: what is
        written anew is sent last, and each partition keeps the order of the source."""
        level = (int(self._counts.sum()) + max(remaining, len(records))) // self._partitions
        whole: list[Unsent] = []
        kept: list[Numbers] = []
        at = 0
        for (header, batch), inside in zip(batches, found.tolist(), strict=True):
            place = int(self._counts.argmin())
            fits = self._counts[place] + header.record_count <= level
            if fits and not kept and self._passes(header, bounds):
                self._counts[place] += header.record_count
                whole.append(
                    Unsent(
                        self._topic,
                        place,
                        batch[HEADER_BYTES:],
                        header.record_count,
                        header.first_timestamp_ms,
                        header.max_timestamp_ms,
                        header.codec,
                        is_compressed=True,
                    )
                )
            elif inside:
                kept.append(records[at : at + inside])
            at += inside
        rest = np.concatenate(kept) if kept else records[:0]
        rest[:, PLACE] = self._spread(len(rest))
        return whole, rest

    def _passes(self, header: BatchHeader, bounds: tuple[int, int]) -> bool:
        """What a broker takes as it is (protocol P6)."""
        return (
            header.record_count == header.last_offset - header.base_offset + 1
            and bounds[0] <= header.base_offset
            and header.last_offset < bounds[1]
            and not header.is_log_append_time
            and header.first_timestamp_ms >= 0
            and header.size <= self._limit
        )

    def _spread(self, count: int) -> Numbers:
        """Partitions for so many records: those that have least are filled up first."""
        order = np.argsort(self._counts, kind="stable")
        have = self._counts[order]
        # Filled up to the next one's level, then to the one after: what all that would take.
        takes = np.arange(len(have)) * have - np.concatenate(([0], np.cumsum(have)[:-1]))
        filled = int(np.searchsorted(takes, count, side="right"))
        total = int(have[:filled].sum()) + count
        level, over = divmod(total, filled)
        share = np.maximum(level - have[:filled], 0)
        share[:over] += 1
        places = np.repeat(order[:filled], share)
        self._counts[order[:filled]] += share
        return places.astype(np.int64)


def unpack(arena: Arena, batches: Batches, subject: str, at_once: int) -> Numbers:
    """Decompresses batches for `place_records`, until there are `at_once` bytes; a row of
    BATCH_COLUMNS for each. Raises BatchesUnreadable.
    """
    arena.clear()
    table = np.empty((len(batches), BATCH_COLUMNS), np.int64)
    for number, (header, batch) in enumerate(batches):
        check_batch(batch, subject)
        lies = arena.add(header, batch, subject)
        if header.record_count * LEAST_RECORD_BYTES > lies[1] - lies[0]:
            raise refuse_records(header, subject)
        appended = header.max_timestamp_ms if header.is_log_append_time else NOT_APPENDED
        base = header.base_timestamp_ms
        offsets = header.base_offset, header.last_offset
        table[number] = (*lies, header.record_count, base, appended, *offsets, 0)
        if arena.used >= at_once:
            break
    return table[: number + 1]


def seal_records(
    data: Bytes, records: Numbers, out: Bytes, topic: str, codec: str, partitions: int, limit: int
) -> list[Unsent]:
    """Placed records of `data` as batches, in `out`. `limit`: bytes of one that a broker takes."""
    if not len(records):
        return []
    limit = max(1, limit - HEADER_BYTES)  # a broker counts it
    # Of two batches of a partition in turn, both have more than the limit together.
    most = partitions + 2 * (len(out) // limit + 1)
    rows = np.empty((most, WRITTEN_COLUMNS), np.int64)
    count = write_batches(data, records, partitions, limit, out, rows)
    return [
        Unsent(
            topic,
            row[TO_PLACE],
            out.data[row[FROM] : row[TO]],
            row[RECORDS],
            row[FIRST_TIME],
            row[LAST_TIME],
            codec,
        )
        for row in rows[:count].tolist()
    ]


def refuse_records(header: BatchHeader, subject: str) -> BatchesUnreadable:
    return BatchesUnreadable(
        f"could not read the batch at offset {header.base_offset}: its records make no sense",
        subject=subject,
    )
