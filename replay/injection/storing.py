"""A plan whose messages are staged: begun, and on record with them, or not at all."""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy.engine import make_url

from backlogctl.config import Stream
from backlogctl.errors import BacklogError, InvalidTransition, StagingError, UsageError
from backlogctl.ledger.events import Owner
from backlogctl.manifests import read_manifest, sync_path, write_synced
from backlogctl.replay.engine.archives import open_spark
from backlogctl.replay.engine.guards import fingerprint_stream, store_plan
from backlogctl.replay.engine.kind import Say, Workspace
from backlogctl.replay.engine.plan import Options, PlannedWindow, RunOrigin, find_identity
from backlogctl.replay.injection.context import check_room, find_misread
from backlogctl.replay.injection.copying import write_copy
from backlogctl.replay.injection.kind import warn_about_readers
from backlogctl.replay.injection.plan import InjectionPlan, list_sending
from backlogctl.replay.injection.staged import describe_staged
from backlogctl.replay.injection.target import (
    Target,
    clear_rehearsals,
    find_target,
    name_superseded,
    name_target,
)
from backlogctl.replay.observe.snapshot import (
    Draft,
    StreamSnapshot,
    begin_plan,
    finish_plan,
    take_snapshot,
)
from backlogctl.spark_backfill.injection.job import measure_chunk
from backlogctl.spark_backfill.injection.snapshots import LedgerSnapshot
from backlogctl.values import Gap, Recovery, RecoveryState

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def begin_injection(
    workspace: Workspace,
    stream: Stream,
    said: str | None,
    *,
    origin: RunOrigin | None,
    say: Say,
    letters: str | None = None,
    needs_offsets: bool = True,
) -> tuple[Draft, StreamSnapshot, Target]:
    """Guards and rights, the stream as it is now, and the topic that gets the messages.

    Args:
        said: what `--to` says.
        letters: the topic of dead letters that is read.

    Raises:
        UsageError: there is no topic of that name.
        Refused: a guard says no, or another recovery is in the way.
    """

    def list_rights(recovery_id: str) -> Sequence[Any]:
        to = name_target(stream, said, recovery_id)
        return list_sending(workspace.config, stream, recovery_id, None, to, letters)

    clear_rehearsals(workspace, stream.name)
    clear_unfinished(workspace, say)
    draft = begin_plan(
        workspace, stream, list_rights, origin=origin, say=say, needs_offsets=needs_offsets
    )
    snapshot = take_snapshot(draft)
    return draft, snapshot, find_target(draft, snapshot, said)


def start_spark(draft: Draft, locations: Iterable[str]) -> SparkSession:
    """Spark for planning, with what the archives of these locations need.

    Raises:
        UsageError: the client properties hold what Spark could not use.
    """
    from backlogctl.spark_backfill.spark.cluster import needs_s3
    from backlogctl.spark_backfill.spark.kafka_options import make_java_options

    make_java_options(draft.properties)
    draft.say("starting Spark")
    location = next(filter(needs_s3, locations), "")
    return open_spark(draft.workspace, location, f"backlogctl plan {draft.recovery_id}")


def fill_injection(
    draft: Draft,
    snapshot: StreamSnapshot,
    target: Target,
    options: Options,
    fingerprint: Sequence[str],
    ledger_topic: LedgerSnapshot | None,
    warnings: Iterable[str],
) -> dict[str, Any]:
    """The fields that every plan has that sends messages (`InjectionPlan`).

    Args:
        fingerprint: what of the stream's section decides which messages go where.
    """
    stream, config = draft.stream, draft.workspace.config
    if target.planned is None:
        told = warn_about_readers(target.others, target.others_unknown, stream.deliver)
    else:
        told = name_superseded(draft.workspace, stream.name)
    configuration = fingerprint_stream(stream, fingerprint)
    return {
        **draft.fill(snapshot, options, configuration, (*warnings, *told)),
        "target": target.planned,
        "topic_end_offsets": target.ends,
        "other_groups": target.others,
        "others_unknown": target.others_unknown,
        "ledger_topic": ledger_topic,
        "transactional_prefix": config.kafka_ledger.transactional_prefix,
        "deliver": stream.deliver,
        "off_peak": PlannedWindow.freeze(stream.off_peak),
        "limits": stream.limits,
        "quota": draft.quota,
    }


def stage_and_store(
    draft: Draft,
    target: Target,
    make: Callable[[], InjectionPlan],
    gaps: Sequence[Gap] = (),
) -> Recovery:
    """Makes the plan and stages its messages, and puts both on record.

    Where that does not come to its end nothing of it stays.

    Args:
        gaps: as they were read for the plan, which closes them (`InjectionPlan.closes`); what is
            sent elsewhere repairs nothing.

    Raises:
        InvalidTransition: one is another recovery's, or grew meanwhile: plan again.
    """
    workspace, recovery_id = draft.workspace, draft.recovery_id
    with _undoing(workspace, recovery_id) as begin_storing:
        plan = make()
        directory = workspace.staging_of(recovery_id)
        manifest = read_manifest(directory, plan.manifest_sha256)
        staged = describe_staged(workspace, draft.stream, manifest)
        plan = plan.model_copy(update={**staged, "size": sum(map(measure_chunk, manifest.chunks))})
        disk, told = check_room(workspace, plan, manifest)
        closed = [gap for gap in gaps if target.planned is None and plan.closes(gap.id)]
        told += [
            f"what {one} sent for the same gaps did not read back as staged, so this recovery will "
            f"not close them: `backlogctl show {one}` has which messages"
            for one in find_misread(workspace.ledger, plan, [gap.id for gap in closed])
        ]
        plan = plan.model_copy(update={"disk": disk, "warnings": (*plan.warnings, *told)})
        begin_storing()
        recovery = store_plan(workspace, recovery_id, plan, [gap.id for gap in closed])
        _refuse_grown(workspace, closed)
        workspace.ledger.chunks.add_all(recovery_id, manifest.chunks)
        write_copy(directory, recovery, closed)
    return finish_plan(workspace, recovery)


def _refuse_grown(workspace: Workspace, planned: Sequence[Gap]) -> None:
    """Planned, a gap grows no more; until then it may have, by what no message is staged for."""
    for gap in planned:
        now = workspace.ledger.gaps.get(gap.id)
        if (now.start, now.end, now.sequences) != (gap.start, gap.end, gap.sequences):
            error = InvalidTransition(
                "it grew while it was planned", subject=f"gap {gap.id}", hint="plan again"
            )
            error.retryable = True
            raise error


# Beside a plan's folder lies a mark of its process until the plan is on record. So where that
# process is gone, and the ledger does not know the plan, what it had staged is nobody's.

_MARK = ".planning-"
_SILENT_SECONDS = 86_400


def clear_unfinished(workspace: Workspace, say: Say) -> None:
    """Removes what plans have staged whose process is gone, and names what may be such a one."""
    for mark in workspace.config.staging.dir.glob(f"{_MARK}r-*"):
        recovery_id = mark.name.removeprefix(_MARK)
        directory = mark.with_name(recovery_id)
        try:
            ledger, owner = _read_mark(mark)
            is_ours = ledger == _name_ledger(workspace)
            if is_ours and _is_on_record(workspace, recovery_id):
                if owner.is_dead():
                    mark.unlink()
            elif is_ours and owner.is_dead():
                _remove(directory, mark)
                say(f"removed {directory}: its process ended before the plan was on record")
            elif time.time() - mark.stat().st_mtime > _SILENT_SECONDS:
                advice = f"remove it and {mark.name} if that process is gone"
                say(f"{directory}: process {owner} began it, and has not planned it yet; {advice}")
        except FileNotFoundError:
            continue  # its plan is on record by now, or another one was quicker
        except (KeyError, OSError, TypeError, ValueError) as error:
            say(f"{directory} could not be removed whole: {mark.name}: {error}")


def _read_mark(mark: Path) -> tuple[str, Owner]:
    said = json.loads(mark.read_text())
    return str(said["ledger"]), Owner(**said["owner"])


def _name_ledger(workspace: Workspace) -> str:
    """What tells ledgers apart that share a staging directory; a new password makes no new one."""
    url = make_url(workspace.config.ledger_url()).set(password=None)
    if url.get_backend_name() == "sqlite" and url.database:
        url = url.set(database=str(Path(url.database).resolve()))
    return hashlib.sha256(str(url).encode()).hexdigest()


def _is_on_record(workspace: Workspace, recovery_id: str) -> bool:
    """Raises BacklogError where the ledger does not answer."""
    try:
        workspace.ledger.recoveries.get(recovery_id)
    except UsageError:
        return False
    return True


@contextmanager
def _undoing(workspace: Workspace, recovery_id: str) -> Iterator[Callable[[], None]]:
    """Gives what is called right before the plan is put on record; what fails before that leaves
    nothing."""
    directory = workspace.staging_of(recovery_id)
    mark = directory.with_name(f"{_MARK}{recovery_id}")
    _reserve(directory, mark, _name_ledger(workspace))
    may_be_stored = threading.Event()
    is_quiet = True
    try:
        yield may_be_stored.set
    except BaseException:
        if "pyspark" in sys.modules:
            from backlogctl.spark_backfill.spark.session import end_tasks

            is_quiet = end_tasks()
        # On record it could be approved: then its messages must stay.
        with suppress(BacklogError, OSError):
            if may_be_stored.is_set():
                _withdraw(workspace, recovery_id)
            _remove(directory, mark if is_quiet else None)
        raise
    mark.unlink(missing_ok=True)
    sync_path(mark.parent)


def _remove(directory: Path, mark: Path | None) -> None:
    """The mark stays until all else is gone, and without one given, for the next plan."""
    if directory.exists():
        shutil.rmtree(directory)
    if mark is not None:
        mark.unlink(missing_ok=True)


def _reserve(directory: Path, mark: Path, ledger: str) -> None:
    """Makes the plan's own folder: what is undone is what this plan has put there.

    Raises:
        StagingError: it is there already, or cannot be made.
    """
    try:
        directory.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        directory.mkdir(mode=0o700)
        write_synced(mark, json.dumps({"ledger": ledger, "owner": asdict(Owner.current())}))
    except FileExistsError as error:
        raise StagingError(
            "it is there already, so it is another recovery's; nothing in it was touched",
            subject=str(directory),
            hint="plan again: the new plan gets an id of its own",
        ) from error
    except OSError as error:
        with suppress(OSError):
            directory.rmdir()
        raise StagingError(
            f"could not make the staging directory: {error.strerror}",
            subject=str(directory),
            hint="make `staging.dir` a directory that can be written to",
        ) from error


def _withdraw(workspace: Workspace, recovery_id: str) -> None:
    """Rejects a plan that did not come to its end, if it is on record.

    Raises:
        BacklogError: it may be on record still.
    """
    with suppress(UsageError):
        workspace.ledger.recoveries.get(recovery_id)
        workspace.ledger.recoveries.advance(
            recovery_id,
            RecoveryState.REJECTED,
            actor=str(find_identity()),
            detail={"reason": "planning did not come to its end"},
        )
