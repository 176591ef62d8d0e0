"""The approval as a task: it shows the plan, waits without a worker, and records the answer."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from typing import Any

from airflow.providers.standard.operators.hitl import HITLOperator
from airflow.sdk import Context
from airflow.sdk.exceptions import AirflowSkipException

from backlog.clock import parse_duration
from backlog.errors import InvalidTransition
from backlog.values import Recovery, RecoveryState
from backlogctl_airflow.acting import RunbookError, RunbookRefusal, opened
from backlogctl_airflow.addresses import find_recovery_page
from backlogctl_airflow.links import publish_links
from replay.recovery.approval import (
    NOBODY,
    SamePerson,
    approve_plan,
    check_approval,
    is_expired,
    reject_plan,
)
from replay.recovery.cancelling import cancel_work
from replay.recovery.identity import Identity
from replay.recovery.origins import AIRFLOW
from replay.recovery.workspace import Workspace
from replay.runbooks.describing import describe_body, describe_subject

APPROVE, REJECT = "Approve", "Reject"
TIMED_OUT = "nobody answered in time"
_CLOSED = (RecoveryState.REJECTED, RecoveryState.CANCELLED)


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
        """Parks until somebody answers; a plan that needs no answer goes on at once."""
        with opened(context) as workspace:
            recovery = self._find(workspace)
            if not _waits(recovery):
                return self._go_on(recovery)
            publish_links(context["ti"], recovery.id)
            self.subject = describe_subject(workspace, recovery)
            page = find_recovery_page(recovery.id)
            self.body = describe_body(workspace, recovery, page=page)
            within = self._read_plan().get("answer_within")
            limit = workspace.config.guards.approval_expires
            self.response_timeout = parse_duration(within) if within else limit
        return super().execute(context)

    def execute_complete(self, context: Context, event: dict[str, Any]) -> Any:
        """Records the answer, by whom, for the plan that was shown and no other."""
        answer = super().execute_complete(context, event)
        responder = answer["responded_by_user"]
        # By name, as Airflow says who triggered a run: an id is a number in some user databases.
        who = Identity(
            AIRFLOW, str(responder["name"]) if responder else NOBODY, socket.gethostname()
        )
        yes = answer["chosen_options"] == [APPROVE] and responder is not None
        again = False
        with opened(context, who) as workspace:
            recovery = self._find(workspace)
            try:
                if _waits(recovery):
                    return self._go_on(self._record(workspace, recovery, who, responder, yes))
            except SamePerson as error:
                again, told = True, str(error)
            except InvalidTransition:
                # Somebody was faster, or another recovery is in the way of this one.
                recovery = self._find(workspace)
                if _waits(recovery):
                    raise
            if not again:
                # Answered elsewhere: that stands, but no run goes on against a person's no.
                if responder is not None and not yes:
                    raise AirflowSkipException(_describe_too_late(recovery))
                if yes and recovery.state in _CLOSED:
                    # Who said yes sees a failed task, and not one that is skipped.
                    raise RunbookRefusal(f"{_describe_closed(recovery)}; nothing was approved")
                return self._go_on(recovery)
        # Another try asks again, so that a colleague can answer.
        raise RunbookError(f"{told}. It is asked again.")

    def _record(
        self, workspace: Workspace, recovery: Recovery, who: Identity, responder: Any, yes: bool
    ) -> Recovery:
        if yes:
            return approve_plan(
                workspace,
                recovery,
                by=who.user,
                identity=who,
                plan_hash=self._read_plan()["plan_hash"],
            )
        reason = TIMED_OUT if responder is None else "rejected"
        if recovery.state is RecoveryState.PLANNED:
            reject_plan(workspace, recovery, by=who.user, reason=reason)
        elif responder is not None:
            # Approved once, and not begun in time; without an answer it stays so.
            cancel_work(workspace, recovery.id, wait=0)
        raise AirflowSkipException(f"{recovery.id}: {reason}; nothing was changed")

    def _find(self, workspace: Workspace) -> Recovery:
        """The recovery; refused where this program does not know its kind."""
        recovery = workspace.ledger.recoveries.get(self._read_plan()["recovery"])
        workspace.kind_of(recovery)
        return recovery

    def _read_plan(self) -> Mapping[str, Any]:
        if not isinstance(self.plan, Mapping):
            raise RunbookError("there is no plan to approve: the planning task left none")
        return self.plan

    def _go_on(self, recovery: Recovery) -> dict[str, Any]:
        """What later tasks get; a plan that was closed meanwhile ends here."""
        if recovery.state in _CLOSED:
            raise AirflowSkipException(_describe_closed(recovery))
        if recovery.state is not RecoveryState.VERIFIED:
            check_approval(recovery)
        return {
            "recovery": recovery.id,
            "approved_by": recovery.approved_by,
            "approved_identity": recovery.approved_identity,
        }


def _waits(recovery: Recovery) -> bool:
    """Whether it needs an answer: a first one, or one after the approval expired."""
    return recovery.state is RecoveryState.PLANNED or is_expired(recovery)


def _describe_closed(recovery: Recovery) -> str:
    told = f"{recovery.id} was {recovery.state}"
    newer = recovery.detail.get("superseded_by")
    return f"{told}: {newer} took its place" if newer else told


def _describe_too_late(recovery: Recovery) -> str:
    told = f"{recovery.id} is {recovery.state}"
    if recovery.approved_by:
        told += f", approved by {recovery.approved_by}"
    return f"{told}; this run leaves it alone, `backlogctl cancel {recovery.id}` ends it"
