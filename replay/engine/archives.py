"""What became of an archive's messages, until when it is kept, and how it is deleted."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from backlogctl.config import mask_secrets
from backlogctl.errors import (
    BacklogError,
    InvalidTransition,
    Refused,
    StagingError,
    UsageError,
)
from backlogctl.formats import format_plural
from backlogctl.replay.engine.kind import Workspace
from backlogctl.replay.engine.plan import find_identity
from backlogctl.values import FINAL, Gap, GapState, LedgerEvent, Recovery, RecoveryState
from backlogctl_delivery.crashpoints import reach

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from backlogctl.ledger import ArchiveRecord, Ledger
    from backlogctl.spark_backfill.archive.place import ArchivePlace
    from backlogctl.spark_backfill.archive.verification import Purged

ALLOW_LOSE = "lose"
PURGE_BEGUN, PURGED = "archive purge begun", "archive purged"
_CLOSED = (GapState.VERIFIED, GapState.WAIVED)
_SHOWN = 5


@dataclass(frozen=True)
class ArchiveState:
    """An archive with the gaps whose messages lie in it.

    Attributes:
        waiting: ids of those that no recovery is about to put back.
        elsewhere: open gaps of other causes, or of other streams on the topic, over the same
            offsets, and of what was put back from it and lost again: it gives them back.
        offload: the state of the offload that made it.
        expires_at: when it is deleted; None while something needs it.
    """

    record: ArchiveRecord
    gaps: tuple[Gap, ...]
    waiting: frozenset[str]
    elsewhere: tuple[Gap, ...]
    offload: RecoveryState
    expires_at: datetime | None

    @cached_property
    def counts(self) -> dict[str, int]:
        """Messages that wait, that a recovery is about to put back, that are put back, waived."""
        found = dict.fromkeys(("waiting", "under_way", "put_back", "waived"), 0)
        for gap in self.gaps:
            found[self.name_stage(gap)] += count_archived(self.record, gap)[0]
        return found

    def name_stage(self, gap: Gap) -> str:
        """Where one of its gaps stands."""
        if gap.id in self.waiting or gap.state is GapState.OPEN:
            return "waiting"
        stages = {GapState.VERIFIED: "put_back", GapState.WAIVED: "waived"}
        return stages.get(gap.state, "under_way")

    def list_gaps(self, stage: str) -> tuple[Gap, ...]:
        """Its gaps at a stage."""
        return tuple(gap for gap in self.gaps if self.name_stage(gap) == stage)


def count_archived(record: ArchiveRecord, gap: Gap) -> tuple[int, bool]:
    """Messages of the archive that lie in a gap, and whether that is exact or the most there can
    be: only whole ranges were counted."""
    assert gap.start is not None
    assert gap.end is not None
    total, exact = 0, True
    for item in record.ranges:
        inside = min(item.end, gap.end) - max(item.start, gap.start)
        if item.partition == gap.partition and inside > 0:
            total += min(item.count, inside)
            exact = exact and (
                inside == item.end - item.start or item.end - item.start == item.count
            )
    return total, exact


def list_archives(workspace: Workspace, stream: str | None = None) -> tuple[ArchiveState, ...]:
    """All of them, oldest first, from the ledger alone."""
    ledger = workspace.ledger
    records = ledger.archives.list(stream)
    if not records:
        return ()
    gaps = ledger.gaps.list()  # of all streams: several groups read a topic
    waiting = frozenset(gap.id for gap in ledger.gaps.list_waiting())
    again = _find_lost_again(ledger, gaps)
    return tuple(_judge(workspace, record, gaps, waiting, again) for record in records)


def find_archive(workspace: Workspace, recovery_id: str) -> ArchiveState:
    """One of them.

    Raises:
        UsageError: there is none of this id.
    """
    ledger = workspace.ledger
    record = ledger.archives.get(recovery_id)
    waiting = frozenset(gap.id for gap in ledger.gaps.list_waiting())
    gaps = ledger.gaps.list()
    return _judge(workspace, record, gaps, waiting, _find_lost_again(ledger, gaps))


def require_there(record: ArchiveRecord) -> None:
    """Refuses one whose files are gone.

    Raises:
        Refused: it was purged.
    """
    if record.purged_at is not None:
        raise Refused(
            f"it was purged at {record.purged_at:%Y-%m-%d %H:%M}Z by {record.purged_by}: its "
            "messages are gone",
            subject=f"archive {record.recovery_id}",
            hint=f"`backlogctl archive show {record.recovery_id}` says what it held",
        )


def purge(workspace: Workspace, recovery_id: str, allow: Iterable[str] = ()) -> Purged:
    """Deletes an archive's files. Its counts stay in the ledger, and the ids of what was put back
    beside the manifests of the recoveries that did it.

    Args:
        allow: with `lose`, gaps that wait in it are waived once it is gone: they are lost.

    Raises:
        UsageError: there is no such archive.
        Refused: something needs it still, it is purged already, or somebody else's lies there.
        StagingError: it could not be deleted.
    """
    state = find_archive(workspace, recovery_id)
    require_there(state.record)
    subject, actor = f"archive {recovery_id}", str(find_identity())
    if state.offload not in FINAL:
        raise Refused(
            f"the offload that made it is {state.offload}",
            subject=subject,
            hint=f"`backlogctl show {recovery_id}` says what comes next for it",
        )
    if under_way := state.list_gaps("under_way"):
        raise Refused(
            f"a recovery is about to put {_name(under_way)} back, and a cancel of it gives them "
            "back to the archive",
            subject=subject,
            hint="run it, or cancel it; `backlogctl recoveries` names it",
        )
    waiting = state.list_gaps("waiting")
    needed = (*waiting, *state.elsewhere)
    if needed and ALLOW_LOSE not in allow:
        count = _count_needed(state.record, needed)
        plans = " and ".join(
            f"`backlogctl plan redrive {name} --from archive:{recovery_id}`"
            for name in sorted({gap.stream for gap in needed})
        )
        raise Refused(
            f"{format_plural(count, 'message')} of {_name(needed)} {'is' if count == 1 else 'are'} "
            "only in this archive",
            subject=subject,
            hint=f"{plans} puts them back; `--allow {ALLOW_LOSE}` loses them for good",
        )
    return _delete(workspace, state.record, actor, waiting)


def is_given_up(ledger: Ledger, recovery_id: str) -> bool:
    """Whether somebody began to delete it with what waits in it: perhaps its files are gone."""
    events = ledger.events.list(recovery_id)
    return any(event.action == PURGE_BEGUN and event.detail["waits"] for event in events)


def name_owner(recovery: Recovery) -> dict[str, str]:
    """What its archive says of whose it is."""
    return {"recovery_id": recovery.id, "plan_hash": recovery.plan_hash}


def purge_expired(workspace: Workspace, state: ArchiveState, now: datetime) -> bool:
    """Deletes an archive that nobody needs any more, once it was kept for `staging.keep`.

    Raises:
        BacklogError: it could not be deleted.
    """
    due = state.expires_at is not None and now > state.expires_at
    if not due or state.record.purged_at is not None:
        return False
    days = workspace.config.staging.keep.total_seconds() / 86400
    _delete(workspace, state.record, str(find_identity()), keep_days=round(days, 3))
    return True


def open_spark(workspace: Workspace, location: str, name: str) -> SparkSession:
    """Spark for an archive that lies elsewhere, with what its place needs."""
    from backlogctl.spark_backfill.spark.cluster import needs_s3
    from backlogctl.spark_backfill.spark.session import open_session

    config = workspace.config
    return open_session(config.spark, name, staging=config.staging.dir, s3=needs_s3(location))


def open_archive_place(workspace: Workspace, record: ArchiveRecord, verb: str) -> ArchivePlace:
    """Where an archive lies; Spark starts only where that is no folder."""
    from backlogctl.spark_backfill.archive.place import ArchivePlace

    name = f"backlogctl archive {verb} {record.recovery_id}"
    return ArchivePlace(lambda: open_spark(workspace, record.location, name), record.location)


def _judge(
    workspace: Workspace,
    record: ArchiveRecord,
    gaps: Iterable[Gap],
    waiting: frozenset[str],
    again: Mapping[str, frozenset[str]],
) -> ArchiveState:
    ledger, lost = workspace.ledger, again.get(record.recovery_id, frozenset())
    own, others = [], []
    for gap in gaps:
        if gap.archive == record.recovery_id:
            own.append(gap)
        elif gap.state not in _CLOSED and (_is_held(record, gap) or gap.id in lost):
            others.append(gap)
    try:
        offload = ledger.recoveries.get(record.recovery_id).state
    except UsageError:
        offload = RecoveryState.VERIFIED  # its record is gone: nothing works with it
    expires: datetime | None = None
    closed = all(gap.state in _CLOSED for gap in own) and not others
    if closed and offload in FINAL and record.purged_at is None:
        last = ledger.archives.find_last_change(record.recovery_id) or record.made_at
        expires = max(last, record.made_at) + workspace.config.staging.keep
    return ArchiveState(record, tuple(own), waiting, tuple(others), offload, expires)


def _count_needed(record: ArchiveRecord, gaps: Iterable[Gap]) -> int:
    """Messages of gaps that only the archive has, at most; what was lost again lies at other
    offsets than those that were archived."""
    found = (
        count_archived(record, gap)[0] if _is_held(record, gap) else gap.count or 0 for gap in gaps
    )
    return min(sum(found), record.messages)


def _is_held(record: ArchiveRecord, gap: Gap) -> bool:
    """Whether the archive has messages of the gap's offsets."""
    if (gap.cluster, gap.topic_id) != (record.cluster, record.topic_id):
        return False
    if gap.start is None or gap.end is None:
        return False
    return bool(count_archived(record, gap)[0])


def _delete(
    workspace: Workspace,
    record: ArchiveRecord,
    actor: str,
    lost: Iterable[Gap] = (),
    **detail: object,
) -> Purged:
    """Killed after any line, what is on record is true, and the same again goes on.

    1. That it was begun, and by whom: its gaps still wait, and its files may be gone.
    2. The files. What says whose they are goes last: what is left of them can be deleted.
    3. At once that it is purged, and that their messages are lost: never before they are.
    """
    ledger, name, ids = workspace.ledger, record.recovery_id, [gap.id for gap in lost]
    begun = {"waits": ids, **detail}
    if (PURGE_BEGUN, begun) not in [(e.action, e.detail) for e in ledger.events.list(name)]:
        ledger.events.append(name, actor, PURGE_BEGUN, begun)  # 1
    reach("p10.purge.begun")
    purged = _delete_files(workspace, record)  # 2
    reach("p10.purge.deleted")
    why = f"lost on purpose: archive {name} was purged with `--allow lose` ({actor})"
    try:
        ledger.archives.mark_purged(name, actor, ids, why)  # 3
    except InvalidTransition as error:
        raise Refused(
            f"its files are deleted, and a recovery took one of its gaps before: {error.message}",
            subject=f"archive {name}",
            hint="`backlogctl recoveries` names it: what it has staged it puts back",
        ) from error
    reach("p10.purge.recorded")
    told = {"files": purged.files, "bytes": purged.bytes, "waived": ids, **detail}
    ledger.events.append(name, actor, PURGED, told)
    return purged


def _delete_files(workspace: Workspace, record: ArchiveRecord) -> Purged:
    from backlogctl.spark_backfill.archive.verification import purge_place

    place = open_archive_place(workspace, record, "purge")
    return purge_place(place, owner=_find_owner(workspace, record))


def _find_owner(workspace: Workspace, record: ArchiveRecord) -> dict[str, str]:
    try:
        return name_owner(workspace.ledger.recoveries.get(record.recovery_id))
    except UsageError:  # its record is gone
        return {"recovery_id": record.recovery_id}


def _name(gaps: Iterable[Gap]) -> str:
    ids = [gap.id for gap in gaps]
    more = len(ids) - _SHOWN
    named = ", ".join(ids[:_SHOWN])
    word = "gap" if len(ids) == 1 else "gaps"
    return f"{word} {named}" + (f" and {more} more" if more > 0 else "")


# What was put back from an archive, and lost again unread: the archive still has it.

ARCHIVE = "archive"  # what `plan redrive --from` takes them by, with the archive's id


def find_source_archive(plan: Mapping[str, Any]) -> str | None:
    """The archive that a stored plan puts messages back from, for the stream's own group."""
    source = plan.get("source")
    if not isinstance(source, Mapping) or plan.get("target") is not None:
        return None
    return source.get(ARCHIVE)


def touches(slot: int, first: int | None, last: int | None, gaps: Iterable[Gap]) -> bool:
    """Whether some of a chunk's messages, from its first offset to its last, may lie in a gap."""
    if first is None or last is None:
        return False
    return any(
        gap.partition == slot
        and gap.start is not None
        and gap.end is not None
        and gap.start <= last
        and first < gap.end
        for gap in gaps
    )


def list_givers(ledger: Ledger, gap: Gap) -> tuple[str, ...]:
    """The archives from which messages were put back into a gap's offsets: by where they were put,
    not by where they were archived, since the topic may have been made anew."""
    if gap.archive is not None or gap.count is None or gap.sequences is not None:
        return ()
    names = {
        name: None
        for recovery in ledger.recoveries.list(gap.stream)
        if (name := find_source_archive(recovery.plan)) and recovery.injected
        if recovery.plan.get("topic_id") == gap.topic_id
        if any(
            touches(each.chunk.slot, each.first_offset, each.last_offset, [gap])
            for each in ledger.chunks.list(recovery.id)
        )
    }
    return tuple(names)


def was_given(ledger: Ledger, gap: Gap, archive: str) -> bool:
    """Whether all that was lost again was put back from it since the gap was found."""
    return any(
        recovery.state is RecoveryState.VERIFIED
        and recovery.created_at > gap.detected_at
        and find_source_archive(recovery.plan) == archive
        and recovery.plan.get("lost_only")
        and not recovery.plan.get("damaged")  # it gave what is whole
        for recovery in ledger.recoveries.list(gap.stream)
    )


def _find_lost_again(ledger: Ledger, gaps: Iterable[Gap]) -> dict[str, frozenset[str]]:
    """By archive, the gaps that it gives back once more."""
    found: dict[str, set[str]] = {}
    for gap in gaps:
        if gap.state in _CLOSED:
            continue
        for name in list_givers(ledger, gap):
            if not was_given(ledger, gap, name):
                found.setdefault(name, set()).add(gap.id)
    return {name: frozenset(ids) for name, ids in found.items()}


# Removes staged messages and archives that nobody needs any more (`staging.keep`).

LOG = logging.getLogger(__name__)
REMOVED = "staged messages removed"
_ENDED = (RecoveryState.VERIFIED, RecoveryState.REJECTED, RecoveryState.CANCELLED)


def clear_staging(workspace: Workspace) -> tuple[str, ...]:
    """Removes the messages of recoveries that came to their end longer ago than `staging.keep`,
    and archives all of whose gaps were closed as long ago.

    Manifests, id lists and quarantine lists stay. What cannot be removed is logged and tried again
    the next time: this never fails the work that it follows.

    Returns:
        The recoveries whose messages or archives were removed.
    """
    return (*_clear_messages(workspace), *_clear_archives(workspace))


def _clear_archives(workspace: Workspace) -> tuple[str, ...]:
    cleared: list[str] = []
    try:
        now, known = workspace.ledger.now(), list_archives(workspace)
    except BacklogError as error:
        _warn(error)
        return ()
    for state in known:
        try:
            if purge_expired(workspace, state, now):
                cleared.append(state.record.recovery_id)
        except (BacklogError, OSError) as error:
            _warn(error)
    return tuple(cleared)


def _clear_messages(workspace: Workspace) -> tuple[str, ...]:
    cleared: list[str] = []
    try:
        now, ended = workspace.ledger.now(), workspace.ledger.recoveries.list(states=_ENDED)
    except BacklogError as error:
        _warn(error)
        return ()
    for recovery in ended:
        try:
            if _clear_one(workspace, recovery, now):
                cleared.append(recovery.id)
        except (BacklogError, OSError) as error:
            _warn(error)
    return tuple(cleared)


def _warn(error: Exception) -> None:
    LOG.warning("old staged messages or archives are not removed: %s", mask_secrets(str(error)))


def _clear_one(workspace: Workspace, recovery: Recovery, now: datetime) -> bool:
    from backlogctl.manifests import MESSAGES_FOLDER  # with pyarrow

    # Beside it `ids` and the manifest: the evidence of later plans.
    directory = workspace.staging_of(recovery.id) / MESSAGES_FOLDER
    if not directory.is_dir():
        return False
    ended = find_ended_at(recovery, workspace.ledger.events.list(recovery.id))
    if ended is None or now - ended <= workspace.config.staging.keep:
        return False
    _require_own(directory, recovery)
    _remove(workspace, recovery, directory)
    return True


def _require_own(directory: Path, recovery: Recovery) -> None:
    """Another ledger may have staged in a folder of this name.

    Raises:
        StagingError: the messages are not those of the plan.
    """
    from backlogctl.manifests import read_manifest

    try:
        read_manifest(directory.parent, recovery.plan.get("manifest_sha256", ""))
    except StagingError as error:
        raise StagingError(
            f"nothing shows that recovery {recovery.id} of this ledger staged them, so they stay",
            subject=str(directory),
            hint="remove them by hand if no other ledger needs them",
        ) from error


def find_ended_at(recovery: Recovery, events: Sequence[LedgerEvent]) -> datetime | None:
    """When it came to its end; None where its record does not say so."""
    for event in reversed(events):
        superseded = event.action.startswith("superseded by ")
        if event.action == recovery.state.value or superseded:
            return event.at
    return None


def _remove(workspace: Workspace, recovery: Recovery, directory: Path) -> None:
    sizes = [path.stat().st_size for path in directory.rglob("*") if path.is_file()]
    shutil.rmtree(directory)
    days = workspace.config.staging.keep.total_seconds() / 86400
    detail = {"files": len(sizes), "bytes": sum(sizes), "keep_days": round(days, 3)}
    workspace.ledger.events.append(recovery.id, str(find_identity()), REMOVED, detail)
