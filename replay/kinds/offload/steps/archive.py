"""Step 4: what is unread below the fence is archived and read back (protocol P5.4)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from backlog.numbers import format_bytes, format_plural
from backlog.step import Step
from backlog.values import OffsetRange
from backlogctl_delivery.crashpoints import reach
from replay.kinds.offload.context import OffloadContext
from replay.kinds.offload.discarding import record_expired
from replay.recovery.brakes import HELD, PausedBecause, check_requests
from replay.recovery.identity import find_identity

if TYPE_CHECKING:
    from backlog.archive import ArchiveManifest
    from spark_backfill.archive.job import ArchiveJob, ArchiveProgress


class Archive(Step[OffloadContext]):
    """Nothing in Kafka is changed."""

    name = "archive"

    def start(self, context: OffloadContext) -> None:
        """Archives, or goes on where an earlier run was stopped; nothing where it is discarded.

        Raises:
            GroupActive, Refused: the group is not where its consumers were stopped.
            PausedBecause: the archive's place is full, or somebody asked.
        """
        context.require_stopped_there()
        if context.plan.place is None:
            context.say("discarding: nothing is archived")
            return
        if context.archive is None:
            manifest = _write(context)
            reach("p5.4.archived")
            context.lease.confirm()
            _note(context, manifest)
        context.end_spark()
        reach("p5.4.recorded")

    def complete(self, context: OffloadContext) -> None:
        """How much it is."""
        archive = context.archive
        if archive is not None:
            context.details[self.name] = {"messages": archive.messages, "bytes": archive.bytes}


def _write(context: OffloadContext) -> ArchiveManifest:
    """The whole archive; goes on behind what retention removes meanwhile."""
    context.bar.say("starting Spark")
    context.bar.start()
    spark = context.spark  # runs already, but where an earlier run was killed
    from spark_backfill.archive.failures import ArchiveFull, ArchiveLagging
    from spark_backfill.archive.writing import write_archive

    context.bar.say("archiving")
    while True:
        try:
            found = write_archive(
                spark,
                make_job(context),
                look=lambda: check_requests(context),
                confirm=context.lease.confirm,
                on_progress=lambda progress: _show(context, progress),
            )
        except ArchiveLagging as lagging:
            context.lease.confirm()
            for number, (needed, low) in sorted(lagging.moved.items()):
                end = min(low, context.fence[number])
                record_expired(context, OffsetRange(number, needed, end))
        except ArchiveFull as full:
            raise PausedBecause(
                HELD,
                f"{full.message}: {context.location}; what is archived stays",
                subject=f"recovery {context.recovery.id}",
                hint=f"free space there, then `backlogctl run {context.recovery.id}` goes on; or "
                f"`backlogctl cancel {context.recovery.id}` starts the consumers again and throws "
                "the archive away. Until then the original consumers stay stopped, and nobody "
                "reads the topic",
            ) from full
        else:
            context.bar.say("archived and read back")
            context.bar.stop()
            return found


def make_job(context: OffloadContext) -> ArchiveJob:
    """What is to be archived."""
    from spark_backfill.archive.job import ArchiveJob

    plan, recovery = context.plan, context.recovery
    each = None if plan.bytes is None or not plan.unread else plan.bytes / plan.unread
    return ArchiveJob(
        recovery_id=recovery.id,
        stream=recovery.stream,
        cluster=recovery.cluster,
        topic=recovery.topic,
        topic_id=plan.topic_id,
        group=recovery.group,
        partitions=plan.partition_count,
        plan_hash=recovery.plan_hash,
        made_by=str(find_identity()),
        location=context.location,
        ranges=context.ranges,
        properties=context.properties,
        bytes_per_message=each,
        gone=context.list_gone(),
    )


def _show(context: OffloadContext, progress: ArchiveProgress) -> None:
    context.bar.move(progress.offsets, rate=progress.rate or 0.0, eta=progress.eta_seconds)


def _note(context: OffloadContext, manifest: ArchiveManifest) -> None:
    recovery = context.recovery
    context.workspace.ledger.archives.record(
        recovery.id,
        stream=recovery.stream,
        cluster=recovery.cluster,
        topic=recovery.topic,
        topic_id=context.plan.topic_id,
        location=context.location,
        manifest_sha256=manifest.sha256(),
        messages=manifest.count,
        bytes=manifest.bytes,
        ranges=manifest.ranges,
    )
    context.say(
        f"{format_plural(manifest.count, 'message')} are archived and were read back, "
        f"{format_bytes(manifest.bytes)} in {context.location}"
    )
