"""Starts `recover_backlog` for a plan that a person must look at."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow.providers.standard.operators.trigger_dagrun import TriggerDagRunOperator
from airflow.sdk import Context

from backlogctl_airflow.policies import RECOVER, name_question


class AskForApproval(TriggerDagRunOperator):
    """One run for one plan: asked again, there is one already, unless its approval expired.

    Args:
        work: what `plan_night` returned.
    """

    template_fields = (*TriggerDagRunOperator.template_fields, "work")

    def __init__(self, *, work: Any, **kwargs: Any) -> None:
        super().__init__(trigger_dag_id=RECOVER, skip_when_already_exists=True, **kwargs)
        self.work = work

    def execute(self, context: Context) -> Any:
        """Starts it where tonight's work is a plan that waits."""
        from backlogctl_airflow.reasons import skipping
        from replay.kinds import REBUILD
        from replay.runbooks.nights import Tonight, read_action

        work: Mapping[str, Any] = self.work
        if read_action(work) is not Tonight.ASK:
            raise skipping(context, f"{work['stream']}: {work['why']}")
        again = f"__{work['expired']}" if work["expired"] else ""
        self.trigger_run_id = f"{name_question(work['recovery'])}{again}"
        self.conf = {"stream": work["stream"], "action": REBUILD.name, "recovery": work["recovery"]}
        return super().execute(context)
