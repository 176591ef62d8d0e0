"""Recoveries that a paused Airflow DAG would silently leave unfinished."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from backlog.numbers import format_plural
from backlog.values import Recovery, RecoveryState
from replay.injection.archived import list_archived
from replay.kinds.rebuild.choosing import list_repairable
from replay.kinds.rebuild.kind import KIND as REBUILD
from replay.recovery.brakes import OPERATOR
from replay.recovery.origins import find_origin
from replay.recovery.states import ACTIVE, UNFINISHED
from replay.recovery.workspace import Workspace
from replay.runbooks.restoring import is_run_by_hand


@dataclass(frozen=True, slots=True)
class WaitingWork:
    """One sentence each: what the nights will do, and what runs of each DAG have begun."""

    nightly: tuple[str, ...]
    recovering: Mapping[str, tuple[str, ...]]


def list_waiting_work(workspace: Workspace, recovering_dags: Sequence[str]) -> WaitingWork:
    """From the ledger; what a person paused or carries on by hand is left out.

    Args:
        recovering_dags: ids of the DAGs that carry recoveries out.
    """
    nightly: list[str] = []
    recovering: dict[str, tuple[str, ...]] = {}
    for recovery in workspace.ledger.recoveries.list(states=ACTIVE):
        told = f"{recovery.id} of {recovery.stream} is {recovery.state}"
        if recovery.kind not in workspace.kinds.names() or _is_a_persons(workspace, recovery):
            continue
        origin = find_origin(recovery)
        if origin is not None and origin.dag_id in recovering_dags:
            recovering[origin.dag_id] = (*recovering.get(origin.dag_id, ()), told)
        elif recovery.kind == REBUILD.name and recovery.state in UNFINISHED:
            nightly.append(told)
    for name, stream in workspace.config.streams.items():
        if lost := list_repairable(workspace.ledger, stream):
            nightly.append(f"{name} has {format_plural(len(lost), 'open gap')}")
        if kept := len({each.gap.id for each in list_archived(workspace.ledger, stream)}):
            waits = "waits" if kept == 1 else "wait"
            nightly.append(f"{format_plural(kept, 'gap')} of {name} {waits} in an archive")
    return WaitingWork(tuple(nightly), recovering)


def _is_a_persons(workspace: Workspace, recovery: Recovery) -> bool:
    paused = recovery.state is RecoveryState.PAUSED and recovery.detail.get("why") == OPERATOR
    begun = recovery.state in UNFINISHED
    return paused or (begun and is_run_by_hand(workspace, recovery))
