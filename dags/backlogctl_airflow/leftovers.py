"""Recoveries that stopped consumers, that nobody works on, and no task of Airflow will end."""

from __future__ import annotations

import logging

from airflow.sdk import Context, get_current_context

from backlog.errors import BacklogError, LeaseHeld
from backlog.values import Recovery
from backlogctl_airflow.acting import make_console, opened
from backlogctl_airflow.activity import is_served
from backlogctl_airflow.reasons import RunbookError, describe_error, fail
from replay.recovery.brakes import PausedBecause
from replay.recovery.workspace import Workspace
from replay.runbooks.restoring import list_left_open, restore_layout
from replay.runbooks.working import find_run

LOG = logging.getLogger("backlogctl_airflow")


def restore_left_open() -> list[str]:
    """Gives the layout back where nobody works on its recovery, and no task will.

    A teardown is none that will: it is not scheduled in a DAG that is paused, nor in a run that was
    cut off.
    """
    context = get_current_context()
    restored: list[str] = []
    problems: list[str] = []
    with opened(context) as workspace:
        for recovery in list_left_open(workspace):
            if _is_served(context, workspace, recovery):
                continue
            LOG.info("%s: no task works on it, or will", recovery.id)
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
        fail(context, RunbookError("\n".join(problems)))
    return restored


def _is_served(context: Context, workspace: Workspace, recovery: Recovery) -> bool:
    found = find_run(workspace, recovery)
    tasks = (f"{recovery.kind}.carry_out", f"{recovery.kind}.restore_layout")
    return found is not None and is_served(context, *found, tasks)
