"""What `--from` means: a topic that is there, or an archive that is on record and whole."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from backlogctl.archive_manifest import ArchivedRange, ArchiveFile, ArchiveManifest
from backlogctl.clock import Deadline
from backlogctl.config import Stream
from backlogctl.errors import Refused, UsageError
from backlogctl.formats import format_count, format_moment
from backlogctl.kafka.admin import TopicInfo, describe_topic
from backlogctl.kafka.errors import TopicMissing
from backlogctl.ledger import ArchiveRecord
from backlogctl.replay.consumers.copy_group import PASSED_FOLDER, REWOUND, list_passed
from backlogctl.replay.engine.archives import ARCHIVE
from backlogctl.replay.engine.kind import Workspace
from backlogctl.replay.engine.values import Fact
from backlogctl.replay.injection.archived import ArchivedGap
from backlogctl.replay.injection.target import Target
from backlogctl.replay.injection.unprocessed import WORD
from backlogctl.replay.kinds.redrive.plan import (
    ALLOW_DAMAGED,
    PlannedSource,
    RedriveOptions,
    RedrivePlan,
)
from backlogctl.replay.observe.snapshot import StreamSnapshot
from backlogctl.replay.present.messages import Mask
from backlogctl.spark_backfill.existing.labels import read_errors
from backlogctl.spark_backfill.existing.request import ArchiveSource, Origin
from backlogctl.values import Gap, OffsetRange
from backlogctl_delivery.visible import escape_name

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SECONDS = 30.0
_SHOWN_RANGES = 5
_WAYS = (
    "`--from log`, `--from dlq:TOPIC`, `--from archive:R`, `--from passed:R` or "
    "`--from unprocessed`"
)


@dataclass(frozen=True, slots=True)
class RedriveSource:
    """A source; its archive's record where it is one, or what was passed."""

    planned: PlannedSource
    archive: ArchiveRecord | None = None
    passed: ArchiveSource | None = None


def name_letters(said: str | None) -> str | None:
    """The topic of dead letters that `--from` names, where it names one."""
    word, _, name = (said or "").partition(":")
    return name or None if word == Origin.DEAD_LETTERS else None


def find_source(
    workspace: Workspace, stream: Stream, said: str | None, topic: TopicInfo
) -> RedriveSource:
    """Where the messages are.

    Args:
        said: what `--from` says.
        topic: the stream's.

    Raises:
        UsageError: it is not said, or there is no such topic or archive.
        Refused: the archive is of another topic, or is gone.
    """
    word, _, name = (said or "").partition(":")
    if word in (Origin.LOG, WORD) and not name:
        return RedriveSource(
            PlannedSource(
                origin=Origin.LOG,
                topic=topic.name,
                topic_id=topic.topic_id,
                partitions=topic.partitions,
            )
        )
    if word == Origin.DEAD_LETTERS and name:
        return RedriveSource(_find_dead_letters(workspace, stream, name))
    if word == Origin.ARCHIVE and name:
        return _find_archive(workspace, stream, name)
    if word == Origin.PASSED and name:
        return _find_passed(workspace, stream, name)
    raise UsageError(
        f"{said!r} is none" if said else "is required: where are the messages?",
        subject="--from",
        hint=_WAYS,
    )


def _find_dead_letters(workspace: Workspace, stream: Stream, name: str) -> PlannedSource:
    if name == stream.topic:
        raise UsageError("this is the stream's own topic", subject=f"--from dlq:{name}", hint=_WAYS)
    try:
        found = describe_topic(workspace.properties(stream), name, Deadline(_SECONDS))
    except TopicMissing as missing:
        raise UsageError(
            "there is no such topic on the stream's cluster",
            subject=f"topic {name}",
            hint=f"name the topic that has the dead letters of stream {stream.name}",
        ) from missing
    return PlannedSource(
        origin=Origin.DEAD_LETTERS,
        topic=name,
        topic_id=found.topic_id,
        partitions=found.partitions,
    )


def _find_archive(workspace: Workspace, stream: Stream, name: str) -> RedriveSource:
    record = workspace.ledger.archives.find(name)
    known = workspace.ledger.archives.list(stream.name, with_purged=False)
    if record is None:
        told = ", ".join(one.recovery_id for one in known)
        raise UsageError(
            "there is no such archive",
            subject=f"archive {name}",
            hint=f"stream {stream.name} has {told}" if told else f"stream {stream.name} has none",
        )
    if (record.cluster, record.topic) != (stream.cluster, stream.topic):
        raise Refused(
            f"it is of topic {record.topic} of cluster {record.cluster}, and the stream's is "
            f"{stream.topic} of {stream.cluster}",
            subject=f"archive {name}",
        )
    if record.purged_at is not None:
        raise Refused(
            f"its files were removed at {format_moment(record.purged_at)}",
            subject=f"archive {name}",
        )
    partitions = 1 + max((item.partition for item in record.ranges), default=0)
    return RedriveSource(
        PlannedSource(
            origin=Origin.ARCHIVE,
            topic=record.topic,
            topic_id=record.topic_id,
            partitions=partitions,  # the manifest, which is read later, says how many it had
            archive=name,
        ),
        record,
    )


def _find_passed(workspace: Workspace, stream: Stream, name: str) -> RedriveSource:
    """What the record of an expansion says that was passed: no other file counts."""
    recovery = workspace.ledger.recoveries.get(name)
    copy = workspace.ledger.temporary_topics.get(name)
    events = workspace.ledger.events.list(name)
    passed = list_passed(events)
    if recovery.stream != stream.name or recovery.topic != stream.topic or copy is None:
        raise UsageError(
            f"it is no expansion of topic {stream.topic}", subject=f"--from passed:{name}"
        )
    if not passed:
        raise Refused("no message of it was passed", subject=f"recovery {name}")
    if any(event.action == REWOUND for event in events):
        raise Refused(
            "its group was set back, and reads again what was passed: put back it would be there "
            "twice",
            subject=f"recovery {name}",
        )
    manifest = ArchiveManifest(
        recovery_id=name,
        stream=stream.name,
        cluster=copy.cluster,
        topic=copy.name,
        topic_id=copy.topic_id or "",
        group=recovery.group,
        partitions=copy.partitions,
        plan_hash=recovery.plan_hash,
        made_by="",
        made_at=copy.created_at,
        ranges=tuple(ArchivedRange(p, at, at + 1, 1, None, None) for p, at in sorted(passed)),
        files=tuple(ArchiveFile(**detail["file"]) for _, detail in sorted(passed.items())),
    )
    planned = PlannedSource(
        origin=Origin.PASSED,
        topic=copy.name,
        topic_id=manifest.topic_id,
        partitions=copy.partitions,
        archive=name,
    )
    location = str(workspace.staging_of(name) / PASSED_FOLDER)
    return RedriveSource(planned, passed=ArchiveSource(location, manifest))


def open_passed(spark: SparkSession, passed: ArchiveSource) -> ArchiveSource:
    """Every file looked at; what a `pass` that was killed has left is none of them.

    Raises:
        StagingError: names what is missing or damaged.
    """
    from backlogctl.spark_backfill.archive.verification import verify_archive

    check = verify_archive(spark, passed.location, passed.manifest)
    replace(check, unexpected=()).require_good(f"what was passed in {passed.manifest.recovery_id}")
    return passed


def open_archive(
    spark: SparkSession, record: ArchiveRecord, *, allows_damage: bool = False
) -> ArchiveSource:
    """Its manifest, and every file looked at.

    Raises:
        StagingError: names what is missing or damaged, unless that is allowed.
    """
    from backlogctl.spark_backfill.archive.verification import read_archive_manifest, verify_archive

    manifest = read_archive_manifest(spark, record.location, record.manifest_sha256)
    check = verify_archive(spark, record.location, manifest)
    damaged = merge_ranges(check.list_damaged(manifest))
    if not allows_damage:
        without = f"what is whole, without {format_ranges(damaged)}"
        way_out = f"; `--allow {ALLOW_DAMAGED}` puts back {without}" if damaged else ""
        check.require_good(f"archive {record.recovery_id}", way_out)
    return ArchiveSource(record.location, manifest, damaged)


def format_ranges(ranges: Sequence[OffsetRange]) -> str:
    """The first of them as `--offsets` takes them: `1:0-99 2:40-59`."""
    told = [f"{item.partition}:{item.start}-{item.end - 1}" for item in ranges[:_SHOWN_RANGES]]
    more = len(ranges) - _SHOWN_RANGES
    return " ".join(told) + (f" and {more} more ranges" if more > 0 else "")


# What a redrive is planned from.


@dataclass(frozen=True, slots=True)
class Chosen:
    """The stream as it is, where its messages are, and where they go.

    Attributes:
        gaps: what is put back, where it was found lost; else it is chosen by what was said.
        archived: the same of an archive.
    """

    snapshot: StreamSnapshot
    source: RedriveSource
    target: Target
    gaps: tuple[Gap, ...] = ()
    archived: tuple[ArchivedGap, ...] = ()


# Which offsets are read: what was said, cut to what is there.

_RANGE = re.compile(r"(\d{1,10}):(\d{1,19})(?:(-)(\d{1,19})?)?")
_OPEN = 2**63 - 1
HINT = "P:A-B, such as 0:100-199: partition 0, offsets 100 to 199, both included"


def require_bounds(options: RedriveOptions) -> None:
    """Refuses what would put back a whole topic without a word, and a part of what was never
    handled: its gaps would be closed.

    Raises:
        UsageError
    """
    bounds = ("since", "until", "offsets", "key", "where", "everything")
    if takes_waiting(options) or (options.source or "").startswith(f"{Origin.PASSED}:"):
        return
    if options.source == WORD:
        if said := [name for name in bounds if getattr(options, name)]:
            raise UsageError(
                f"takes all that is known to be unhandled; {said[0]!r} does not go with it",
                subject=f"--from {WORD}",
                hint="`--from log` takes a part",
            )
        return
    if options.since or options.until or options.offsets or options.key or options.everything:
        return
    raise UsageError(
        "no bound is said, so all messages would be put back",
        subject="plan redrive",
        hint="--since or --until, --offsets, --key; or --all for everything that is there",
    )


def takes_waiting(options: RedriveOptions) -> bool:
    """Whether no bound is said of an archive: what waits in it is put back, and nothing else."""
    said = (options.since, options.until, options.offsets, options.everything)
    return is_unfiltered(options) and is_archive(options) and not any(said)


def is_archive(options: RedriveOptions) -> bool:
    """Whether an archive is read."""
    return (options.source or "").startswith(f"{ARCHIVE}:")


def is_unfiltered(options: RedriveOptions) -> bool:
    """Whether every message of the offsets is meant."""
    return not (options.since or options.until or options.key or options.where)


def parse_offsets(said: Sequence[str], partitions: int) -> tuple[OffsetRange, ...]:
    """What `--offsets` says; the end is left out, and ranges of a partition do not overlap.

    Raises:
        UsageError: one cannot be read, ends before it begins, or there is no such partition.
    """
    found: list[OffsetRange] = []
    for text in said:
        match = _RANGE.fullmatch(text.strip().replace("–", "-"))
        if match is None:
            raise UsageError("is no range of offsets", subject=f"--offsets {text}", hint=HINT)
        partition, first = int(match[1]), int(match[2])
        last = first if match[3] is None else int(match[4]) if match[4] else _OPEN - 1
        if last < first:
            raise UsageError("it ends before it begins", subject=f"--offsets {text}", hint=HINT)
        if partition >= partitions:
            raise UsageError(
                f"there is no partition {partition}: they are 0 to {partitions - 1}",
                subject=f"--offsets {text}",
            )
        found.append(OffsetRange(partition, first, last + 1))
    return merge_ranges(found)


def merge_ranges(ranges: Sequence[OffsetRange]) -> tuple[OffsetRange, ...]:
    """In order, those that overlap or touch as one."""
    merged: list[OffsetRange] = []
    for item in sorted(ranges, key=lambda r: (r.partition, r.start)):
        last = merged[-1] if merged else None
        if last and last.partition == item.partition and item.start <= last.end:
            merged[-1] = OffsetRange(item.partition, last.start, max(last.end, item.end))
        else:
            merged.append(item)
    return tuple(merged)


def choose_ranges(
    said: Sequence[OffsetRange], there: Sequence[OffsetRange]
) -> tuple[tuple[OffsetRange, ...], list[str]]:
    """What was said and is there, and warnings about what is not; nothing said is all.

    Args:
        there: what the source has, at most one range of a partition for a topic.
    """
    if not said:
        return merge_ranges([item for item in there if item.count > 0]), []
    found, warnings = [], []
    for item in said:
        covered = 0
        for part in there:
            if part.partition != item.partition:
                continue
            start, end = max(part.start, item.start), min(part.end, item.end)
            if start < end:
                found.append(OffsetRange(item.partition, start, end))
                covered += end - start
        if item.end < _OPEN and (missing := item.count - covered):
            known = [part for part in there if part.partition == item.partition and part.count > 0]
            is_there = ", ".join(f"{part.start:,}–{part.end - 1:,}" for part in known) or "none"
            warnings.append(
                f"{missing:,} of the offsets {item.start:,}–{item.end - 1:,} of partition "
                f"{item.partition} are not there; {is_there} are"
            )
    return merge_ranges(found), warnings


def skip_before(
    ranges: Sequence[OffsetRange], firsts: Mapping[int, int]
) -> tuple[OffsetRange, ...]:
    """Without the offsets before those of a time; a negative one says that none is of it or later,
    as Kafka does."""
    return tuple(
        OffsetRange(item.partition, max(item.start, first), item.end)
        for item in ranges
        if 0 <= (first := firsts[item.partition]) < item.end
    )


def read_span(lows: Mapping[int, int], ends: Mapping[int, int]) -> tuple[OffsetRange, ...]:
    """What a topic has, a range for each partition."""
    return tuple(OffsetRange(p, lows[p], max(lows[p], ends[p])) for p in sorted(lows))


# The errors of dead letters: for the operator's terminal.

_SHOWN_ERRORS = 5
_LONGEST_LINE = 120


def preview_errors(workspace: Workspace, plan: RedrivePlan, recovery_id: str) -> tuple[Fact, ...]:
    """Read from the staged files; nothing once these have expired."""
    stream = workspace.config.streams.get(plan.stream)
    if stream is None:
        return ()
    mask, directory = Mask.read(stream.mask), workspace.staging_of(recovery_id)
    facts = []
    # An error's text may quote the message, any part of it.
    if mask == Mask():
        facts += [
            Fact("error", _say_error(one.error, one.line, one.count), shows_rows=True)
            for one in read_errors(directory)[:_SHOWN_ERRORS]
        ]
    return tuple(facts)


def _say_error(error: str, line: str, count: int) -> str:
    told = escape_name(line[:_LONGEST_LINE])
    return f"{format_count(count)} × {error}" + (f": {told}" if told else "")
