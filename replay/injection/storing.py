"""A plan whose messages are staged: on record with them, or not at all."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

from backlogctl.errors import BacklogError, InvalidTransition, UsageError
from backlogctl.manifests import read_manifest
from backlogctl.replay.engine.guards import store_plan
from backlogctl.replay.engine.kind import Workspace
from backlogctl.replay.engine.plan import find_identity
from backlogctl.replay.injection.context import warn_about_room
from backlogctl.replay.injection.plan import InjectionPlan
from backlogctl.values import Gap, Recovery, RecoveryState


def stage_and_store(
    workspace: Workspace,
    recovery_id: str,
    make: Callable[[], InjectionPlan],
    gaps: Sequence[Gap] = (),
) -> Recovery:
    """Makes the plan and stages its messages, and puts both on record.

    Where that does not come to its end nothing of it stays.

    Args:
        gaps: as they were read for the plan, which closes them (`InjectionPlan.closes`).

    Raises:
        InvalidTransition: one is another recovery's, or grew meanwhile: plan again.
    """
    with _undoing(workspace, recovery_id):
        plan = make()
        directory = workspace.staging_of(recovery_id)
        manifest = read_manifest(directory, plan.manifest_sha256)
        cluster = workspace.config.clusters.get(plan.cluster)
        told = [] if cluster is None else warn_about_room(cluster, plan.topic, manifest)
        plan = plan.model_copy(update={"warnings": (*plan.warnings, *told)})
        closed = [gap for gap in gaps if plan.closes(gap.id)]
        recovery = store_plan(workspace, recovery_id, plan, [gap.id for gap in closed])
        _refuse_grown(workspace, closed)
        workspace.ledger.chunks.add_all(recovery_id, manifest.chunks)
    return recovery


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


@contextmanager
def _undoing(workspace: Workspace, recovery_id: str) -> Iterator[None]:
    try:
        yield
    except BaseException:
        # It may be on record by now, and could be approved: then its messages must stay.
        with suppress(BacklogError):
            _withdraw(workspace, recovery_id)
            shutil.rmtree(workspace.staging_of(recovery_id), ignore_errors=True)
        raise


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
