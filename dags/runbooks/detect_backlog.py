"""Find lag and losses: sample, judge, write gaps down, start a recovery where that is asked for."""

from __future__ import annotations

from datetime import timedelta

from airflow.providers.standard.operators.trigger_dagrun import TriggerDagRunOperator
from airflow.sdk import DAG

from backlogctl.dags import tasks
from backlogctl.dags.policies import DETECT, RECOVER, TAGS

DOC = """
### Sample every stream, judge it, and write down what was lost

A stream with a new gap, or with a loss ahead, is an event of the asset `backlog/STREAM`. One with
`auto_plan: true` gets a run of `recover_backlog`, where its plan waits for the approval.

An expansion or an offload that nobody works on, and no task will, is ended here, and its consumers
are started. **tell_paused** fails where a DAG that has work is paused.
"""
EVERY = timedelta(minutes=5)

with DAG(
    DETECT,
    description="Finds lag and losses, and starts what is asked for.",
    schedule=EVERY,
    catchup=False,
    # A layout that takes long to be given back does not keep the next looks away.
    max_active_runs=2,
    default_args=dict(tasks.DAG_DEFAULTS),
    doc_md=DOC,
    tags=TAGS,
) as dag:
    looks = tasks.look.expand(stream=tasks.list_streams())
    TriggerDagRunOperator.partial(
        task_id="start_recovery", trigger_dag_id=RECOVER, skip_when_already_exists=True
    ).expand_kwargs(tasks.pick_recoveries(looks))
    tasks.restore_left_open()
    tasks.tell_paused()
