"""Carries a recovery on as far as it goes now, and says when to come again."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta
from typing import Any

from rich.console import Console

from backlogctl.clock import utc_now
from backlogctl.errors import LeaseHeld, Refused
from backlogctl.formats import format_plural
from backlogctl.replay.engine.brakes import OPERATOR, WINDOW, PausedBecause
from backlogctl.replay.engine.cancelling import cancel_work, request_pause
from backlogctl.replay.engine.kind import Workspace
from backlogctl.replay.engine.plan import (
    ACTIVE,
    AIRFLOW,
    UNFINISHED,
    RunOrigin,
    find_identity,
    find_origin,
    name_origin,
)
from backlogctl.replay.engine.runner import Run
from backlogctl.replay.injection.archived import list_archived
from backlogctl.replay.kinds.rebuild.kind import KIND as REBUILD
from backlogctl.replay.kinds.rebuild.losses import list_repairable
from backlogctl.replay.present.status import describe_run
from backlogctl.values import FINAL, Recovery, RecoveryState

# How soon to look again at what somebody else does, or holds.
OTHER_SECONDS = 20.0
HELD_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Carried:
    """How far it came; `come_again` is None where it is verified."""

    recovery: Recovery
    come_again: datetime | None
    why: str
    document: dict[str, Any] = field(default_factory=dict)

    @property
    def waits_for_window(self) -> bool:
        """Whether the off-peak window is closed now."""
        return self.why == WINDOW

    def to_json(self) -> dict[str, Any]:
        """Without the recovery itself: `read_carried` looks it up."""
        at = self.come_again and self.come_again.isoformat()
        return {
            "recovery": self.recovery.id,
            "come_again": at,
            "why": self.why,
            "document": self.document,
        }


def read_carried(workspace: Workspace, document: Mapping[str, Any]) -> Carried:
    """Of `Carried.to_json`."""
    recovery, at = workspace.ledger.recoveries.get(document["recovery"]), document["come_again"]
    come_again = at and datetime.fromisoformat(at)
    return Carried(recovery, come_again, document["why"], document["document"])


def make_task_console() -> Console:
    """Progress as lines of a log."""
    return Console(file=sys.stdout, force_terminal=False, width=120)


def carry_on(
    workspace: Workspace, recovery_id: str, console: Console, *, resumed: bool = False
) -> Carried:
    """Runs it until it is verified, or must wait without anything to do.

    Waits for: its off-peak window, an operator's `resume`, another runner.

    Args:
        resumed: a person lets it go on that had paused it.

    Raises:
        PausedBecause: it was interrupted, or its canary was too slow and a person must look.
        ApprovalNeeded, Refused, CancelRequested: it may not run, or was cancelled.
        BacklogError: it failed, and can be run again.
    """
    run = Run(workspace, recovery_id, console, resumed=resumed)
    try:
        done = run.carry_out()
    except LeaseHeld as held:
        return _wait(
            workspace, recovery_id, OTHER_SECONDS, f"another runner has it: {held.message}"
        )
    except PausedBecause as pause:
        recovery = workspace.ledger.recoveries.get(recovery_id)
        window = workspace.plan_now(recovery).off_peak
        if pause.why == WINDOW and window is not None:
            return Carried(recovery, window.open().next_opening(utc_now()), WINDOW)
        if pause.why == OPERATOR:
            return _wait(workspace, recovery_id, HELD_SECONDS, pause.message)
        raise
    return Carried(done, None, "", describe_run(workspace, done, run.describe()))


def can_begin(workspace: Workspace, recovery: Recovery) -> bool:
    """Whether there may be work now: where there is none, no driver is started to say so."""
    waits = recovery.state is RecoveryState.PAUSED and recovery.detail.get("why") == OPERATOR
    return not (waits or is_at_end(recovery) or is_worked_on(workspace, recovery))


def is_at_end(recovery: Recovery) -> bool:
    """Whether nothing more will be done."""
    return recovery.state in FINAL


def _wait(workspace: Workspace, recovery_id: str, seconds: float, why: str) -> Carried:
    recovery = workspace.ledger.recoveries.get(recovery_id)
    return Carried(recovery, utc_now() + timedelta(seconds=seconds), why)


# Which task of a scheduler works on a recovery, and what a person did to it there.
#
# The recovery's record keeps it: a run may carry on what another one planned.

WORKS = "a task works on it"
MARKED = "a person marked its task"
BEGINNINGS = ("running", "taken over")
_HELD = (RecoveryState.RUNNING, RecoveryState.PAUSED)


@dataclass(frozen=True, slots=True)
class WorkTask:
    """A task of a run; `map_index` is -1 where it is not mapped; `deployment` as of `RunOrigin`."""

    dag_id: str
    run_id: str
    task_id: str
    map_index: int = -1
    deployment: str = ""

    @property
    def key(self) -> str:
        """As Airflow names it among the states of a run."""
        return self.task_id if self.map_index < 0 else f"{self.task_id}_{self.map_index}"

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        return f"{self.dag_id}/{self.run_id}/{self.key}"


def record_task(workspace: Workspace, recovery_id: str, task: WorkTask) -> None:
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


def find_run(workspace: Workspace, recovery: Recovery) -> RunOrigin | None:
    """The run that works on it, or has planned it."""
    if (task := find_task(workspace, recovery)) is not None:
        return name_origin(task.dag_id, task.run_id, deployment=task.deployment)
    return find_origin(recovery)


def describe_other(workspace: Workspace, recovery: Recovery, deployment: str) -> str:
    """What is said of a recovery that another Airflow than this one has; "" of any other.

    What became of its run only that Airflow knows: a run that is not here may be at work there.
    """
    run = find_run(workspace, recovery)
    if run is None or run.deployment == deployment:
        return ""
    whose = f"another Airflow ({run.deployment})" if run.deployment else "an Airflow without a name"
    return (
        f"{recovery.id} is {recovery.state}, and left to {whose}, run {run.run_id} of {run.dag_id};"
        f" `backlogctl show {recovery.id}` says what goes on with it or ends it, and a run of "
        "recover_backlog that names it takes it over"
    )


def hold_for_person(workspace: Workspace, recovery: Recovery, task: WorkTask) -> str:
    """A person marked the task: the recovery waits until a person lifts that.

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


# Gives back what a scheduler's run left stopped: consumers, and their layout.

# What must go forward is waited for: messages may be in a temporary topic, or an archive, only.
RESTORE_SECONDS = 3600.0
PAUSE_ASKED = "pause requested"
_PAUSES = (PAUSE_ASKED, "paused")


def restore_layout(
    workspace: Workspace,
    recovery_id: str,
    *,
    console: Console,
    say: Callable[[str], None] = lambda _: None,
) -> Recovery:
    """Cancels what this scheduler began and did not end; anything else is left alone.

    Its kind knows whether that goes back or forward; the consumers are started in any case.
    Safe to call again, and after the work is done.

    Raises:
        LeaseHeld: its runner has not stopped within the time.
        BacklogError: it could not be closed; nothing is lost, call again.
    """
    recovery = workspace.ledger.recoveries.get(recovery_id)
    workspace.kind_of(recovery)
    if not recovery.stops_consumers or recovery.state not in UNFINISHED:
        say(f"{recovery_id} is {recovery.state}: the layout is as it was")
        return recovery
    if is_run_by_hand(workspace, recovery):
        say(f"{recovery_id} is carried on from the shell: left alone")
        return recovery
    try:
        return cancel_work(workspace, recovery_id, wait=RESTORE_SECONDS, say=say, console=console)
    except LeaseHeld:
        raise
    except Refused:
        # Its runner may have come to the end before it saw the request.
        found = workspace.ledger.recoveries.get(recovery_id)
        if not is_at_end(found):
            raise
        return found


def is_run_by_hand(workspace: Workspace, recovery: Recovery) -> bool:
    """Whether a person took it over in the shell: it runs, or they paused it, on purpose.

    Or they approved it there, and nobody began it yet.
    """
    if recovery.state is RecoveryState.APPROVED:
        return not is_airflow(recovery.approved_identity)
    paused = recovery.state is RecoveryState.PAUSED and recovery.detail.get("why") == OPERATOR
    if paused or recovery.requested == "pause":
        return not is_airflow(_find_actor(workspace, recovery.id, _PAUSES))
    return is_worked_on(workspace, recovery) and not is_airflow(
        _find_actor(workspace, recovery.id, BEGINNINGS)
    )


def is_worked_on(workspace: Workspace, recovery: Recovery) -> bool:
    """Whether a live runner has it now."""
    return workspace.ledger.leases.find_runner(recovery.id) is not None


def _find_actor(workspace: Workspace, recovery_id: str, actions: tuple[str, ...]) -> str:
    """Who did the last of these; of a pause, who asked for it: a runner only obeys."""
    actor, asked = "", ""
    for event in workspace.ledger.events.list(recovery_id):
        if event.action == PAUSE_ASKED:
            asked = event.actor
        elif event.action in (*BEGINNINGS, "request taken back"):
            asked = ""
        if event.action in actions:
            actor = asked or event.actor
    return actor


def list_left_open(workspace: Workspace) -> tuple[Recovery, ...]:
    """What a scheduler's run began, that stops consumers, and that nobody works on now.

    Whether one of its tasks will is for the scheduler to say. What another version of this program
    planned is that version's to restore.
    """
    found: list[Recovery] = []
    for recovery in workspace.ledger.recoveries.list(states=UNFINISHED):
        known = recovery.kind in workspace.kinds.names()
        if not known or not recovery.stops_consumers or find_origin(recovery) is None:
            continue
        if not is_worked_on(workspace, recovery) and not is_run_by_hand(workspace, recovery):
            found.append(recovery)
    return tuple(found)


# Recoveries that a paused Airflow DAG would silently leave unfinished.


@dataclass(frozen=True, slots=True)
class WaitingWork:
    """One sentence each: what the nights will do, and what runs of each DAG have begun."""

    nightly: tuple[str, ...]
    recovering: Mapping[str, tuple[str, ...]]


def list_waiting_work(
    workspace: Workspace, recovering_dags: Sequence[str], deployment: str = ""
) -> WaitingWork:
    """From the ledger; what a person paused or carries on by hand, or another Airflow has, is left
    out.

    Args:
        recovering_dags: ids of the DAGs that carry recoveries out.
        deployment: the Airflow whose DAGs they are.
    """
    nightly: list[str] = []
    recovering: dict[str, tuple[str, ...]] = {}
    for recovery in workspace.ledger.recoveries.list(states=ACTIVE):
        told = f"{recovery.id} of {recovery.stream} is {recovery.state}"
        if recovery.kind not in workspace.kinds.names() or _is_a_persons(workspace, recovery):
            continue
        if describe_other(workspace, recovery, deployment):
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
