"""Find lag and losses: sample, judge, write gaps down, start a recovery where that is asked for."""

from __future__ import annotations

from datetime import timedelta

from airflow.providers.standard.operators.trigger_dagrun import TriggerDagRunOperator
from airflow.sdk import DAG

from backlogctl_airflow import tasks
from backlogctl_airflow.leftovers import restore_left_open
from backlogctl_airflow.starting import RECOVER

DOC = """
### Sample every stream, judge it, and write down what was lost

A stream with a new gap, or with a loss ahead, is an event of the asset `backlog/STREAM`. One with
`auto_plan: true` gets a run of `recover_backlog`, where its plan waits for the approval.

An expansion whose run is over and that nobody works on is cut over here, and its layout given back.
"""
EVERY = timedelta(minutes=5)

with DAG(
    "detect_backlog",
    schedule=EVERY,
    catchup=False,
    # A layout that takes long to be given back does not keep the next looks away.
    max_active_runs=2,
    doc_md=DOC,
    tags=["backlogctl"],
) as dag:
    looks = tasks.look.expand(stream=tasks.list_streams())
    TriggerDagRunOperator.partial(
        task_id="start_recovery", trigger_dag_id=RECOVER, skip_when_already_exists=True
    ).expand_kwargs(tasks.pick_recoveries(looks))
    restore_left_open()
