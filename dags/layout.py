"""The tasks of a run that recovers: choose, then plan, approval and work of each kind, report."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow.providers.standard.operators.hitl import ApprovalOperator, HITLOperator
from airflow.providers.standard.operators.trigger_dagrun import TriggerDagRunOperator
from airflow.sdk import DAG, Context, TriggerRule, chain, task_group

from backlogctl.dags import tasks
from backlogctl.dags.links import add_links
from backlogctl.dags.policies import (
    APPROVE,
    ASK,
    HOLD_WITHIN,
    PROPOSED,
    RECOVER,
    REJECT,
    find_pool,
    name_question,
)
from backlogctl.replay.engine.kind import Kind, Registry
from backlogctl.replay.runbooks.requests import HOLD, list_actions

# Starts `recover_backlog` for a plan that a person must look at.


class AskForApproval(TriggerDagRunOperator):
    """One run for one plan: asked again, there is one already, unless its approval expired.
    `work`: what `plan_night` returned.
    """

    template_fields = (*TriggerDagRunOperator.template_fields, "work")

    def __init__(self, *, work: Any, **kwargs: Any) -> None:
        super().__init__(trigger_dag_id=RECOVER, skip_when_already_exists=True, **kwargs)
        self.work = work

    def execute(self, context: Context) -> Any:
        """Starts it where tonight's work is a plan that waits."""
        from backlogctl.dags.task_context import read_given, skipping
        from backlogctl.replay.kinds import REBUILD
        from backlogctl.replay.runbooks.nights import Tonight, read_action

        work = read_given(context, self.work)
        if read_action(work) is not Tonight.ASK:
            raise skipping(context, f"{work['stream']}: {work['why']}")
        again = f"__{work['expired']}" if work["expired"] else ""
        self.trigger_run_id = f"{name_question(work['recovery'])}{again}"
        self.conf = {"stream": work["stream"], "action": REBUILD.name, "recovery": work["recovery"]}
        return super().execute(context)


# The approval as a task: it shows the plan, waits without a worker, and records the answer.


class ApprovePlan(HITLOperator):
    """Asks a person about the plan of another task; no answer in time means no.
    `plan`: what the planning task returned: `recovery`, `plan_hash`, `answer_within`.
    """

    template_fields = (*HITLOperator.template_fields, "plan")

    def __init__(self, *, plan: Any, **kwargs: Any) -> None:
        super().__init__(
            subject="A plan waits for an approval",
            options=[APPROVE, REJECT],
            defaults=[REJECT],
            **kwargs,
        )
        self.plan = plan

    def execute(self, context: Context) -> Any:
        """Parks until somebody answers, here or elsewhere; not where no answer is needed."""
        from backlogctl.dags.questions import ApprovalQuestion

        return ApprovalQuestion(self, self.plan, context).ask()

    def execute_complete(self, context: Context, event: dict[str, Any]) -> Any:
        """Records the answer, by whom, for the plan that was shown and no other."""
        from backlogctl.dags.questions import ELSEWHERE, ApprovalQuestion

        question = ApprovalQuestion(self, self.plan, context)
        if ELSEWHERE in event:
            return question.take_over()
        return question.record(super().execute_complete(context, event))


class AskForHold(ApprovalOperator):
    """Asks whether to hold the retention of the stream's topic, as the first task proposes."""

    def execute(self, context: Context) -> Any:
        """Parks until somebody answers; what is held is what the question says (fault 164)."""
        from backlogctl.dags.questions import ask_once
        from backlogctl.dags.task_context import read_given

        left = context["ti"].xcom_pull(task_ids="choose", key=PROPOSED)
        proposed = read_given(context, left)
        self.subject = f"Hold the retention of {proposed['stream']} for {proposed['length']}"
        self.body = proposed["body"]
        if proposed["within"] is not None:
            # The run is open no longer than there is something to hold.
            self.response_timeout = min(HOLD_WITHIN, timedelta(seconds=proposed["within"]))
        thing = f"stream {proposed['stream']}"
        return ask_once(self, context, thing, self.subject, again=f"the action {HOLD}")

    def execute_complete(self, context: Context, event: dict[str, Any]) -> Any:
        """Counts the answer."""
        from backlogctl.dags.questions import forget_question

        forget_question(context)
        return super().execute_complete(context, event)


def lay_out_tasks(dag: DAG, kinds: Registry) -> None:
    """One kind after the other: offload first, then put back."""
    chosen = tasks.choose(list(kinds.names()))
    groups = [_make_group(kind, first=number == 0) for number, kind in enumerate(kinds)]
    beside = [_make_hold()] if HOLD in list_actions(kinds) else []
    chosen >> [*groups, *beside]
    # A teardown as well: a run that is marked failed still reports, and ends as failed.
    told = tasks.report().as_teardown(on_failure_fail_dagrun=True)
    chain(*groups, told)
    beside >> told
    for kind in kinds:
        # A teardown is no leaf of its group, and the report says what it left.
        if kind.traits.stops_consumers:
            dag.get_task(f"{kind.name}.restore_layout") >> told
    add_links(dag)


def _make_hold() -> Any:
    """Beside the plans: none of them waits for its answer, nor does it for theirs."""

    @task_group(group_id=HOLD, tooltip="Raise the topic's retention for a time.")
    def hold() -> None:
        ask = AskForHold(
            task_id="approve",
            subject="Hold the retention",
            defaults=[REJECT],
            response_timeout=HOLD_WITHIN,
            **ASK,
        )
        tasks.hold.override(task_id="carry_out")(ask.output)

    return hold()


def _make_group(kind: Kind[Any, Any], *, first: bool) -> Any:
    """The tasks of one kind. What it stopped is started again whatever becomes of the run."""

    @task_group(group_id=kind.name, tooltip=kind.summary)
    def recover() -> None:
        rule = TriggerRule.ALL_SUCCESS if first else TriggerRule.NONE_FAILED
        pool = find_pool(spark=kind.traits.uses_spark)
        plan = tasks.plan.override(trigger_rule=rule, pool=pool)(kind.name)
        approve = ApprovePlan(task_id="approve", plan=plan, **ASK)
        work = tasks.carry_out.override(pool=pool)(approve.output)
        plan >> approve >> work
        if kind.traits.stops_consumers:
            approve.as_setup()
            restore = tasks.restore.override(task_id="restore_layout")(kind.name)
            work >> restore.as_teardown(setups=approve, on_failure_fail_dagrun=True)

    return recover()
