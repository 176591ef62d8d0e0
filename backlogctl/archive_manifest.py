"""What an archive of offloaded messages holds: its files with their hashes, and what they cover.

An archive is a place of its own, a folder or a prefix in an object store:

    manifest.json                     this, written last: an archive without one is not finished
    partition=3/part-….parquet        messages in the order of their offsets
    _parts/                           what a writer that was killed goes on from
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from backlogctl.errors import StagingError
from backlogctl.values import hash_value

ARCHIVE_MANIFEST = "manifest.json"
ARCHIVE_PARTS = "_parts"
ARCHIVE_VERSION = 1


@dataclass(frozen=True, slots=True)
class ArchiveFile:
    """One file: messages of one partition, ascending. `path` is relative to the archive's place."""

    path: str
    partition: int
    count: int
    first_offset: int
    last_offset: int
    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class ArchivedRange:
    """Offsets `[start, end)` of a partition, of which `count` held a message that readers get.

    The times are the messages' own, the earliest and the latest; None where none has one.
    """

    partition: int
    start: int
    end: int
    count: int
    first_time: datetime | None
    last_time: datetime | None

    @property
    def holes(self) -> int:
        """Offsets without a message: control records, aborted, compacted away."""
        return self.end - self.start - self.count


@dataclass(frozen=True, slots=True)
class ArchiveManifest:
    """A finished archive. `partitions` is how many the topic had."""

    recovery_id: str
    stream: str
    cluster: str
    topic: str
    topic_id: str
    group: str
    partitions: int
    plan_hash: str
    made_by: str
    made_at: datetime
    ranges: tuple[ArchivedRange, ...]
    files: tuple[ArchiveFile, ...]

    @property
    def count(self) -> int:
        """Messages archived."""
        return sum(item.count for item in self.ranges)

    @property
    def bytes(self) -> int:
        """Bytes of the files."""
        return sum(file.bytes for file in self.files)

    def to_json(self) -> dict[str, Any]:
        value = {"version": ARCHIVE_VERSION, **asdict(self)}
        value["made_at"] = self.made_at.isoformat()
        value["ranges"] = [
            {**asdict(item), **{name: _write_time(getattr(item, name)) for name in _TIMES}}
            for item in self.ranges
        ]
        value["files"] = [asdict(file) for file in self.files]
        return value

    @classmethod
    def from_json(cls, value: Mapping[str, Any], subject: str = "") -> ArchiveManifest:
        """Reads back what `to_json` made.

        Args:
            subject: what an error is about: where the manifest was read.

        Raises:
            StagingError: it is of a later version, or it is no manifest.
        """
        try:
            version = int(value["version"])
            if version <= ARCHIVE_VERSION:
                rest = {name: item for name, item in value.items() if name != "version"}
                rest["made_at"] = datetime.fromisoformat(value["made_at"])
                rest["ranges"] = tuple(_read_range(item) for item in value["ranges"])
                rest["files"] = tuple(ArchiveFile(**item) for item in value["files"])
                return cls(**rest)
        except (KeyError, TypeError, ValueError) as error:
            raise StagingError(
                f"it is not the manifest of an archive: {type(error).__name__}",
                subject=subject,
                hint="name the place that an offload has written to",
            ) from error
        raise StagingError(
            f"the archive was made by a later version of backlogctl (format {version}, known up "
            f"to {ARCHIVE_VERSION})",
            subject=subject,
            hint="use the version that made it, or a later one",
        )

    def sha256(self) -> str:
        """What a plan keeps of the manifest, to know it again."""
        return hash_value(self.to_json())


_TIMES = ("first_time", "last_time")


def _write_time(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat()


def _read_range(value: Mapping[str, Any]) -> ArchivedRange:
    times = {name: value[name] and datetime.fromisoformat(value[name]) for name in _TIMES}
    return ArchivedRange(**{**value, **times})
