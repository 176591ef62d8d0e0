"""Recover a backlog or a loss: form, plan, approval, the work, the report."""

from __future__ import annotations

from typing import Any

from airflow.sdk import DAG, TriggerRule, chain, task_group

from backlogctl_airflow import tasks
from backlogctl_airflow.approval import ApprovePlan
from backlogctl_airflow.form import make_fields
from backlogctl_airflow.links import add_links
from backlogctl_airflow.outline import read_outline
from backlogctl_airflow.policies import ASK, CHOSEN, DAG_DEFAULTS, RECOVER, TAGS, find_pool
from replay.kinds import KINDS
from replay.recovery.kind import Kind

DOC = """
### Recover a stream that is behind, or has lost messages

1. **Trigger** with the stream; `auto` takes what the verdict suggests.
2. **Look at the plan** under *Required Actions*: nothing is changed before you approve.
3. **Approve**, and watch it. It can be killed, cleared and run again: each message once.

Without an answer in time the plan is rejected. What is stopped is started again in any case.
"""


def make_group(kind: Kind[Any, Any], chosen: Any, *, first: bool) -> Any:
    """The tasks of one kind. What it stopped is started again whatever becomes of the run."""

    @task_group(group_id=kind.name, tooltip=kind.summary)
    def recover() -> None:
        rule = TriggerRule.ALL_SUCCESS if first else TriggerRule.NONE_FAILED
        pool = find_pool(spark=kind.traits.injects)
        plan = tasks.plan.override(trigger_rule=rule, pool=pool)(kind.name, chosen[CHOSEN])
        approve = ApprovePlan(task_id="approve", plan=plan, **ASK)
        work = tasks.carry_out.override(pool=pool)(approve.output)
        plan >> approve >> work
        if kind.traits.stops_consumers:
            approve.as_setup()
            restore = tasks.restore.override(task_id="restore_layout")(approve.output)
            work >> restore.as_teardown(setups=approve, on_failure_fail_dagrun=True)

    return recover()


with DAG(
    RECOVER,
    description="Drains a backlog, or puts lost messages back: plan, approval, work, report.",
    schedule=None,
    params=make_fields(read_outline(), KINDS),
    doc_md=DOC,
    default_args=dict(DAG_DEFAULTS),
    tags=TAGS,
    # Most of them wait for an answer, a window or each other, without a worker.
    max_active_runs=16,
    max_active_tasks=8,
) as dag:
    chosen = tasks.choose()
    groups = [make_group(kind, chosen, first=number == 0) for number, kind in enumerate(KINDS)]
    chosen >> groups
    # A teardown as well: a run that is marked failed still reports, and ends as failed.
    told = tasks.report().as_teardown(on_failure_fail_dagrun=True)
    # One after the other: drain first, then put back.
    chain(*groups, told)
    for kind in KINDS:
        # A teardown is no leaf of its group, and the report says what it left.
        if kind.traits.stops_consumers:
            dag.get_task(f"{kind.name}.restore_layout") >> told
    add_links(dag)
