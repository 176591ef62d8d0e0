"""What a plan of a redrive is made from, and what it comes to: frozen values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Any

from backlogctl.archive_manifest import ArchiveManifest
from backlogctl.config import SchemaRegistry, Source, Stream
from backlogctl.spark_backfill.request import PriorChunk
from backlogctl.values import OffsetRange


class Origin(StrEnum):
    """Where messages are read."""

    LOG = "log"  # the stream's own topic
    ARCHIVE = "archive"
    DEAD_LETTERS = "dlq"
    PASSED = "passed"  # what an expansion's consumers could not handle, kept as in an archive


@dataclass(frozen=True, slots=True)
class ArchiveSource:
    """An archive: its place, and what it holds; `damaged` are offsets that cannot be read."""

    location: str
    manifest: ArchiveManifest
    damaged: tuple[OffsetRange, ...] = ()


@dataclass(frozen=True, slots=True)
class RedriveRequest:
    """Everything a plan reads; nothing else is looked up.

    Attributes:
        topic, topic_id, partitions: where the messages are, or were when they were archived.
        ranges: what is read of it.
        since, until: of the messages' timestamps where they are read, so of dead letters the
            letters'; `until` is left out.
        keys: only messages of these keys; () for all.
        where: only messages for which this SQL expression is true; "" for all.
        stream_topic_id, stream_partitions: of the stream's topic, now.
        target: the topic that gets the messages.
        target_partitions, target_max_bytes: of that topic.
        max_replays: a message that was put back so often is left out; None takes all.
        takes_unnamed: dead letters that name no topic are the stream's; else they are left out.
        prior: chunks of earlier recoveries of the target that are committed.
        lost: ranges of the target that the group has lost: what was put back there is lost again.
        told: what to know of those, for the one who is told that there is nothing to put back.
        gaps: those that this closes, by id with their offsets in the source; None for one of what
            was put back and lost again. Of the log, what their consumer has handled since is left
            out. () where messages were chosen.
        waiting: of an archive only what lies in these ranges, or was lost again; None for all.
        sources: the configuration's, by name, for the consumer's own table.
        registries: the configuration's, by name, for `where`.
        starts: the target's log starts.
        may_lack_ids: id lists of earlier recoveries may be missing.
        origin: more to keep in the manifest.
    """

    recovery_id: str
    stream: Stream
    client_properties: Mapping[str, str] = field(repr=False)
    origin_kind: Origin
    topic: str
    topic_id: str
    partitions: int
    ranges: tuple[OffsetRange, ...]
    stream_topic_id: str
    stream_partitions: int
    target: str
    target_partitions: int
    target_max_bytes: int
    staging_root: Path
    archived: ArchiveSource | None = None
    since: datetime | None = None
    until: datetime | None = None
    keys: tuple[bytes, ...] = ()
    where: str = ""
    max_replays: int | None = None
    takes_unnamed: bool = False
    prior: tuple[PriorChunk, ...] = ()
    lost: tuple[OffsetRange, ...] = ()
    told: tuple[str, ...] = ()
    gaps: tuple[tuple[str, OffsetRange | None], ...] = ()
    waiting: tuple[OffsetRange, ...] | None = None
    sources: Mapping[str, Source] = field(default_factory=dict, repr=False)
    registries: Mapping[str, SchemaRegistry] = field(default_factory=dict, repr=False)
    starts: Mapping[int, int] = field(default_factory=dict)
    may_lack_ids: bool = False
    origin: Mapping[str, Any] = field(default_factory=dict)

    @property
    def directory(self) -> Path:
        return self.staging_root / self.recovery_id

    @property
    def is_unhandled(self) -> bool:
        """Whether these are messages of the log that nobody handled."""
        return bool(self.gaps) and self.origin_kind is Origin.LOG


@dataclass(frozen=True, slots=True)
class RedriveCounts:
    """Totals of a plan: read = filtered + elsewhere + unnamed + empty + repeated + put_back
    + handled + replays + quarantined + staged.

    Attributes:
        filtered: left out by `--key` and `--where`, or in no gap.
        elsewhere: dead letters of other topics.
        unnamed: dead letters that name no topic, and are not allowed.
        empty: dead letters that do not hold their message, only its place.
        repeated: dead letters, or copies, of one message: the newest of them counts.
        put_back: by earlier recoveries.
        handled: in the consumer's own table by now, of messages that were found unhandled.
        replays: put back too often already.
        quarantined: larger than the target allows.
        came_back: dead letters that had been put back before; however they count above.
        corrected: of `repeated`, dead letters with another value than the one that counts.
        unreadable: dead letters that name the stream's topic, but no place in it that can be read.
        assumed: dead letters that name no topic, and are allowed; however they count above.
        bare: of `staged`, dead letters without the headers of their message.
    """

    read: int = 0
    filtered: int = 0
    elsewhere: int = 0
    repeated: int = 0
    put_back: int = 0
    handled: int = 0
    replays: int = 0
    quarantined: int = 0
    staged: int = 0
    came_back: int = 0
    unreadable: int = 0
    unnamed: int = 0
    empty: int = 0
    corrected: int = 0
    assumed: int = 0
    bare: int = 0


@dataclass(frozen=True, slots=True)
class SourcePartition:
    """A partition that messages are read of: the offsets, how many matched, how many are staged.

    The times are those of what matched, None where nothing did, or its times are unknown.
    """

    partition: int
    start: int
    end: int
    matched: int = 0
    staged: int = 0
    first_time: str | None = None
    last_time: str | None = None


@dataclass(frozen=True, slots=True)
class Named:
    """How many messages have a name: of a topic, an error's class, a header."""

    name: str
    count: int


@dataclass(frozen=True, slots=True)
class RedriveOutcome:
    """A finished plan.

    Attributes:
        slots: messages for each partition of the target.
        errors: dead letters that are staged, by the class of their error; the commonest first.
        elsewhere: dead letters of other topics, by topic.
        hops: dead letters that failed more than once, by the topics that they name, the first
            first.
        stripped: headers that are not sent again, and of how many messages.
        left_open: of `gaps` those with a message that is not put back: too large, too often.
        uncertain: messages that were put back before, and that the group may have read since.
    """

    recovery_id: str
    counts: RedriveCounts
    partitions: tuple[SourcePartition, ...]
    slots: Mapping[int, int]
    errors: tuple[Named, ...]
    elsewhere: tuple[Named, ...]
    stripped: tuple[Named, ...]
    warnings: tuple[str, ...]
    manifest_sha256: str
    chunks: int
    bytes: int
    left_open: tuple[str, ...] = ()
    uncertain: int = 0
    hops: tuple[Named, ...] = ()
