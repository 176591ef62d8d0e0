"""The note of a run: what came of a recovery, or why there was nothing; what audits found."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from airflow.listeners import hookimpl

from backlogctl.dags.airflow_internals import Side, find_unsuited
from backlogctl.dags.policies import ASKING, AUDIT, FOUND, REASON

if TYPE_CHECKING:
    from backlogctl.dags.airflow_internals import DagRun

LOG = logging.getLogger(__name__)
# By DAG, which task tells what.
_TOLD = {**dict.fromkeys(ASKING, ("report", REASON)), AUDIT: ("audit", FOUND)}
# What Airflow keeps of a note.
_LONGEST = 1_000


@hookimpl
def on_dag_run_success(dag_run: DagRun) -> None:
    """Called where Airflow ends the run, within its transaction."""
    _write_note(dag_run)


@hookimpl
def on_dag_run_failed(dag_run: DagRun) -> None:
    _write_note(dag_run)


def _write_note(run: DagRun) -> None:
    if run.dag_id not in _TOLD:
        return
    if lost := find_unsuited(Side.SCHEDULER):
        LOG.warning("no note of run %s: %s", run.run_id, lost)
        return
    from sqlalchemy.orm import object_session

    from backlogctl.dags.airflow_internals import XComModel

    session, kept = object_session(run), run.dag_run_note
    # What a person has written stays; ours, of before the run was cleared, has no user.
    if session is None or (kept and kept.user_id):
        return
    task, key = _TOLD[run.dag_id]
    wanted = XComModel.get_many(run_id=run.run_id, dag_ids=run.dag_id, task_ids=task, key=key)
    told = [str(XComModel.deserialize_value(one)) for one in session.scalars(wanted)]
    if told or kept:  # what an earlier try has told is no longer so
        run.note = "\n".join(told)[:_LONGEST]
