"""What the tasks of `detect_backlog` do: look, and pick what is started for what they found."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from airflow.sdk import Context, Variable, get_current_context

from backlogctl.clock import utc_now
from backlogctl.dags.configuration import find_deployment
from backlogctl.dags.policies import ASKING, NIGHTLY, RECOVER
from backlogctl.dags.task_context import (
    DELETED,
    ENDED,
    RUN_OVER,
    RunbookError,
    RunbookRefusal,
    alert,
    describe_error,
    fail,
    find_run_state,
    is_paused,
    is_served,
    list_states,
    name_mapped,
    opened,
)
from backlogctl.errors import BacklogError, LeaseHeld
from backlogctl.formats import format_plural
from backlogctl.replay.engine.brakes import PausedBecause
from backlogctl.replay.engine.kind import Workspace
from backlogctl.replay.observe.retention import release_due
from backlogctl.replay.runbooks.detection import (
    Came,
    Started,
    decide_start,
    detect_backlog,
    should_plan,
)
from backlogctl.replay.runbooks.requests import AUTO
from backlogctl.replay.runbooks.work import (
    describe_other,
    find_run,
    list_left_open,
    list_waiting_work,
    make_task_console,
    restore_layout,
)
from backlogctl.values import Recovery

# Recoveries that stopped consumers, that nobody works on, and no task of Airflow will end.

LOG = logging.getLogger(__name__)


def restore_left_open() -> list[str]:
    """Gives the layout back where nobody works on its recovery, and no task will.

    A teardown is none that will: it is not scheduled in a DAG that is paused, nor in a run that was
    cut off. A run of another Airflow is not known here, and not over for that (fault 138).
    """
    context = get_current_context()
    restored: list[str] = []
    problems: list[str] = []
    with opened(context) as workspace:
        for told in release_due(workspace):
            LOG.info("%s", told)
        deployment = find_deployment()
        for recovery in list_left_open(workspace):
            if other := describe_other(workspace, recovery, deployment):
                LOG.warning("%s", other)
                continue
            if _is_served(context, workspace, recovery):
                continue
            LOG.info("%s: no task works on it, or will", recovery.id)
            try:
                restore_layout(workspace, recovery.id, console=make_task_console(), say=LOG.info)
            except LeaseHeld as held:
                LOG.info("%s: somebody works on it: %s", recovery.id, held.message)
            except PausedBecause:
                raise  # this task is to end
            except BacklogError as error:
                # It does not keep the others waiting.
                problems.append(f"{recovery.id}: {describe_error(error)}")
            else:
                restored.append(recovery.id)
    if problems:
        fail(context, RunbookError("\n".join(problems)))
    return restored


def _is_served(context: Context, workspace: Workspace, recovery: Recovery) -> bool:
    found = find_run(workspace, recovery)
    tasks = (f"{recovery.kind}.carry_out", f"{recovery.kind}.restore_layout")
    return found is not None and is_served(context, found.dag_id, found.run_id, tasks)


# Variables of Airflow, one a stream.
TOLD, STARTED = "backlogctl_told__", "backlogctl_started__"
_TOLD_OF = "The newest gap that an asset event reported. Without it, open ones are reported again."
_STARTED_OF = "The last run of recover_backlog that a detection started."


def list_streams() -> list[str]:
    context = get_current_context()
    with opened(context) as workspace:
        named = context["params"].get("streams") or list(workspace.config.streams)
        return [workspace.config.stream(name).name for name in dict.fromkeys(named)]


def sample_and_judge(stream: str) -> dict[str, Any]:
    context = get_current_context()
    name_mapped(context, stream=stream)
    told = Variable.get(TOLD + stream, default="")
    with opened(context) as workspace:
        chosen = workspace.config.stream(stream)
        found = detect_backlog(workspace, chosen, told)
        starts = should_plan(workspace, chosen, found)
    LOG.info("%s: %s", stream, found.sentence)
    if found.alarming:
        alert(context, chosen, found.to_json())
    if found.newest_gap != told:
        Variable.set(TOLD + stream, found.newest_gap, description=_TOLD_OF)
    return {**found.to_json(), "starts": starts}


def pick_recoveries(looks: Any) -> list[dict[str, Any]]:
    context, picked = get_current_context(), []
    for found in looks:
        if found["starts"] and (start := _decide(context, found)) is not None:
            name, document = found["stream"], start.to_json()
            # First: where this task is cut off, the next look finds that there is no such run.
            Variable.set(STARTED + name, document, description=_STARTED_OF, serialize_json=True)
            conf = {"stream": name, "action": AUTO, "note": found["sentence"][:500]}
            picked.append({"trigger_run_id": start.run_id, "conf": conf})
    return picked


def tell_paused() -> None:
    context = get_current_context()
    with opened(context) as workspace:
        waiting = list_waiting_work(workspace, ASKING, find_deployment())
    paused = []
    for dag_id in filter(is_paused, (NIGHTLY, *ASKING)):
        what = waiting.nightly if dag_id == NIGHTLY else waiting.recovering.get(dag_id, ())
        # What they have not planned yet, such as a hold, the ledger does not know (fault 168).
        if runs := context["ti"].get_dr_count(dag_id, states=["queued", "running"]):
            verb = "is" if runs == 1 else "are"
            what = (*what, f"{format_plural(runs, 'run')} that {verb} not over")
        if what:
            told = f"{dag_id} is paused, and has work: {'; '.join(what)}"
            paused.append(f"{told}. `airflow dags unpause {dag_id}`")
    if paused:
        fail(context, RunbookRefusal("\n".join(paused)))


def _decide(context: Context, found: Mapping[str, Any]) -> Started | None:
    stream, now = found["stream"], utc_now()
    last = Started.read(Variable.get(STARTED + stream, default=None, deserialize_json=True))
    came = Came.ENDED if last is None else _find_end(context, last)
    start = decide_start(stream, found["occasion"], last, came, now)
    if start is None and last is not None:
        LOG.info("%s: %s was started at %s and is %s", stream, last.run_id, last.at, came)
    return start


def _find_end(context: Context, last: Started) -> Came:
    """What came of a run: it failed by itself where one of its tasks has ended so."""
    state = find_run_state(context, RECOVER, last.run_id)
    if state == DELETED:
        return Came.BROKEN
    if state not in RUN_OVER:
        return Came.OPEN
    if state == "success":
        return Came.ENDED
    states = list_states(context, RECOVER, last.run_id)
    failed = [name for name, now in states.items() if now == "failed" and name != "report"]
    reasons = context["ti"].xcom_pull(
        dag_id=RECOVER, run_id=last.run_id, task_ids=failed, key=ENDED
    )
    return Came.BROKEN if failed and any(reasons or ()) else Came.ENDED
