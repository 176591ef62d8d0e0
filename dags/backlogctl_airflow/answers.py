"""Waits for an answer to a plan, wherever it is given: in Airflow or in the shell.

Airflow's own wait ends with an answer in Airflow only.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import datetime
from typing import Any
from uuid import UUID

from airflow.providers.standard.operators.hitl import HITLOperator
from airflow.providers.standard.triggers.hitl import HITLTrigger
from airflow.sdk import Context
from airflow.sdk.execution_time.hitl import upsert_hitl_detail
from airflow.sdk.timezone import utcnow
from airflow.triggers.base import TriggerEvent
from asgiref.sync import sync_to_async

from backlog.errors import BacklogError
from backlog.values import Recovery, RecoveryState
from backlogctl_airflow.configuration import load
from replay.opening import open_workspace
from replay.recovery.approval import is_expired
from replay.recovery.workspace import Workspace

# The event of an answer that was not given in Airflow; the ledger has it.
ELSEWHERE = "elsewhere"
_LOOK_SECONDS = 3.0


def waits_for_answer(recovery: Recovery) -> bool:
    """Whether it needs one: a first one, or one after its approval expired."""
    return recovery.state is RecoveryState.PLANNED or is_expired(recovery)


def park(operator: HITLOperator, context: Context, recovery_id: str) -> None:
    """Asks the question and gives the worker back, until it is answered or the time is over.

    Raises:
        TaskDeferred: always.
    """
    task_instance = context["ti"].id
    upsert_hitl_detail(
        ti_id=task_instance,
        options=operator.options,
        subject=operator.subject,
        body=operator.body,
        defaults=operator.defaults,
        multiple=operator.multiple,
        params=operator.serialized_params,
        assigned_users=operator.assigned_users,
    )
    limit = operator.response_timeout
    operator.defer(
        trigger=AnswerTrigger(
            recovery_id=recovery_id,
            ti_id=task_instance,
            options=operator.options,
            defaults=operator.defaults,
            params=operator.serialized_params,
            multiple=operator.multiple,
            timeout_datetime=utcnow() + limit if limit else None,
            poke_interval=_LOOK_SECONDS,
        ),
        method_name="execute_complete",
    )


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
            if await sync_to_async(self._is_answered)():
                yield TriggerEvent({ELSEWHERE: True})
                return
            if limit is not None and limit < utcnow():
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
