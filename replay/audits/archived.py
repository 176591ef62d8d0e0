"""What offloads moved out of a topic: an audit reads it beside what the topic still has."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from backlog.ledger.archives import ArchiveRecord
from backlog.values import OffsetRange
from replay.injection.prior import intersect_ranges, subtract_ranges
from replay.recovery.workspace import Workspace

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_NO_END = 2**63 - 1


@dataclass(frozen=True, slots=True)
class ArchivedPart:
    """Ranges to read of one archive."""

    record: ArchiveRecord
    ranges: tuple[OffsetRange, ...]


@dataclass(frozen=True, slots=True)
class Archived:
    """What the archives of a topic have.

    Attributes:
        parts: newest archive first; each offset once, and none that the topic still has.
        begins: by partition, from which offset on the topic and the archives that join on to it
            have all there was.
    """

    parts: tuple[ArchivedPart, ...]
    begins: Mapping[int, int]

    def list_joined(self, offsets: int | None = None) -> tuple[ArchivedPart, ...]:
        """Without what lies before a stretch that is gone; of each partition at most its first
        `offsets` offsets."""
        kept = [
            OffsetRange(number, begin, _NO_END if offsets is None else begin + offsets)
            for number, begin in self.begins.items()
        ]
        cut = [(part.record, intersect_ranges(part.ranges, kept)) for part in self.parts]
        return tuple(ArchivedPart(record, ranges) for record, ranges in cut if ranges)


def list_archives(workspace: Workspace, topic_id: str) -> tuple[ArchiveRecord, ...]:
    """Of this topic, newest first.

    Read the log starts before: an offload writes its archive down before it deletes.
    """
    records = workspace.ledger.archives.list(with_purged=False)
    return tuple(one for one in reversed(records) if one.topic_id == topic_id)


def find_archived(records: Iterable[ArchiveRecord], lows: Mapping[int, int]) -> Archived:
    """What archives have that a topic lacks.

    Args:
        records: newest first.
        lows: log start offsets; the topic has all from there on.
    """
    taken = [OffsetRange(number, low, _NO_END) for number, low in lows.items()]
    parts = []
    for record in records:
        ranges = [OffsetRange(item.partition, item.start, item.end) for item in record.ranges]
        if left := subtract_ranges(ranges, taken):
            parts.append(ArchivedPart(record, left))
            taken += left
    begins = dict(lows)
    for item in sorted(taken, key=lambda one: -one.start):
        if item.end == begins.get(item.partition):
            begins[item.partition] = item.start
    return Archived(tuple(parts), begins)


def read_parts(spark: SparkSession, parts: Iterable[ArchivedPart]) -> DataFrame:
    """Their messages, in the columns of `ORIGINALS_SCHEMA` and in no order.

    Raises:
        StagingError: an archive is not there, or not the one that is on record.
    """
    from spark_backfill.archive.reading import read_archive
    from spark_backfill.archive.verification import read_manifest
    from spark_backfill.originals.frame import ORIGINALS_SCHEMA, as_originals
    from spark_backfill.spark.frames import make_empty

    messages = make_empty(spark, ORIGINALS_SCHEMA)
    for part in parts:
        at = part.record.location
        manifest = read_manifest(spark, at, part.record.manifest_sha256)
        messages = messages.unionAll(as_originals(read_archive(spark, at, manifest, part.ranges)))
    return messages
