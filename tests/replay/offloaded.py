"""What an offload leaves: an archive, gaps that wait in it, a group that stands behind them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from backlogctl.archive_manifest import ArchiveManifest
from backlogctl.clock import utc_now
from backlogctl.kafka.admin import list_offsets, read_topic_id
from backlogctl.kafka.clients import make_admin
from backlogctl.kafka.groups import committed_offsets
from backlogctl.replay.engine.kind import Workspace
from backlogctl.spark_backfill.archive.job import ArchiveJob
from backlogctl.spark_backfill.archive.writing import write_archive
from backlogctl.values import Cause, Certainty, Gap, GapState, OffsetRange, RecoveryState
from tests.kafka_tools import move_log_start, set_offsets_raw
from tests.replay.shop import PARTITIONS, Shop

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ACTOR = "os:tester@here"


def offload(
    shop: Shop,
    spark: SparkSession,
    *,
    workspace: Workspace | None = None,
    partitions: int = PARTITIONS,
    starts: Mapping[int, int] | None = None,
    file_bytes: int = 2_000,
    store: str | None = None,
) -> str:
    """Archives what is unread, moves the group behind it and deletes it; the offload's id.

    The offload itself is on record as rejected: what a verified one leaves is the same.

    Args:
        store: the ledger says that the archive lies there, in a folder of its id.
    """
    opened = workspace or shop.open()
    stream = opened.config.stream(shop.stream)
    admin = make_admin(shop.properties)
    numbers = range(partitions)
    fence = list_offsets(admin, shop.topic, numbers, "latest", "read_committed")
    if starts is None:
        lows = list_offsets(admin, shop.topic, numbers, "earliest")
        found = committed_offsets(shop.properties, shop.group, shop.topic, numbers)
        starts = {number: max(lows[number], found.get(number) or 0) for number in numbers}
    ranges = [OffsetRange(n, starts[n], fence[n]) for n in numbers if starts[n] < fence[n]]
    recovery_id = record_offload(opened, shop)
    job = ArchiveJob(
        recovery_id=recovery_id,
        stream=stream.name,
        cluster=stream.cluster,
        topic=shop.topic,
        topic_id=read_topic_id(admin, shop.topic)[0],
        group=shop.group,
        partitions=partitions,
        plan_hash=opened.ledger.recoveries.get(recovery_id).plan_hash,
        made_by=ACTOR,
        location=str(opened.config.staging.dir / "archives" / recovery_id),
        ranges=tuple(ranges),
        properties=shop.properties,
        bytes_per_message=100,
        file_bytes=file_bytes,
    )
    manifest = write_archive(spark, job)
    keep(opened, manifest, job.location if store is None else f"{store}/{recovery_id}")
    set_offsets_raw(shop.properties, shop.group, shop.topic, fence)
    move_log_start(shop.properties, shop.topic, fence)
    return recovery_id


def record_offload(workspace: Workspace, shop: Shop) -> str:
    """An offload of which nothing is left to do."""
    ledger = workspace.ledger
    made = ledger.recoveries.create(
        "offload",
        shop.stream,
        "main",
        shop.topic,
        shop.group,
        {},
        "f" * 64,
        (),
        ACTOR,
        stops_consumers=True,
        holds_when_failed=True,
    )
    ledger.recoveries.advance(made.id, RecoveryState.REJECTED, ACTOR)
    return made.id


def keep(workspace: Workspace, manifest: ArchiveManifest, location: str) -> tuple[Gap, ...]:
    """Puts an archive and its gaps on record, as an offload does."""
    ledger = workspace.ledger
    ledger.archives.record(
        manifest.recovery_id,
        stream=manifest.stream,
        cluster=manifest.cluster,
        topic=manifest.topic,
        topic_id=manifest.topic_id,
        location=location,
        manifest_sha256=manifest.sha256(),
        messages=manifest.count,
        bytes=manifest.bytes,
        ranges=manifest.ranges,
    )
    for item in manifest.ranges:
        if item.start == item.end:
            continue
        ledger.gaps.record(
            Gap(
                id="",
                stream=manifest.stream,
                cluster=manifest.cluster,
                topic=manifest.topic,
                group=manifest.group,
                topic_id=manifest.topic_id,
                partition=item.partition,
                start=item.start,
                end=item.end,
                cause=Cause.DISCARDED,
                certainty=Certainty.EXACT,
                state=GapState.OPEN,
                first_time=item.first_time,
                last_time=item.last_time,
                detected_at=utc_now(),
                archive=manifest.recovery_id,
            )
        )
    # What an older gap covers is cut out of them.
    gaps = [gap for gap in ledger.gaps.list() if gap.archive == manifest.recovery_id]
    ids = [gap.id for gap in gaps]
    for state in (GapState.PLANNED, GapState.STAGED):
        ledger.gaps.advance(ids, state, manifest.recovery_id, actor=ACTOR)
    return tuple(replace(gap, state=GapState.STAGED) for gap in gaps)


def list_states(workspace: Workspace) -> Sequence[str]:
    """The states of all gaps, each once."""
    return sorted({str(gap.state) for gap in workspace.ledger.gaps.list()})
