"""Carries out an approved plan: lease, steps, states. Can be killed at any point and run again."""

from __future__ import annotations

import logging
import time
from typing import Any

from rich.console import Console

from backlogctl.config import mask_secrets
from backlogctl.errors import BacklogError, LeaseHeld, Paused, Refused
from backlogctl.ledger import Lease
from backlogctl.replay.engine.approval import check_approval, refuse_state
from backlogctl.replay.engine.archives import clear_staging
from backlogctl.replay.engine.brakes import (
    HELD,
    INTERRUPTED,
    OPERATOR,
    CancelRequested,
    LedgerWait,
    PausedBecause,
    check_window,
    make_operator_pause,
)
from backlogctl.replay.engine.brokers import BrokerWatch
from backlogctl.replay.engine.cancelling import finish_cancel, telling_standing
from backlogctl.replay.engine.interrupts import Interrupts
from backlogctl.replay.engine.kind import Kind, RunContext, Workspace, record_terms
from backlogctl.replay.engine.next_commands import REFUSED
from backlogctl.replay.engine.plan import find_identity
from backlogctl.values import Recovery, RecoveryState

LOG = logging.getLogger(__name__)


class Run:
    """One try to carry a recovery out.

    Attributes:
        was_done: it was verified before; nothing was done.
        seconds: how long this try took.
    """

    def __init__(
        self, workspace: Workspace, recovery_id: str, console: Console, *, resumed: bool = False
    ) -> None:
        self._workspace = workspace
        self._id = recovery_id
        self._console = console
        self._resumed = resumed
        self._interrupts = Interrupts()
        self._context: RunContext[Any] | None = None
        self.was_done = False
        self.seconds = 0.0

    def carry_out(self) -> Recovery:
        """Runs it to `verified`.

        Raises:
            ApprovalNeeded, Refused: it may not run; nothing was changed.
            LeaseHeld: another runner works on it.
            Paused: it stopped between two chunks and will go on.
            BacklogError: it failed, and can be run again.
        """
        started = time.monotonic()
        recovery = self._workspace.ledger.recoveries.get(self._id)
        self._workspace.kind_of(recovery)
        if recovery.state is RecoveryState.VERIFIED:
            self.was_done = True
            return recovery
        try:
            with telling_standing(self._workspace, self._id):
                check_startable(self._workspace, recovery)
                with self._workspace.ledger.leases.hold(self._id) as lease:
                    done = self._work(lease)
            clear_staging(self._workspace)
            return done
        finally:
            self.seconds = time.monotonic() - started

    def describe(self) -> dict[str, Any]:
        """What this try adds to the document of `run`."""
        found = self._context.found if self._context else {}
        return {"seconds": round(self.seconds, 2), "already_done": self.was_done, **found}

    def _work(self, lease: Lease) -> Recovery:
        recovery = self._workspace.ledger.recoveries.get(self._id)
        if recovery.state is RecoveryState.VERIFIED:
            self.was_done = True
            return recovery
        check_startable(self._workspace, recovery)
        if recovery.requested == "cancel":
            # Somebody asked a runner that died before it saw it.
            finish_cancel(self._workspace, self._id, lease, console=self._console)
            raise CancelRequested("it was cancelled", subject=f"recovery {self._id}")
        held_back = (
            recovery.state is RecoveryState.PAUSED and recovery.detail.get("why") == OPERATOR
        )
        if (held_back or recovery.requested == "pause") and not self._resumed:
            raise make_operator_pause(recovery)
        kind = self._workspace.kind_of(recovery)
        context = kind.context(
            workspace=self._workspace,
            recovery=recovery,
            stream=self._workspace.config.stream(recovery.stream),
            lease=lease,
            interrupts=self._interrupts,
            console=self._console,
            resumed=self._resumed,
        )
        self._context = context
        self._validate(context, kind)
        record_terms(self._workspace, recovery, str(find_identity()), "run")
        self._enter_running(recovery, lease)
        properties = self._workspace.properties(context.stream)
        wait = LedgerWait(self._console, self._interrupts)
        with self._interrupts.installed(), self._workspace.ledger.outlasting(wait):
            context.open()
            try:
                with BrokerWatch(properties, context.say):
                    done = self._take_steps(context, kind)
            except BaseException as error:
                context.close(error)
                raise
            context.close(None)
        return done

    def _validate(self, context: RunContext[Any], kind: Kind[Any, Any]) -> None:
        for step in kind.steps:
            if context.is_complete(step.name):
                continue
            try:
                step.validate(context)
            except BacklogError as error:
                context.record(REFUSED, step=step.name, **_describe_error(error))
                raise

    def _enter_running(self, recovery: Recovery, lease: Lease) -> None:
        detail = {"runner": str(lease.owner), "resumed": self._resumed}
        if recovery.state is RecoveryState.RUNNING:
            # The runner before us died; the lease says that it is gone.
            self._record("taken over", detail)
            return
        self._workspace.ledger.recoveries.advance(
            self._id,
            RecoveryState.RUNNING,
            actor=str(find_identity()),
            detail=detail,
            owner=lease.owner,
        )

    def _take_steps(self, context: RunContext[Any], kind: Kind[Any, Any]) -> Recovery:
        try:
            with self._interrupts.restored():
                check_window(context)
                for step in kind.steps:
                    if context.is_complete(step.name):
                        continue
                    context.begin(step.name)
                    step.start(context)
                    context.lease.confirm()
                    step.complete(context)
                    context.end(step.name)
                return self._advance(context.lease, RecoveryState.VERIFIED, dict(context.found))
        except Paused as pause:
            why = pause.why if isinstance(pause, PausedBecause) else HELD
            detail = {"why": why, "message": mask_secrets(pause.message)}
            self._end(context.lease, RecoveryState.PAUSED, detail)
            raise
        except CancelRequested:
            finish_cancel(self._workspace, self._id, context.lease, context=context)
            raise
        except LeaseHeld:
            # It is another runner's now, and so is its state.
            raise
        except KeyboardInterrupt:
            # The second Ctrl-C: the open chunk's transaction is aborted by the next run.
            message = "interrupted; what was open is aborted, what is committed stays"
            detail = {"why": INTERRUPTED, "message": message}
            self._end(context.lease, RecoveryState.PAUSED, detail)
            raise PausedBecause(
                INTERRUPTED,
                message,
                subject=f"recovery {self._id}",
                hint="the next run goes on where it stopped",
            ) from None
        except Exception as error:
            detail = _describe_error(error)
            self._end(context.lease, RecoveryState.FAILED, detail)
            raise

    def _end(self, lease: Lease, to: RecoveryState, detail: dict[str, Any]) -> None:
        """Writes down why this try ends; what ended it matters more than a failure of that.

        Nothing is changed where another runner has the lease: the state is theirs.
        """
        try:
            self._advance(lease, to, detail)
        except BacklogError as error:
            told = mask_secrets(str(error))
            LOG.warning("recovery %s is not marked as %s: %s", self._id, to, told)

    def _advance(self, lease: Lease, to: RecoveryState, detail: dict[str, Any]) -> Recovery:
        return self._workspace.ledger.recoveries.advance(
            self._id, to, actor=str(find_identity()), detail=detail, owner=lease.owner
        )

    def _record(self, action: str, detail: dict[str, Any]) -> None:
        self._workspace.ledger.events.append(self._id, str(find_identity()), action, detail)


def check_startable(workspace: Workspace, recovery: Recovery) -> None:
    """Whether the recovery may be run now.

    Raises:
        Refused: it is at an end, or this program cannot read its plan.
        ApprovalNeeded: not approved, or not any more.
    """
    kind = workspace.kind_of(recovery)
    if recovery.detail.get("superseded_by"):
        raise refuse_state(recovery, "run")
    if recovery.state in (RecoveryState.REJECTED, RecoveryState.CANCELLED):
        raise Refused(
            f"it was {recovery.state}",
            subject=f"recovery {recovery.id}",
            hint="plan again",
        )
    check_approval(recovery)
    kind.read_plan(recovery)


def _describe_error(error: Exception) -> dict[str, Any]:
    """An error for the record, without secrets."""
    if isinstance(error, BacklogError):
        told = {"code": error.code, "message": error.message, "subject": error.subject}
        again = {"retryable": True} if error.retryable else {}
    else:
        told = {"code": "bug", "message": f"{type(error).__name__}: {error}", "subject": ""}
        again = {}
    return {**{name: mask_secrets(text) for name, text in told.items()}, **again}
