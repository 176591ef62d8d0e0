"""Which task of a scheduler works on a recovery, and what a person did to it there.

The recovery's record keeps it: a run may carry on what another one planned.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from backlog.values import Recovery, RecoveryState
from replay.recovery.brakes import OPERATOR
from replay.recovery.cancelling import request_pause
from replay.recovery.identity import find_identity
from replay.recovery.origins import AIRFLOW, find_origin
from replay.recovery.workspace import Workspace

WORKS = "a task works on it"
MARKED = "a person marked its task failed"
BEGINNINGS = ("running", "taken over")
_HELD = (RecoveryState.RUNNING, RecoveryState.PAUSED)


@dataclass(frozen=True, slots=True)
class WorkTask:
    """A task of a run; `map_index` is -1 where it is not mapped."""

    dag_id: str
    run_id: str
    task_id: str
    map_index: int = -1

    @property
    def key(self) -> str:
        """As Airflow names it among the states of a run."""
        return self.task_id if self.map_index < 0 else f"{self.task_id}_{self.map_index}"

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        return f"{self.dag_id}/{self.run_id}/{self.key}"


def note_task(workspace: Workspace, recovery_id: str, task: WorkTask) -> None:
    """Puts on record that the task works on it from now on; once, while no other did since."""
    known = _list_tasks(workspace, recovery_id)
    if not known or known[-1] != task:
        _append(workspace, recovery_id, WORKS, task)


def find_task(workspace: Workspace, recovery: Recovery) -> WorkTask | None:
    """The last task that worked on it; None where nobody did, or a person did since, by hand."""
    found: WorkTask | None = None
    for event in workspace.ledger.events.list(recovery.id):
        if event.action == WORKS:
            found = WorkTask(**event.detail)
        elif event.action in BEGINNINGS and not is_airflow(event.actor):
            found = None
    return found


def is_airflow(actor: str | None) -> bool:
    """Whether a task did it, and not a person in the shell."""
    return (actor or "").startswith(f"{AIRFLOW}:")


def find_run(workspace: Workspace, recovery: Recovery) -> tuple[str, str] | None:
    """DAG and run that work on it, or have planned it."""
    if (task := find_task(workspace, recovery)) is not None:
        return task.dag_id, task.run_id
    origin = find_origin(recovery)
    return None if origin is None else (origin.dag_id, origin.run_id)


def hold_for_person(workspace: Workspace, recovery: Recovery, task: WorkTask) -> str:
    """A person marked the task failed: the recovery waits until a person lifts that.

    Returns:
        What happened, and what goes on with it, in one sentence.
    """
    told = (
        f"{recovery.id}: {MARKED} ({task}); `backlogctl resume {recovery.id}` goes on, and so does "
        "clearing that task, or a new run of recover_backlog that names the recovery"
    )
    if recovery.state in _HELD and recovery.detail.get("why") != OPERATOR:
        request_pause(workspace, recovery.id)
    if not _is_held(workspace, recovery.id):
        _append(workspace, recovery.id, MARKED, task)
    return told


def lifts_hold(workspace: Workspace, recovery: Recovery, task: WorkTask) -> bool:
    """Whether this task is a person's word to go on: it is the one that was marked, and was
    cleared, or one that never worked on it before. One that waited beside it is not."""
    if not _is_held(workspace, recovery.id):
        return False
    before: list[WorkTask] = []
    for event in workspace.ledger.events.list(recovery.id):
        if event.action == WORKS:
            before.append(WorkTask(**event.detail))
        elif event.action == MARKED and WorkTask(**event.detail) == task:
            return True
    return task not in before


def _is_held(workspace: Workspace, recovery_id: str) -> bool:
    """Whether it was marked since anybody last began to work on it."""
    held = False
    for event in workspace.ledger.events.list(recovery_id):
        if event.action == MARKED:
            held = True
        elif event.action in BEGINNINGS:
            held = False
    return held


def _list_tasks(workspace: Workspace, recovery_id: str) -> list[WorkTask]:
    events = workspace.ledger.events.list(recovery_id)
    return [WorkTask(**event.detail) for event in events if event.action == WORKS]


def _append(workspace: Workspace, recovery_id: str, action: str, task: WorkTask) -> None:
    actor = str(find_identity())
    workspace.ledger.events.append(recovery_id, actor, action, task.to_json())
