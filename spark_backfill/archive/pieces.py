"""Pieces: ranges cut so that each makes one file, and the records of those that are done."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from itertools import pairwise, zip_longest
from typing import Any

from backlog.archive import ArchivedRange, ArchiveFile
from backlog.values import OffsetRange

# Of messages whose size is not known: 128 MB at 1 kB.
_UNKNOWN_SIZE_OFFSETS = 125_000
# Of small ones: more would only make a task that is long to do again.
_MAX_OFFSETS = 2_000_000


@dataclass(frozen=True, slots=True)
class Piece:
    """A range that was archived; `file` is None where it held no message that readers get.

    The times are milliseconds since 1970; None where no message has one.
    """

    partition: int
    start: int
    end: int
    count: int = 0
    first_time: int | None = None
    last_time: int | None = None
    file: ArchiveFile | None = None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Piece:
        file = value["file"] and ArchiveFile(**value["file"])
        return cls(**{**value, "file": file})


def cut_ranges(
    ranges: Iterable[OffsetRange], bytes_per_message: float | None, file_bytes: int
) -> list[OffsetRange]:
    """Pieces of about `file_bytes` each; neighbours in the list are of different partitions, so
    that all brokers send at once."""
    size = _UNKNOWN_SIZE_OFFSETS
    if bytes_per_message:
        size = max(1, min(_MAX_OFFSETS, round(file_bytes / bytes_per_message)))
    by_partition: dict[int, list[OffsetRange]] = {}
    for item in sorted(ranges, key=lambda r: (r.partition, r.start)):
        parts = -(-item.count // size) or 1
        edges = [item.start + item.count * each // parts for each in range(parts + 1)]
        found = by_partition.setdefault(item.partition, [])
        found += [OffsetRange(item.partition, a, b) for a, b in pairwise(edges) if b > a]
    turns = zip_longest(*by_partition.values())
    return [piece for turn in turns for piece in turn if piece is not None]


def find_rest(ranges: Iterable[OffsetRange], done: Iterable[Piece]) -> list[OffsetRange]:
    """What of the ranges no piece covers."""
    rest: list[OffsetRange] = []
    pieces = sorted(done, key=lambda p: (p.partition, p.start))
    for item in sorted(ranges, key=lambda r: (r.partition, r.start)):
        at = item.start
        for piece in pieces:
            if piece.partition != item.partition or piece.end <= at or piece.start >= item.end:
                continue
            if piece.start > at:
                rest.append(OffsetRange(item.partition, at, piece.start))
            at = max(at, piece.end)
        if at < item.end:
            rest.append(OffsetRange(item.partition, at, item.end))
    return rest


def list_overlaps(pieces: Iterable[Piece]) -> list[tuple[Piece, Piece]]:
    """Pieces that share an offset: it would be archived twice."""
    ordered = sorted(pieces, key=lambda p: (p.partition, p.start, p.end))
    pairs = pairwise(ordered)
    return [(a, b) for a, b in pairs if a.partition == b.partition and b.start < a.end]


def sum_ranges(ranges: Sequence[OffsetRange], pieces: Iterable[Piece]) -> tuple[ArchivedRange, ...]:
    """What came of each range."""
    found = list(pieces)
    summed = []
    for item in sorted(ranges, key=lambda r: (r.partition, r.start)):
        own = [
            p
            for p in found
            if p.partition == item.partition and item.start <= p.start and p.end <= item.end
        ]
        firsts = [p.first_time for p in own if p.first_time is not None]
        lasts = [p.last_time for p in own if p.last_time is not None]
        summed.append(
            ArchivedRange(
                item.partition,
                item.start,
                item.end,
                sum(p.count for p in own),
                _read_millis(min(firsts, default=None)),
                _read_millis(max(lasts, default=None)),
            )
        )
    return tuple(summed)


def _read_millis(value: int | None) -> datetime | None:
    if value is None:
        return None
    try:
        return datetime.fromtimestamp(value / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return None  # a producer may write any number
