"""What the approval does: asks about the plan that was made, and records the answer."""

from __future__ import annotations

import logging
import socket
from collections.abc import Mapping
from typing import Any

from airflow.providers.standard.operators.hitl import HITLOperator
from airflow.sdk import Context

from backlog.clock import parse_duration, utc_now
from backlog.errors import InvalidTransition
from backlog.numbers import format_moment
from backlog.values import Recovery, RecoveryState
from backlogctl_airflow.acting import opened
from backlogctl_airflow.addresses import find_recovery_page
from backlogctl_airflow.answers import ELSEWHERE, park, waits_for_answer
from backlogctl_airflow.links import publish_links
from backlogctl_airflow.policies import APPROVE
from backlogctl_airflow.reasons import RunbookError, RunbookRefusal, fail, keep_reason, skipping
from replay.recovery.approval import (
    NOBODY,
    SamePerson,
    approve_plan,
    check_approval,
    reject_plan,
)
from replay.recovery.cancelling import cancel_work
from replay.recovery.identity import Identity, find_identity
from replay.recovery.origins import AIRFLOW
from replay.recovery.workspace import Workspace
from replay.runbooks.describing import describe_body, describe_subject

LOG = logging.getLogger("backlogctl_airflow")
__all__ = ["ELSEWHERE", "Question"]
REJECTED, TIMED_OUT = "rejected", "nobody answered in time"
_CLOSED = (RecoveryState.REJECTED, RecoveryState.CANCELLED)


class Question:
    """One plan that a task asks a person about."""

    def __init__(self, operator: HITLOperator, plan: Any, context: Context) -> None:
        self._operator = operator
        self._plan = plan
        self._context = context

    def ask(self) -> Any:
        """Parks until somebody answers, here or elsewhere; not where no answer is needed."""
        context, operator = self._context, self._operator
        with opened(context) as workspace:
            recovery = self._find(workspace)
            if not waits_for_answer(recovery):
                return self._go_on(recovery)
            publish_links(context["ti"], recovery.id)
            operator.subject = describe_subject(workspace, recovery)
            page = find_recovery_page(recovery.id)
            operator.body = describe_body(workspace, recovery, page=page)
            within = self._read_plan().get("answer_within")
            limit = workspace.config.guards.approval_expires
            wait = parse_duration(within) if within else limit
            operator.response_timeout = wait
            until = format_moment(utc_now() + wait)
            LOG.info("%s waits for its approval, until %s", recovery.id, until)
            keep_reason(context, f"waits for an approval, until {until}")
        return park(operator, context, recovery.id)

    def record(self, answer: Mapping[str, Any]) -> Any:
        """Records what somebody chose in Airflow, for the plan that was shown and no other."""
        context = self._context
        responder = answer["responded_by_user"]
        # By name, as Airflow says who triggered a run: an id is a number in some user databases.
        who = Identity(
            AIRFLOW, str(responder["name"]) if responder else NOBODY, socket.gethostname()
        )
        yes = answer["chosen_options"] == [APPROVE] and responder is not None
        with opened(context, who) as workspace:
            recovery = self._find(workspace)
            try:
                if waits_for_answer(recovery):
                    recovery = self._keep(workspace, recovery, responder, yes=yes)
                    return self._go_on(recovery)
            except SamePerson as error:
                # Another try asks again, so that a colleague can answer.
                fail(context, RunbookError(f"{error}. It is asked again."))
            except InvalidTransition:
                # Somebody was faster, or another recovery is in the way of this one.
                recovery = self._find(workspace)
                if waits_for_answer(recovery):
                    raise
            # Answered elsewhere: that stands, but no run goes on against a person's no.
            if responder is not None and not yes:
                raise skipping(context, _describe_too_late(recovery))
            if yes and recovery.state in _CLOSED:
                # If the plan was closed after approval, fail the task; do not mark it skipped.
                told = f"{_describe_closed(recovery)}; nothing was approved"
                fail(context, RunbookRefusal(told))
            return self._go_on(recovery)

    def take_over(self) -> Any:
        """What was answered in the shell or by another run counts here too."""
        context = self._context
        with opened(context) as workspace:
            recovery = self._find(workspace)
            if not waits_for_answer(recovery):
                by = recovery.approved_by or recovery.detail.get("by") or "somebody"
                LOG.info(
                    "answered outside of this run: %s is %s, by %s", recovery.id, recovery.state, by
                )
                return self._go_on(recovery)
        return self.ask()

    def _keep(
        self, workspace: Workspace, recovery: Recovery, responder: Any, *, yes: bool
    ) -> Recovery:
        who = find_identity()
        if yes:
            return approve_plan(
                workspace,
                recovery,
                by=who.user,
                identity=who,
                plan_hash=self._read_plan()["plan_hash"],
            )
        reason = TIMED_OUT if responder is None else REJECTED
        if recovery.state is RecoveryState.PLANNED:
            reject_plan(workspace, recovery, by=who.user, reason=reason)
        elif responder is not None:
            # Approved once, and not begun in time; without an answer it stays so.
            cancel_work(workspace, recovery.id, wait=0)
        by = "" if responder is None else f" by {who.user}"
        raise skipping(self._context, f"{recovery.id}: {reason}{by}; nothing was changed")

    def _find(self, workspace: Workspace) -> Recovery:
        """The recovery; refused where this program does not know its kind."""
        recovery = workspace.ledger.recoveries.get(self._read_plan()["recovery"])
        workspace.kind_of(recovery)
        return recovery

    def _read_plan(self) -> Mapping[str, Any]:
        if not isinstance(self._plan, Mapping):
            raise RunbookError("there is no plan to approve: the planning task left none")
        return self._plan

    def _go_on(self, recovery: Recovery) -> dict[str, Any]:
        """What later tasks get; a plan that was closed meanwhile ends here."""
        if recovery.state in _CLOSED:
            raise skipping(self._context, _describe_closed(recovery))
        if recovery.state is not RecoveryState.VERIFIED:
            check_approval(recovery)
        return {
            "recovery": recovery.id,
            "approved_by": recovery.approved_by,
            "approved_identity": recovery.approved_identity,
        }


def _describe_closed(recovery: Recovery) -> str:
    if newer := recovery.detail.get("superseded_by"):
        return f"{recovery.id} was superseded: {newer} took its place"
    by = recovery.detail.get("by")
    return f"{recovery.id} was {recovery.state}{f' by {by}' if by else ''}"


def _describe_too_late(recovery: Recovery) -> str:
    told = f"{recovery.id} is {recovery.state}"
    if recovery.approved_by:
        told += f", approved by {recovery.approved_by}"
    return f"{told}; this run leaves it alone, `backlogctl cancel {recovery.id}` ends it"
