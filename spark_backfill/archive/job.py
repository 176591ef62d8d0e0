"""What is to be archived, and how far it is."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from itertools import pairwise, zip_longest
from typing import Any

from backlogctl.archive_manifest import ARCHIVE_MANIFEST, ARCHIVE_PARTS, ArchivedRange, ArchiveFile
from backlogctl.clock import read_millis
from backlogctl.errors import Refused, StagingError
from backlogctl.spark_backfill.archive.place import ArchivePlace
from backlogctl.values import OffsetRange

# Pieces: ranges cut so that each makes one file, and the records of those that are done.

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


def split_ranges(
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
                read_millis(min(firsts, default=None)),
                read_millis(max(lasts, default=None)),
            )
        )
    return tuple(summed)


FILE_BYTES = 128 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class ArchiveJob:
    """One archive to write.

    Attributes:
        partitions: how many the topic has.
        location: a folder or a URL of a Hadoop file system; empty, or with the beginnings of this
            very archive.
        ranges: below the last stable offsets; none overlaps another.
        properties: of the Kafka client, as librdkafka names them.
        bytes_per_message: as they are written; None where it is unknown.
        gone: of the ranges, what retention removed before it was archived: it is left out. Nothing
            of it is archived.
    """

    recovery_id: str
    stream: str
    cluster: str
    topic: str
    topic_id: str
    group: str
    partitions: int
    plan_hash: str
    made_by: str
    location: str
    ranges: tuple[OffsetRange, ...]
    properties: Mapping[str, str] = field(repr=False)
    bytes_per_message: float | None = None
    file_bytes: int = FILE_BYTES
    gone: tuple[OffsetRange, ...] = ()

    @property
    def left(self) -> tuple[OffsetRange, ...]:
        """The ranges without what is gone."""
        found = []
        for item in self.ranges:
            start = item.start
            for lost in sorted(self.gone, key=lambda r: (r.partition, r.start)):
                if lost.partition != item.partition or lost.end <= start or lost.start >= item.end:
                    continue
                if start < lost.start:
                    found.append(OffsetRange(item.partition, start, lost.start))
                start = lost.end
            if start < item.end:
                found.append(OffsetRange(item.partition, start, item.end))
        return tuple(found)

    def to_json(self) -> dict[str, Any]:
        """What makes it this archive and no other one."""
        ranges = sorted(self.ranges, key=lambda r: (r.partition, r.start))
        return {
            "recovery_id": self.recovery_id,
            "topic": self.topic,
            "topic_id": self.topic_id,
            "plan_hash": self.plan_hash,
            "ranges": [asdict(item) for item in ranges],
        }


@dataclass(frozen=True, slots=True)
class ArchiveProgress:
    """How far it is. What an earlier run had archived counts as done, not for the rate.

    Attributes:
        bytes: of the files.
        rate: messages a second of this run, reading back included; None before it is known.
        eta_seconds: until the end, at the rate so far; None before it is known.
        write_seconds: of this run, reading from the topic and writing.
        check_seconds: of this run, reading back and hashing.
    """

    messages: int
    bytes: int
    offsets: int
    offsets_total: int
    rate: float | None
    eta_seconds: float | None
    write_seconds: float = 0.0
    check_seconds: float = 0.0


# What is archived so far, as files beside the messages: a run that was killed goes on from it.
#
# _parts/job.json       which archive this is, who began it and when; written before anything else
# _parts/000001.json    the pieces of one batch, once their files were read back and hashed

_VERSION = 1
# Of the record of the job: they do not make it another archive.
_MADE = ("made_by", "made_at")
_JOB = f"{ARCHIVE_PARTS}/job.json"
# A writer that was killed before its first file had its name leaves no more than this.
_UNNAMED = f"{ARCHIVE_PARTS}/."
_PART = re.compile(rf"{ARCHIVE_PARTS}/(\d+)\.json")
# What Spark's writer and we ourselves leave when they are killed.
_DATA = re.compile(r"partition=\d+/[^/]+|_temporary/.+")


class Parts:
    """The records of one archive's parts.

    Raises:
        Refused: the place holds something else.
        StagingError: it cannot be used, or a record is not readable.
    """

    def __init__(self, place: ArchivePlace, job: ArchiveJob) -> None:
        self._place, self._identity = place, {"version": _VERSION, **job.to_json()}
        self._made_by = job.made_by
        self.pieces: list[Piece] = []
        self._number = 0
        files = place.list_files()
        if _JOB in files:
            found = place.read_json(_JOB)
            if isinstance(found, dict):
                found = {name: value for name, value in found.items() if name not in _MADE}
            if found != self._identity:
                raise Refused(
                    "the place holds the archive of another recovery, or of another plan",
                    subject=place.location,
                    hint="each recovery has a place of its own: see `archive` in backlog.yaml",
                )
        elif not all(path.startswith(_UNNAMED) for path in files):
            raise Refused(
                "the place is not empty, and what is there is no archive",
                subject=place.location,
                hint="name an empty folder, or one that is not there yet",
            )
        for path in sorted(files):
            if found := _PART.fullmatch(path):
                self._number = max(self._number, int(found[1]))
                self.pieces += self._read(path)

    def begin(self) -> None:
        """Makes the place, and deletes what no record names: a writer was killed, or failed."""
        if not self._place.exists(_JOB):
            self._place.make()
            made = {"made_by": self._made_by, "made_at": datetime.now(UTC).isoformat()}
            self._place.write_text(_JOB, _dump({**self._identity, **made}))
        self.clear()

    def read_made(self) -> tuple[str, datetime]:
        """Who began the archive, and when. Each run that ends it says the same: a manifest that is
        written twice is the same manifest."""
        found = self._place.read_json(_JOB)
        try:
            return str(found["made_by"]), datetime.fromisoformat(found["made_at"])
        except (KeyError, TypeError, ValueError) as error:
            raise StagingError(
                "it does not say who began the archive, and when",
                subject=self._place.name(_JOB),
                hint="it was changed by others, or another version wrote it",
            ) from error

    def add(self, pieces: Sequence[Piece]) -> None:
        """Their files are whole: from now on they are part of the archive."""
        self._number += 1
        value = {"version": _VERSION, "pieces": [piece.to_json() for piece in pieces]}
        self._place.write_text(f"{ARCHIVE_PARTS}/{self._number:06d}.json", _dump(value))
        self.pieces += pieces

    def list_new(self) -> dict[str, int]:
        """Files of messages that no record names, with their bytes."""
        known = {piece.file.path for piece in self.pieces if piece.file is not None}
        files = self._place.list_files()
        return {path: size for path, size in files.items() if is_data(path) and path not in known}

    def clear(self) -> None:
        """Deletes what no record names: a writer was killed, or failed, before it was whole.

        The records are read again: another run may have taken over meanwhile, and this one must
        not delete what that has archived.
        """
        records = [path for path in self._place.list_files(ARCHIVE_PARTS) if _PART.fullmatch(path)]
        theirs = {
            piece.file.path
            for path in records
            for piece in self._read(path)
            if piece.file is not None
        }
        for path in self.list_new():
            if path not in theirs:
                self._place.delete(path)
        with suppress(StagingError):  # a writer that was taken over from may still fill it
            self._place.delete("_temporary")

    def _read(self, path: str) -> list[Piece]:
        value = self._place.read_json(path)
        try:
            if value["version"] == _VERSION:
                return [Piece.from_json(item) for item in value["pieces"]]
        except (KeyError, TypeError):
            pass
        raise StagingError(
            "it is not a record of this version",
            subject=self._place.name(path),
            hint="use the version that wrote it, or cancel the offload and plan again",
        )


def is_data(path: str) -> bool:
    """Whether a file is, or was to become, one of messages."""
    return _DATA.fullmatch(path) is not None


def is_ours(path: str) -> bool:
    """Whether a file is an archive's."""
    return is_data(path) or path == ARCHIVE_MANIFEST or path.startswith(f"{ARCHIVE_PARTS}/")


def _dump(value: dict[str, Any]) -> str:
    return json.dumps(value, indent=1)
