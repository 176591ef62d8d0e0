"""What `--from` means: a topic that is there, or an archive that is on record and whole."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from backlog.clock import Deadline
from backlog.config import Stream
from backlog.errors import Refused, UsageError
from backlog.kafka.admin import TopicInfo, describe_topic
from backlog.kafka.errors import TopicMissing
from backlog.ledger import ArchiveRecord
from backlog.numbers import format_moment
from replay.injection.unprocessed import WORD
from replay.kinds.redrive.plan import PlannedSource
from replay.recovery.workspace import Workspace
from spark_backfill.redrive.request import Archived, Origin

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SECONDS = 30.0
_WAYS = "`--from log`, `--from dlq:TOPIC`, `--from archive:R` or `--from unprocessed`"


@dataclass(frozen=True, slots=True)
class Source:
    """A source, and its archive's record where it is one."""

    planned: PlannedSource
    archive: ArchiveRecord | None = None


def find_source(workspace: Workspace, stream: Stream, said: str | None, topic: TopicInfo) -> Source:
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
        return Source(
            PlannedSource(
                origin=Origin.LOG,
                topic=topic.name,
                topic_id=topic.topic_id,
                partitions=topic.partitions,
            )
        )
    if word == Origin.DEAD_LETTERS and name:
        return Source(_find_dead_letters(workspace, stream, name))
    if word == Origin.ARCHIVE and name:
        return _find_archive(workspace, stream, name)
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


def _find_archive(workspace: Workspace, stream: Stream, name: str) -> Source:
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
    return Source(
        PlannedSource(
            origin=Origin.ARCHIVE,
            topic=record.topic,
            topic_id=record.topic_id,
            partitions=partitions,  # the manifest, which is read later, says how many it had
            archive=name,
        ),
        record,
    )


def open_archive(spark: SparkSession, record: ArchiveRecord) -> Archived:
    """Its manifest, and every file looked at.

    Raises:
        StagingError: names what is missing or damaged.
    """
    from spark_backfill.archive.verification import read_manifest, verify_archive

    manifest = read_manifest(spark, record.location, record.manifest_sha256)
    check = verify_archive(spark, record.location, manifest)
    check.require_good(f"archive {record.recovery_id}")
    return Archived(record.location, manifest)
