"""Recover a backlog or a loss: form, plan, approval, the work, the report."""

from __future__ import annotations

from airflow.sdk import DAG

from backlogctl.dags.form import make_fields
from backlogctl.dags.layout import lay_out_tasks
from backlogctl.dags.policies import RECOVER, TAGS, read_outline
from backlogctl.dags.tasks import DAG_DEFAULTS
from backlogctl.replay.kinds import KINDS, OFFLOAD

DOC = """
### Recover a stream that is behind, or has lost messages

1. **Trigger** with the stream; `auto` takes what the verdict suggests.
2. **Look at the plan** under *Required Actions*: nothing is changed before you approve.
3. **Approve**, and watch it. It can be killed, cleared and run again: each message once.

`redrive` puts back what still exists: dead letters, a range of the log, an archive. It is never
chosen by `auto`.

Without an answer in time the plan is rejected. What is stopped is started again in any case.
"""
# What deletes messages has a DAG of its own, with rights of its own.
MINE = KINDS.without(OFFLOAD)

with DAG(
    RECOVER,
    description="Drains a backlog, or puts lost messages back: plan, approval, work, report.",
    schedule=None,
    params=make_fields(read_outline(), MINE),
    doc_md=DOC,
    default_args=dict(DAG_DEFAULTS),
    tags=TAGS,
    # Most of them wait for an answer, a window or each other, without a worker.
    max_active_runs=16,
    max_active_tasks=8,
) as dag:
    lay_out_tasks(dag, MINE)
