"""How an offload stands: who reads, who is stopped, and what is only in the archive."""

from __future__ import annotations

from backlog.clock import Deadline
from backlog.errors import BacklogError, Refused
from backlog.ledger.steps import RESTORE_STEP, has_stopped_consumers
from backlog.numbers import format_plural
from backlog.values import Recovery
from fanout.relay.guard import find_others
from replay.kinds.offload.plan import OffloadPlan
from replay.recovery.workspace import Workspace
from replay.telling.standing import make_standing
from replay.telling.standings import InArchive, Readers, Reads, Standing

_SECONDS = 6.0


def describe_offload(
    workspace: Workspace, recovery: Recovery, plan: OffloadPlan, *, ask: bool
) -> Standing:
    """Of the ledger, and what the brokers say where they answer."""
    ledger = workspace.ledger
    steps = {step.step: step for step in ledger.steps.list(recovery.id)}
    is_stopped = has_stopped_consumers(steps.values())
    readers, problem = Readers(Reads.ORIGINALS), ""
    if is_stopped:
        readers = Readers(Reads.UNKNOWN)
        try:
            if not ask:
                raise Refused(
                    f"the brokers are not asked here; `backlogctl show {recovery.id}` does"
                )
            properties = workspace.config.clusters[recovery.cluster].client_properties()
            found = len(find_others(properties, recovery.group, Deadline(_SECONDS)))
            readers = Readers(Reads.ORIGINALS if found else Reads.NOBODY, found)
        except BacklogError as error:
            problem = str(error)
    stopped = ""
    if is_stopped and not (RESTORE_STEP in steps and readers.originals):
        stopped = f"the {format_plural(plan.replicas, 'consumer')} of group {plan.group}"
    return make_standing(
        workspace,
        recovery,
        readers,
        stopped=stopped,
        archive=_find_archive(workspace, recovery, is_cut="delete_records" in steps),
        problem=problem,
    )


def _find_archive(workspace: Workspace, recovery: Recovery, *, is_cut: bool) -> InArchive | None:
    record = workspace.ledger.archives.find(recovery.id)
    if record is None or record.purged_at is not None:
        return None
    return InArchive(record.location, record.messages, is_only_there=is_cut)
