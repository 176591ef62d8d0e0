"""What Airflow knows of DAGs, runs and tasks, as a task may ask it."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus

from airflow.sdk import Context, DagRunState
from airflow.sdk.exceptions import AirflowRuntimeError
from airflow.sdk.execution_time.comms import DagResult, GetDag

from backlogctl_airflow.reasons import ENDED
from replay.runbooks.working import WorkTask

DELETED = "deleted"
RUN_OVER = ("success", "failed", DELETED)
# A worker has it, or will take it also where its DAG is paused.
_AT_WORK = ("running", "queued", "restarting")
_OVER = ("success", "failed", "skipped", "upstream_failed", "removed")


def name_task(context: Context) -> WorkTask:
    """The task that asks."""
    run, task = context["dag_run"], context["ti"]
    index = -1 if task.map_index is None else task.map_index
    return WorkTask(run.dag_id, run.run_id, task.task_id, index)


def find_run_state(context: Context, dag_id: str, run_id: str) -> str:
    """Of a run, `deleted` where there is none."""
    try:
        # An enumeration, though Airflow says that it is text.
        return DagRunState(context["ti"].get_dagrun_state(dag_id, run_id)).value
    except AirflowRuntimeError as failure:
        if (failure.error.detail or {}).get("status_code") == HTTPStatus.NOT_FOUND:
            return DELETED
        raise


def list_states(context: Context, dag_id: str, run_id: str) -> Mapping[str, str | None]:
    """By task id, with `_N` behind it where it is mapped; None: not looked at by the scheduler."""
    found = context["ti"].get_task_states(dag_id=dag_id, run_ids=[run_id])
    states: Mapping[str, str | None] = found.get(run_id, {})
    return states


def find_task_state(context: Context, task: WorkTask) -> str | None:
    """Of a task; None also where there is none."""
    return list_states(context, task.dag_id, task.run_id).get(task.key)


def is_paused(dag_id: str) -> bool:
    """Whether the scheduler leaves the DAG alone; one that is not there is not paused."""
    from airflow.sdk.execution_time.task_runner import SUPERVISOR_COMMS  # there only in a task

    try:
        answer = SUPERVISOR_COMMS.send(GetDag(dag_id=dag_id))
    except AirflowRuntimeError as failure:
        if (failure.error.detail or {}).get("status_code") == HTTPStatus.NOT_FOUND:
            return False
        raise
    return isinstance(answer, DagResult) and answer.is_paused


def is_served(context: Context, dag_id: str, run_id: str, task_ids: tuple[str, ...]) -> bool:
    """Whether one of these tasks of a run is at work, or will be.

    Nothing begins in a DAG that is paused, though its runs stay `running`: a teardown neither.
    """
    if find_run_state(context, dag_id, run_id) in RUN_OVER:
        return False
    states = list_states(context, dag_id, run_id)
    mine = [states[task_id] for task_id in task_ids if task_id in states]
    if any(state in _AT_WORK for state in mine):
        return True
    return not is_paused(dag_id) and any(state not in _OVER for state in mine)


def was_marked_failed(context: Context, task: WorkTask) -> bool:
    """Whether somebody marked the task: it is failed, and did not end by itself."""
    if find_task_state(context, task) != "failed":
        return False
    ended = context["ti"].xcom_pull(
        dag_id=task.dag_id,
        run_id=task.run_id,
        task_ids=task.task_id,
        key=ENDED,
        map_indexes=task.map_index,
    )
    return not ended
