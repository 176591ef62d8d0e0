"""What waits for a scheduler's runbooks to go on: lost without a sound where one is paused."""

from __future__ import annotations

from dataclasses import dataclass

from backlog.numbers import format_plural
from backlog.values import Gap, GapState, Recovery, RecoveryState
from replay.kinds.rebuild.kind import KIND as REBUILD
from replay.kinds.rebuild.planning import say_why_not
from replay.recovery.brakes import OPERATOR
from replay.recovery.origins import find_origin
from replay.recovery.states import ACTIVE, UNFINISHED
from replay.recovery.workspace import Workspace
from replay.runbooks.restoring import is_run_by_hand


@dataclass(frozen=True, slots=True)
class WaitingWork:
    """One sentence each: what the nights will do, and what runs of a scheduler have begun."""

    nightly: tuple[str, ...]
    recovering: tuple[str, ...]


def list_waiting_work(workspace: Workspace, recovering_dag: str) -> WaitingWork:
    """From the ledger; what a person paused or carries on by hand is left out.

    Args:
        recovering_dag: id of the DAG that carries recoveries out.
    """
    nightly, recovering = [], []
    for recovery in workspace.ledger.recoveries.list(states=ACTIVE):
        told = f"{recovery.id} of {recovery.stream} is {recovery.state}"
        if recovery.kind not in workspace.kinds.names() or _is_a_persons(workspace, recovery):
            continue
        origin = find_origin(recovery)
        if origin is not None and origin.dag_id == recovering_dag:
            recovering.append(told)
        elif recovery.kind == REBUILD.name and recovery.state in UNFINISHED:
            nightly.append(told)
    for name, stream in workspace.config.streams.items():
        gaps = workspace.ledger.gaps.list(stream=name, states=[GapState.OPEN])
        mine: list[Gap] = [gap for gap in gaps if not say_why_not(gap, stream, gap.topic_id)]
        if stream.source is not None and mine:
            nightly.append(f"{name} has {format_plural(len(mine), 'open gap')}")
    return WaitingWork(tuple(nightly), tuple(recovering))


def _is_a_persons(workspace: Workspace, recovery: Recovery) -> bool:
    paused = recovery.state is RecoveryState.PAUSED and recovery.detail.get("why") == OPERATOR
    begun = recovery.state in UNFINISHED
    return paused or (begun and is_run_by_hand(workspace, recovery))
