"""Archives looked at: what they hold, some messages, and whether their files are whole."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from backlogctl.archive_manifest import ARCHIVE_MANIFEST, ArchiveManifest
from backlogctl.errors import BacklogError, StagingError
from backlogctl.ledger import ArchiveRecord
from backlogctl.replay.engine.archives import (
    ArchiveState,
    count_archived,
    open_archive_place,
    require_there,
)
from backlogctl.replay.engine.kind import Workspace
from backlogctl.values import to_document

if TYPE_CHECKING:
    from backlogctl.spark_backfill.archive.peek import ArchivedMessage, Wanted
    from backlogctl.spark_backfill.archive.verification import ArchiveCheck


def describe_archive(workspace: Workspace, state: ArchiveState) -> dict[str, Any]:
    """An archive as `archive list --json` prints it: its files are looked at."""
    record = state.record
    return {
        "id": record.recovery_id,
        **to_document(
            record,
            *("stream", "cluster", "topic", "location", "made_at", "messages", "bytes"),
            *("purged_at", "purged_by"),
        ),
        **state.counts,
        **to_document(state, "offload", "expires_at"),
        "files": look_at_files(workspace, record),
    }


def look_at_files(workspace: Workspace, record: ArchiveRecord) -> Mapping[str, Any] | None:
    """Which files are missing or have another size, by a listing: none is read. None of an archive
    that was purged; `problem` is why it is unknown."""
    from backlogctl.spark_backfill.archive.verification import check_place, read_manifest_of

    if record.purged_at is not None:
        return None
    missing, changed, problem = [ARCHIVE_MANIFEST], [], ""
    try:
        place = open_archive_place(workspace, record, "list")
        if place.exists(ARCHIVE_MANIFEST):
            manifest = read_manifest_of(place, record.manifest_sha256)
            check = check_place(place, manifest, rehash=False)
            missing, changed = list(check.missing), list(check.corrupt)
    except BacklogError as error:
        missing, problem = [], error.message
    return {"missing": missing, "changed": changed, "problem": problem}


def describe_whole(workspace: Workspace, state: ArchiveState) -> dict[str, Any]:
    """With its ranges and gaps, as `archive show --json` prints it."""
    record = state.record
    return {
        **describe_archive(workspace, state),
        "topic_id": record.topic_id,
        "manifest_sha256": record.manifest_sha256,
        "ranges": [
            {
                **to_document(item, "partition", "start", "end", "first_time", "last_time"),
                "messages": item.count,
                "holes": item.end - item.start - item.count,
            }
            for item in record.ranges
        ],
        "gaps": [
            {
                **to_document(gap, "id", "partition", "start", "end", "state"),
                "stage": state.name_stage(gap),
                **dict(zip(("messages", "exact"), count_archived(record, gap), strict=True)),
                "reason": gap.reason,
            }
            for gap in state.gaps
        ],
        "needed_by": [gap.id for gap in state.elsewhere],
    }


def peek(
    workspace: Workspace, record: ArchiveRecord, wanted: Wanted
) -> tuple[ArchivedMessage, ...]:
    """Some of its messages, as they were archived: nothing is masked yet.

    Raises:
        Refused: it was purged.
        StagingError: it cannot be read, or is not the one that was recorded.
    """
    from backlogctl.spark_backfill.archive.peek import peek_archive
    from backlogctl.spark_backfill.archive.verification import read_manifest_of

    require_there(record)
    place = open_archive_place(workspace, record, "peek")
    return peek_archive(place, read_manifest_of(place, record.manifest_sha256), wanted)


def verify_archived(workspace: Workspace, record: ArchiveRecord) -> ArchiveCheck:
    """Reads every file whole, and compares it with the manifest, and that with the ledger.

    Raises:
        Refused: it was purged.
        StagingError: the manifest is missing, or is not the one that was recorded.
    """
    from backlogctl.spark_backfill.archive.verification import check_place, read_manifest_of

    require_there(record)
    place = open_archive_place(workspace, record, "verify")
    manifest = read_manifest_of(place, record.manifest_sha256)
    _compare(record, manifest)
    return check_place(place, manifest)


def describe_check(record: ArchiveRecord, check: ArchiveCheck) -> Mapping[str, Any]:
    """As `archive verify --json` prints it."""
    return {
        "id": record.recovery_id,
        "location": record.location,
        "good": check.is_good,
        "messages": check.count,
        **to_document(check, "files", "missing", "corrupt", "unexpected"),
    }


def _compare(record: ArchiveRecord, manifest: ArchiveManifest) -> None:
    """The hash is the ledger's; a ledger of which a row was changed by hand still is told."""
    same = (record.messages, record.bytes, record.ranges, record.topic_id) == (
        manifest.count,
        manifest.bytes,
        manifest.ranges,
        manifest.topic_id,
    )
    if not same or manifest.recovery_id != record.recovery_id:
        raise StagingError(
            "the ledger and the archive's manifest count differently",
            subject=f"archive {record.recovery_id}",
            hint=f"one of them was changed by hand; the manifest lies in {record.location}",
        )
