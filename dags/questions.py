"""Waits for an answer to a plan, wherever it is given: in Airflow or in the shell.

Airflow's own wait ends with an answer in Airflow only.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Mapping
from datetime import datetime
from typing import Any, cast
from uuid import UUID

from airflow.providers.standard.operators.hitl import HITLOperator
from airflow.sdk import Context
from airflow.sdk.exceptions import AirflowException
from airflow.triggers.base import TriggerEvent
from asgiref.sync import sync_to_async

from backlogctl.clock import parse_duration, utc_now
from backlogctl.config import mask_secrets
from backlogctl.dags.airflow_internals import HITLTrigger
from backlogctl.dags.configuration import load
from backlogctl.dags.links import find_recovery_page, publish_links
from backlogctl.dags.policies import APPROVE
from backlogctl.dags.task_context import (
    RunbookError,
    RunbookRefusal,
    fail,
    keep_reason,
    opened,
    read_given,
    skipping,
)
from backlogctl.errors import BacklogError, InvalidTransition
from backlogctl.formats import format_moment
from backlogctl.replay.engine.approval import (
    NOBODY,
    SamePerson,
    approve_plan,
    check_approval,
    is_expired,
    reject_plan,
)
from backlogctl.replay.engine.cancelling import cancel_work
from backlogctl.replay.engine.kind import Workspace
from backlogctl.replay.engine.plan import AIRFLOW, Approver, find_identity
from backlogctl.replay.opening import open_workspace
from backlogctl.replay.runbooks.descriptions import describe_body, describe_subject
from backlogctl.replay.runbooks.detection import note_loss_ahead
from backlogctl.values import Recovery, RecoveryState

LOG = logging.getLogger(__name__)
# The event of an answer that was not given in Airflow; the ledger has it.
ELSEWHERE = "elsewhere"
_LOOK_SECONDS = 3.0


def waits_for_answer(recovery: Recovery) -> bool:
    """Whether it needs one: a first one, or one after its approval expired."""
    return recovery.state is RecoveryState.PLANNED or is_expired(recovery)


# What the state store of a question's task has, through all its tries: what it asks about, until an
# answer is counted. To ask again would wipe what was answered meanwhile, of which a try that was
# ended knows nothing; Airflow hands both on to the next try (fault 139).
ASKED = "asked"


def put_question(operator: HITLOperator, task_instance: UUID) -> bool:
    """Shows it to people; an answer that is there already is forgotten.

    Returns:
        Whether this is what they see: in one run Airflow keeps a task's first text, also where the
        task is cleared (fault 158).
    """
    from backlogctl.dags.airflow_internals import SUPERVISOR_COMMS, CreateHITLDetailPayload

    kept = SUPERVISOR_COMMS.send(
        CreateHITLDetailPayload(
            ti_id=task_instance,
            options=operator.options,
            subject=operator.subject,
            body=operator.body,
            defaults=operator.defaults,
            multiple=operator.multiple,
            params=operator.serialized_params,
            assigned_users=cast("Any", operator.assigned_users or []),
        )
    )
    return getattr(kept, "subject", None) == operator.subject


def ask_once(
    operator: HITLOperator,
    context: Context,
    thing: str,
    about: str,
    *,
    again: str,
    recovery_id: str = "",
) -> None:
    """Puts the question, unless an earlier try has, and gives the worker back, until it is
    answered or the time is over.

    Args:
        thing: the recovery, or the stream.
        about: what an answer counts for.
        again: what a new run is triggered with, to ask in this one's place.
        recovery_id: whose plan may be answered elsewhere.

    Raises:
        TaskDeferred: always, unless people would read the text of another question.
    """
    states, limit = context["task_state_store"], operator.response_timeout
    if states.get(ASKED) != about:
        if not put_question(operator, context["ti"].id):
            told = (
                f"{thing}: this run has asked about something else before, and Airflow still "
                f"shows that text; nothing was asked. Trigger a new run with {again}"
            )
            fail(context, RunbookRefusal(told))
        states.set(ASKED, about)
        _notify(operator, context)
    operator.defer(
        trigger=AnswerTrigger(
            recovery_id=recovery_id,
            ti_id=context["ti"].id,
            options=operator.options,
            defaults=operator.defaults,
            params=operator.serialized_params,
            multiple=operator.multiple,
            timeout_datetime=utc_now() + limit if limit else None,
            poke_interval=_LOOK_SECONDS,
        ),
        method_name="execute_complete",
    )


def _notify(operator: HITLOperator, context: Context) -> None:
    """As Airflow's own `execute` does, which puts the question and calls them itself."""
    for notifier in operator.notifiers:
        try:
            notifier(context)
        except Exception as error:  # noqa: BLE001 the question is there without it
            name, told = type(notifier).__name__, f"{type(error).__name__}: {error}"
            LOG.warning("%s told nobody of the question: %s", name, mask_secrets(told))


def forget_question(context: Context) -> None:
    """What was answered counts once: who clears the task is asked anew."""
    context["task_state_store"].delete(ASKED)


class AnswerTrigger(HITLTrigger):
    """Ends with what was answered in Airflow, or when the ledger says that it was elsewhere."""

    def __init__(self, *, recovery_id: str, ti_id: UUID, **kwargs: Any) -> None:
        super().__init__(ti_id=ti_id, **kwargs)
        self.recovery_id = recovery_id
        self._workspace: Workspace | None = None

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """As Airflow keeps it."""
        _, values = super().serialize()
        return f"{__name__}.AnswerTrigger", {**values, "recovery_id": self.recovery_id}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Looks at both places every three seconds; an answer in Airflow comes first."""
        limit: datetime | None = self.timeout_datetime
        while True:
            # An event at once would come before the task is known to wait.
            await asyncio.sleep(self.poke_interval)
            if (event := await self._handle_response()) is not None:
                yield event
                return
            if self.recovery_id and await sync_to_async(self._is_answered)():
                yield TriggerEvent({ELSEWHERE: True})
                return
            if limit is not None and limit < utc_now():
                yield await self._handle_timeout()
                return

    async def cleanup(self) -> None:
        """Gives the ledger's connections back."""
        await super().cleanup()
        if self._workspace is not None:
            await sync_to_async(self._workspace.ledger.close)()

    def _is_answered(self) -> bool:
        try:
            if self._workspace is None:
                self._workspace = open_workspace(load())
            return not waits_for_answer(self._workspace.ledger.recoveries.get(self.recovery_id))
        except BacklogError as error:
            # The ledger is away for a while, or the file is being changed: Airflow still asks.
            self.log.warning(
                "it is not known whether %s was answered elsewhere: %s",
                self.recovery_id,
                type(error).__name__,
            )
            self._workspace = None
            return False


# What the approval does: asks about the plan that was made, and records the answer.

__all__ = ["ELSEWHERE", "ApprovalQuestion"]
REJECTED, TIMED_OUT = "rejected", "nobody answered in time"
_CLOSED = (RecoveryState.REJECTED, RecoveryState.CANCELLED)


class ApprovalQuestion:
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
            # Whatever was answered elsewhere: an answer that an earlier try did not count may wait.
            asked = context["task_state_store"].get(ASKED) == _name(recovery)
            if not asked and not waits_for_answer(recovery):
                return self._go_on(recovery)
            publish_links(context["ti"], recovery.id)
            operator.subject = describe_subject(workspace, recovery)
            page = find_recovery_page(recovery.id)
            ahead = "".join(note_loss_ahead(workspace, [recovery]))
            operator.body = describe_body(workspace, recovery, page=page, ahead=ahead)
            within = self._read_plan().get("answer_within")
            limit = workspace.config.guards.approval_expires
            wait = parse_duration(within) if within else limit
            operator.response_timeout = wait
            until = format_moment(utc_now() + wait)
            LOG.info("%s waits for its approval, until %s", recovery.id, until)
            keep_reason(context, f"waits for an approval, until {until}")
        return ask_once(
            operator,
            context,
            f"recovery {recovery.id}",
            _name(recovery),
            again=f"*existing plan* {recovery.id}",
            recovery_id=recovery.id,
        )

    def record(self, answer: Mapping[str, Any]) -> Any:
        """Records what somebody chose in Airflow, for the plan that was shown and no other.

        Where that could not be done, the next try finds the answer again.
        """
        try:
            found = self._count(answer)
        except RunbookError:
            raise
        except AirflowException:
            forget_question(self._context)
            raise
        forget_question(self._context)
        return found

    def _count(self, answer: Mapping[str, Any]) -> Any:
        context = self._context
        responder = answer["responded_by_user"]
        # By name, as Airflow says who triggered a run: an id is a number in some user databases.
        who = Approver(
            AIRFLOW, str(responder["name"]) if responder else NOBODY, socket.gethostname()
        )
        yes = answer["chosen_options"] == [APPROVE] and responder is not None
        no = responder is not None and not yes
        with opened(context, who) as workspace:
            recovery = self._find(workspace)
            # Of a yes and a no at once the no counts, as long as nothing was begun (fault 140).
            while waits_for_answer(recovery) or (no and recovery.state is RecoveryState.APPROVED):
                try:
                    return self._go_on(self._keep(workspace, recovery, responder, yes=yes))
                except SamePerson as error:
                    # Another try asks again, so that a colleague can answer.
                    forget_question(self._context)
                    fail(context, RunbookError(f"{error}. It is asked again."))
                except InvalidTransition:
                    # Somebody was faster, or another recovery is in the way of this one.
                    known, recovery = recovery, self._find(workspace)
                    if recovery == known:
                        raise
            # Answered elsewhere: that stands, but no run goes on against a person's no.
            if no:
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
                told = f"{recovery.id} is {recovery.state}, by {by}"
                LOG.info("answered outside of this run: %s", told)
                return self._go_on(recovery)
        return self.ask()

    def _keep(
        self, workspace: Workspace, recovery: Recovery, responder: Any, *, yes: bool
    ) -> Recovery:
        who = find_identity()
        if yes:
            shown = self._read_plan()["plan_hash"]
            return approve_plan(workspace, recovery, by=who.user, identity=who, plan_hash=shown)
        reason = TIMED_OUT if responder is None else REJECTED
        if recovery.state is RecoveryState.PLANNED:
            reject_plan(workspace, recovery, by=who.user, reason=reason)
        elif responder is not None:
            # Approved, and not begun; without an answer it stays so.
            cancel_work(workspace, recovery.id, wait=0)
        by = "" if responder is None else f" by {who.user}"
        if by and recovery.approved_by and not is_expired(recovery):
            by += f", whom the approval by {recovery.approved_by} does not overrule"
        raise skipping(self._context, f"{recovery.id}: {reason}{by}; nothing was changed")

    def _find(self, workspace: Workspace) -> Recovery:
        """The recovery; refused where this program does not know its kind."""
        recovery = workspace.ledger.recoveries.get(self._read_plan()["recovery"])
        workspace.kind_of(recovery)
        return recovery

    def _read_plan(self) -> Mapping[str, Any]:
        return read_given(self._context, self._plan)

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


def _name(recovery: Recovery) -> str:
    """Two recoveries may have plans that are the same."""
    return f"{recovery.id} {recovery.plan_hash}"


def _describe_closed(recovery: Recovery) -> str:
    if newer := recovery.detail.get("superseded_by"):
        return f"{recovery.id} was superseded: {newer} took its place"
    by = recovery.detail.get("by")
    return f"{recovery.id} was {recovery.state}{f' by {by}' if by else ''}"


def _describe_too_late(recovery: Recovery) -> str:
    if recovery.state in _CLOSED:
        return _describe_closed(recovery)
    told = f"{recovery.id} is {recovery.state}"
    if recovery.approved_by:
        told += f", approved by {recovery.approved_by}"
    return f"{told}; this run leaves it alone, `backlogctl cancel {recovery.id}` ends it"
