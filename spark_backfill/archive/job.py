"""What is to be archived, and how far it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from backlog.values import OffsetRange

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
