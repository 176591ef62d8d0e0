"""Recover a backlog or a loss: form, plan, approval, the work, the report."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow.sdk import DAG, TriggerRule, task_group

from backlogctl_airflow import tasks
from backlogctl_airflow.approval import ApprovePlan
from backlogctl_airflow.form import make_form
from backlogctl_airflow.links import add_links
from backlogctl_airflow.outline import read_outline
from replay.kinds import EXPAND, REBUILD

DOC = """
### Recover a stream that is behind, or has lost messages

1. **Trigger** with the stream; `auto` takes what the verdict suggests.
2. **Look at the plan** under *Required Actions*: nothing is changed before you approve.
3. **Approve**, and watch it. It can be killed, cleared and run again: each message once.

Without an answer in time the plan is rejected. What is stopped is started again in any case.
"""
# A wrong answer, such as one's own where a colleague's is asked, is asked again.
ASK: dict[str, Any] = {"retries": 20, "retry_delay": timedelta(seconds=1)}

with DAG(
    "recover_backlog",
    schedule=None,
    params=make_form(read_outline()),
    doc_md=DOC,
    tags=["backlogctl"],
    max_active_runs=16,
) as dag:
    chosen = tasks.choose()

    @task_group(group_id=EXPAND)
    def expand() -> None:
        """Drain through a temporary topic, then give the layout back."""
        plan = tasks.plan(EXPAND, chosen[tasks.CHOSEN])
        approve = ApprovePlan(task_id="approve", plan=plan, **ASK).as_setup()
        work = tasks.carry_out(approve.output)
        restore = tasks.restore.override(task_id="restore_layout")(approve.output)
        plan >> approve >> work >> restore.as_teardown(setups=approve, on_failure_fail_dagrun=True)

    @task_group(group_id=REBUILD)
    def rebuild() -> None:
        """Rebuild what was lost from the source table, and put it back once."""
        plan = tasks.plan.override(trigger_rule=TriggerRule.NONE_FAILED)(
            REBUILD, chosen[tasks.CHOSEN]
        )
        approve = ApprovePlan(task_id="approve", plan=plan, **ASK)
        plan >> approve >> tasks.carry_out(approve.output)

    drained, rebuilt = expand(), rebuild()
    chosen >> [drained, rebuilt]
    # A teardown as well: a run that is marked failed tells what came of it, and ends as failed.
    told = tasks.report().as_teardown(on_failure_fail_dagrun=True)
    drained >> rebuilt >> told
    # A teardown is no leaf of its group, and the report tells what it left.
    dag.get_task(f"{EXPAND}.restore_layout") >> told
    add_links(dag)
