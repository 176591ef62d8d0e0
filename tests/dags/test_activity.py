"""Whether a task of Airflow works on a recovery, or will."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import MagicMock

import pytest
from airflow.sdk import Context
from airflow.sdk.api.datamodels._generated import DagRunState
from airflow.sdk.exceptions import AirflowRuntimeError, ErrorType
from airflow.sdk.execution_time.comms import ErrorResponse

from backlogctl_airflow import activity
from backlogctl_airflow.activity import DELETED, find_run_state, is_served, was_marked_failed
from replay.runbooks.working import WorkTask

TASKS = ("expand.carry_out", "expand.restore_layout")


def make_context(state: Any = DagRunState.RUNNING, **states: str | None) -> Context:
    """A task's, whose Airflow answers so."""
    task = MagicMock()
    task.get_dagrun_state.side_effect = [state] if isinstance(state, Exception) else None
    task.get_dagrun_state.return_value = state
    found = {name.replace("__", "."): now for name, now in states.items()}
    task.get_task_states.return_value = {"run-1": found}
    return cast("Context", {"ti": task, "dag_run": SimpleNamespace()})


def gone() -> AirflowRuntimeError:
    detail = {"status_code": 404}
    return AirflowRuntimeError(ErrorResponse(error=ErrorType.API_SERVER_ERROR, detail=detail))


def test_a_run_that_was_deleted_is_one_of_its_states() -> None:
    assert find_run_state(make_context(DagRunState.FAILED), "d", "run-1") == "failed"
    assert find_run_state(make_context(gone()), "d", "run-1") == DELETED


@pytest.mark.parametrize(
    ("paused", "work", "teardown", "served"),
    [
        (False, "running", None, True),
        (False, "up_for_retry", None, True),
        (False, "up_for_reschedule", None, True),
        (False, "failed", None, True),  # the teardown is scheduled soon
        (False, "failed", "success", False),  # somebody marked it: nothing is given back
        (False, "removed", "removed", False),
        (True, "running", None, True),
        (True, "queued", None, True),
        (True, "up_for_retry", None, False),
        (True, "failed", None, False),
    ],
)
def test_who_will_work_on_it(
    monkeypatch: pytest.MonkeyPatch, paused: bool, work: str, teardown: str | None, served: bool
) -> None:
    monkeypatch.setattr(activity, "is_paused", lambda _: paused)
    states = {"expand__carry_out": work, "expand__restore_layout": teardown, "report": None}
    context = make_context(**states)
    assert is_served(context, "d", "run-1", TASKS) is served
    for over in (DagRunState.FAILED, DagRunState.SUCCESS, gone()):
        assert not is_served(make_context(over, **states), "d", "run-1", TASKS)


@pytest.mark.parametrize(
    ("state", "ended", "marked"),
    [("failed", None, True), ("failed", True, False), ("success", None, False)],
)
def test_a_mark_is_a_failure_that_no_task_made(state: str, ended: Any, marked: bool) -> None:
    context = make_context(work=state, put_back_3=state)
    cast("Any", context)["ti"].xcom_pull.return_value = ended
    for task in (WorkTask("d", "run-1", "work"), WorkTask("d", "run-1", "put_back", 3)):
        assert was_marked_failed(context, task) is marked
