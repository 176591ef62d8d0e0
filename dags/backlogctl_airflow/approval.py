"""The approval as a task: it shows the plan, waits without a worker, and records the answer."""

from __future__ import annotations

from typing import Any

from airflow.providers.standard.operators.hitl import HITLOperator
from airflow.sdk import Context

from backlogctl_airflow.policies import APPROVE, REJECT


class ApprovePlan(HITLOperator):
    """Asks a person about the plan of another task; no answer in time means no.

    Args:
        plan: what the planning task returned: `recovery`, `plan_hash`, `answer_within`.
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
        from backlogctl_airflow.asking import Question

        return Question(self, self.plan, context).ask()

    def execute_complete(self, context: Context, event: dict[str, Any]) -> Any:
        """Records the answer, by whom, for the plan that was shown and no other."""
        from backlogctl_airflow.asking import ELSEWHERE, Question

        question = Question(self, self.plan, context)
        if ELSEWHERE in event:
            return question.take_over()
        return question.record(super().execute_complete(context, event))
