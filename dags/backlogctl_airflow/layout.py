"""The tasks of a run that recovers: choose, then plan, approval and work of each kind, report."""

from __future__ import annotations

from typing import Any

from airflow.sdk import DAG, TriggerRule, chain, task_group

from backlogctl_airflow import tasks
from backlogctl_airflow.approval import ApprovePlan
from backlogctl_airflow.links import add_links
from backlogctl_airflow.policies import ASK, CHOSEN, find_pool
from replay.recovery.kind import Kind, Registry


def lay_out_tasks(dag: DAG, kinds: Registry) -> None:
    """One kind after the other: offload first, then put back."""
    chosen = tasks.choose(list(kinds.names()))
    groups = [_make_group(kind, chosen, first=number == 0) for number, kind in enumerate(kinds)]
    chosen >> groups
    # A teardown as well: a run that is marked failed still reports, and ends as failed.
    told = tasks.report().as_teardown(on_failure_fail_dagrun=True)
    chain(*groups, told)
    for kind in kinds:
        # A teardown is no leaf of its group, and the report says what it left.
        if kind.traits.stops_consumers:
            dag.get_task(f"{kind.name}.restore_layout") >> told
    add_links(dag)


def _make_group(kind: Kind[Any, Any], chosen: Any, *, first: bool) -> Any:
    """The tasks of one kind. What it stopped is started again whatever becomes of the run."""

    @task_group(group_id=kind.name, tooltip=kind.summary)
    def recover() -> None:
        rule = TriggerRule.ALL_SUCCESS if first else TriggerRule.NONE_FAILED
        pool = find_pool(spark=kind.traits.uses_spark)
        plan = tasks.plan.override(trigger_rule=rule, pool=pool)(kind.name, chosen[CHOSEN])
        approve = ApprovePlan(task_id="approve", plan=plan, **ASK)
        work = tasks.carry_out.override(pool=pool)(approve.output)
        plan >> approve >> work
        if kind.traits.stops_consumers:
            approve.as_setup()
            restore = tasks.restore.override(task_id="restore_layout")(approve.output)
            work >> restore.as_teardown(setups=approve, on_failure_fail_dagrun=True)

    return recover()
