"""The note of a run that recovers: what its last task said came of it, or why there was nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow.listeners import hookimpl

from backlogctl.dags.policies import ASKING, REASON

if TYPE_CHECKING:
    from airflow.models.dagrun import DagRun

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
    from airflow.models.xcom import XComModel
    from sqlalchemy.orm import object_session

    session, kept = object_session(run), run.dag_run_note
    # What a person has written stays; ours, of before the run was cleared, has no user.
    if run.dag_id not in ASKING or session is None or (kept and kept.user_id):
        return
    wanted = XComModel.get_many(
        run_id=run.run_id, dag_ids=run.dag_id, task_ids="report", key=REASON, limit=1
    )
    if (found := session.scalar(wanted)) is not None:
        run.note = str(XComModel.deserialize_value(found))[:_LONGEST]
