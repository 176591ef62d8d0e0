"""Expansions that a run left open: a teardown does not run when its run is cut off."""

from __future__ import annotations

import logging
from http import HTTPStatus

from airflow.sdk import Context, get_current_context, task
from airflow.sdk.exceptions import AirflowRuntimeError as RuntimeFailure

from backlog.errors import BacklogError, LeaseHeld
from backlog.values import Recovery
from backlogctl_airflow.acting import RunbookError, describe_error, make_console, opened
from backlogctl_airflow.tasks import LOOK
from replay.recovery.brakes import PausedBecause
from replay.recovery.origins import find_origin
from replay.runbooks.restoring import list_left_open, restore_layout

LOG = logging.getLogger("backlogctl_airflow")
_DELETED = "deleted"
_OVER = ("success", "failed", _DELETED)


# Few tries: the next run of its DAG is one too.
@task(**LOOK)
def restore_left_open() -> list[str]:
    """Gives the layout back where the run is over, and nobody works on its recovery."""
    context = get_current_context()
    restored: list[str] = []
    problems: list[str] = []
    with opened(context) as workspace:
        for recovery in list_left_open(workspace):
            if (state := _find_state(context, recovery)) not in _OVER:
                continue
            LOG.info("%s: its run is over (%s)", recovery.id, state)
            try:
                restore_layout(workspace, recovery.id, console=make_console(), say=LOG.info)
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
        raise RunbookError("; ".join(problems))
    return restored


def _find_state(context: Context, recovery: Recovery) -> str:
    origin = find_origin(recovery)
    assert origin is not None
    try:
        return str(context["ti"].get_dagrun_state(origin.dag_id, origin.run_id))
    except RuntimeFailure as failure:
        if (failure.error.detail or {}).get("status_code") == HTTPStatus.NOT_FOUND:
            return _DELETED
        raise
