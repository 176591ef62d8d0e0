"""What Airflow's database has of a run: its note (what came of a recovery, or why there was
nothing; what audits found), and whether its question is open; and which Airflow this is.
"""

from __future__ import annotations

import logging
import secrets
from contextlib import suppress
from typing import TYPE_CHECKING

from airflow.listeners import hookimpl

from backlogctl.dags.airflow_internals import Side, find_unsuited
from backlogctl.dags.policies import ASKING, AUDIT, DEPLOYMENT, DEPLOYMENT_OF, FOUND, REASON

if TYPE_CHECKING:
    from backlogctl.dags.airflow_internals import DagRun

LOG = logging.getLogger(__name__)
# By DAG, which task tells what.
_TOLD = {**dict.fromkeys(ASKING, ("report", REASON)), AUDIT: ("audit", FOUND)}
# States of a run, and of a task with a question.
_OVER, _WAITING = ("success", "failed"), ("deferred", "awaiting_input")
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

    session = object_session(run)
    if session is None:  # of `airflow dags test`
        return
    kept = run.dag_run_note
    # What a person has written stays; ours, of before the run was cleared, has no user.
    if kept and kept.user_id:
        return
    task, key = _TOLD[run.dag_id]
    wanted = XComModel.get_many(run_id=run.run_id, dag_ids=run.dag_id, task_ids=task, key=key)
    told = [str(XComModel.deserialize_value(one)) for one in session.scalars(wanted)]
    if told or kept:  # what an earlier try has told is no longer so
        run.note = "\n".join(told)[:_LONGEST]


# What the page asks of Airflow's database.


def read_note(dag_id: str, run_id: str) -> tuple[str, bool]:
    """The note of a run, "" where it has none, and whether the run is over, as far as is known."""
    if find_unsuited(Side.SCHEDULER):  # whose parts these are
        return "", False
    from sqlalchemy import select

    from backlogctl.dags.airflow_internals import DagRun, create_session

    with create_session(scoped=False) as session:
        wanted = select(DagRun).where(DagRun.dag_id == dag_id, DagRun.run_id == run_id)
        run = session.scalar(wanted)
        return ("", False) if run is None else (str(run.note or ""), run.state in _OVER)


def has_open_question(dag_id: str, run_id: str, task_id: str) -> bool:
    """Whether Airflow takes an answer to a task's question now, as far as is known."""
    if find_unsuited(Side.SCHEDULER) or find_unsuited(Side.SERVER):  # whose parts these are
        return False
    from sqlalchemy import inspect, select

    from backlogctl.dags.airflow_internals import HITLDetail, create_session

    task = inspect(HITLDetail).relationships["task_instance"].mapper.class_
    named = task.dag_id == dag_id, task.run_id == run_id, task.task_id == task_id
    wanted = (
        select(HITLDetail.ti_id)
        .join(HITLDetail.task_instance)
        .where(*named, HITLDetail.responded_at.is_(None), task.state.in_(_WAITING))
    )
    with create_session(scoped=False) as session:
        return session.scalar(wanted) is not None


# Which Airflow this is, in the ledger: made once, before there is a task that asks.


@hookimpl
def on_starting(component: object) -> None:
    """Called where a scheduler starts, and in each task, which has no database."""
    if type(component).__name__ != "Job" or find_unsuited(Side.SCHEDULER):
        return
    from sqlalchemy import select
    from sqlalchemy.exc import IntegrityError

    from backlogctl.dags.airflow_internals import Variable, create_session

    # A name is there once: of several schedulers at once one makes it (fault 155).
    with suppress(IntegrityError), create_session(scoped=False) as session:
        if session.scalar(select(Variable.id).where(Variable.key == DEPLOYMENT)) is None:
            # Airflow's API reads 28e59068 as a number, which is infinite.
            session.add(Variable(DEPLOYMENT, f"x{secrets.token_hex(4)}", DEPLOYMENT_OF))
