"""`pause`, `resume` and `cancel`: asked of a live runner, or done here where there is none."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar, cast

from rich.console import Console

from backlogctl.config import mask_secrets
from backlogctl.errors import BacklogError, LeaseHeld, Refused, UsageError
from backlogctl.replay.engine.brakes import OPERATOR, LedgerWait
from backlogctl.replay.engine.interrupts import Interrupts
from backlogctl.replay.engine.kind import RunContext, Workspace
from backlogctl.replay.engine.next_commands import (
    CANCEL_ASKED,
    CANCEL_FAILED,
    STANDING,
    find_standing,
    list_cancel_ways,
    list_next_commands,
)
from backlogctl.replay.engine.plan import find_identity, mask_values
from backlogctl.values import Recovery, RecoveryState

if TYPE_CHECKING:
    from backlogctl.ledger import Lease

# Every failure of a recovery ends with how things stand, and what comes next.

LOG = logging.getLogger(__name__)
# Nobody works on it: one that is running was left by a runner that died.
_AT_REST = (RecoveryState.PAUSED, RecoveryState.FAILED, RecoveryState.RUNNING)


@contextmanager
def telling_standing(workspace: Workspace, recovery_id: str) -> Iterator[None]:
    """An error that leaves it has `next_commands`, and `standing`, how the recovery stands now,
    where something was changed (see BacklogError).

    Of one that keeps consumers stopped it is put on record too.
    """
    try:
        yield
    except Exception as error:
        try:
            _add_standing(workspace, recovery_id, error)
        except Exception as failure:  # noqa: BLE001 - what ended it matters more
            told = mask_secrets(str(failure))
            LOG.warning("recovery %s: how it stands is unknown: %s", recovery_id, told)
        raise


def _add_standing(workspace: Workspace, recovery_id: str, error: Exception) -> None:
    ledger = workspace.ledger
    recovery = ledger.recoveries.get(recovery_id)
    if not ledger.steps.list(recovery_id):
        error.__dict__["next_commands"] = tuple(list_next_commands(workspace, recovery))
        return  # nothing was changed yet
    found = workspace.kind_of(recovery).describe_standing(workspace, recovery)
    error.__dict__["next_commands"] = found.next_commands
    if found.is_settled:
        return
    document = mask_values(mask_secrets, found.to_json())
    error.__dict__["standing"] = document
    at_rest = recovery.state in _AT_REST and not isinstance(error, LeaseHeld)
    # Once, where nothing has happened since: a scheduler may ask again and again.
    if (
        recovery.stops_consumers
        and at_rest
        and find_standing(ledger.events.list(recovery_id)) is None
    ):
        ledger.events.append(recovery_id, str(find_identity()), STANDING, document)


# The context in which a recovery is closed: that of the run which is cancelled, or a new one.

ContextT = TypeVar("ContextT", bound=RunContext[Any])


@contextmanager
def open_closing(
    make: type[ContextT],
    workspace: Workspace,
    recovery: Recovery,
    lease: Lease,
    *,
    context: RunContext[Any] | None,
    console: Console,
) -> Iterator[ContextT]:
    """What the closing steps of a kind work with; a context that is made here is closed too.

    Requests are no longer looked at; Ctrl-C is: cancelling again goes on.

    Args:
        context: of the run that is cancelled, where there is one.

    Raises:
        Refused: the stream has another cluster, topic or group by now.
    """
    if context is not None:
        yield cast("ContextT", context)
        return
    stream = workspace.config.stream(recovery.stream)
    planned = (recovery.cluster, recovery.topic, recovery.group)
    if (stream.cluster, stream.topic, stream.group) != planned:
        raise Refused(
            "the stream has another cluster, topic or group in the configuration now than when "
            f"it was planned: {', '.join(planned)}",
            subject=f"{recovery.kind} {recovery.id} of stream {stream.name}",
            hint="put them back, then cancel it again",
        )
    interrupts = Interrupts()
    opened = make(
        workspace=workspace,
        recovery=recovery,
        stream=stream,
        lease=lease,
        interrupts=interrupts,
        console=console,
    )
    wait = LedgerWait(console, interrupts)
    with interrupts.installed(), workspace.ledger.outlasting(wait):
        opened.open()
        try:
            yield opened
        except BaseException as error:
            opened.close(error)
            raise
        opened.close(None)


State = RecoveryState
_POLL_SECONDS = 0.25


def request_pause(workspace: Workspace, recovery_id: str) -> tuple[Recovery, str]:
    """Asks the runner to stop between two waves; without one it is paused here.

    Returns:
        The recovery, and what happened in one sentence.

    Raises:
        Refused: it does not run.
    """
    ledger, actor = workspace.ledger, str(find_identity())
    recovery = ledger.recoveries.get(recovery_id)
    workspace.kind_of(recovery)
    detail = {"why": OPERATOR, "message": "paused by an operator"}
    if recovery.state is State.PAUSED and recovery.detail.get("why") == OPERATOR:
        return recovery, f"{recovery_id} is paused already"
    if recovery.state not in (State.RUNNING, State.PAUSED):
        raise Refused(
            f"it is {recovery.state}, so there is nothing to pause",
            subject=f"recovery {recovery_id}",
            hint=f"see `backlogctl show {recovery_id}`",
        )
    try:
        with ledger.leases.hold(recovery_id):
            current = ledger.recoveries.get(recovery_id)
            if current.requested == "cancel":
                raise Refused(
                    "it is to be cancelled, so it cannot be paused",
                    subject=f"recovery {recovery_id}",
                    hint="cancelling it again finishes that",
                )
            if current.state is State.PAUSED:
                # Waiting for its window: from now on it waits for `resume`.
                ledger.recoveries.advance(recovery_id, State.RUNNING, actor, {"why": "to hold it"})
            found = ledger.recoveries.advance(recovery_id, State.PAUSED, actor, detail)
            return found, f"{recovery_id} is paused; `backlogctl resume {recovery_id}` goes on"
    except LeaseHeld:
        found = ledger.recoveries.request(recovery_id, "pause", actor)
        return found, f"asked the runner {found.runner} to pause; it stops between two waves"


def withdraw_pause(workspace: Workspace, recovery_id: str) -> tuple[Recovery, str | None]:
    """Takes a pause back that the runner has not seen yet.

    Returns:
        The recovery, and the live runner that goes on by itself (None where there is none).

    Raises:
        Refused: it is not paused and nobody asked for it, or it was cancelled meanwhile.
    """
    ledger = workspace.ledger
    recovery = ledger.recoveries.get(recovery_id)
    workspace.kind_of(recovery)
    if recovery.requested == "pause":
        runner = ledger.leases.find_runner(recovery_id)
        recovery = ledger.recoveries.request(recovery_id, None, str(find_identity()))
        if recovery.state is State.PAUSED:
            return recovery, None  # the runner saw the pause first, and has stopped
        return recovery, None if runner is None else str(runner)  # None: it failed, or died
    if recovery.state is not State.PAUSED:
        raise Refused(
            f"it is {recovery.state}, not paused",
            subject=f"recovery {recovery_id}",
            hint=f"see `backlogctl show {recovery_id}`",
        )
    return recovery, None


def cancel_work(
    workspace: Workspace,
    recovery_id: str,
    *,
    wait: float,
    ways: Sequence[str] = (),
    say: Callable[[str], None] = lambda _: None,
    console: Console | None = None,
) -> Recovery:
    """Cancels for good: here, or by the live runner, which is waited for.

    Args:
        ways: of those that its kind knows (`Kind.cancel_ways`); whoever carries it out finds them
            in the recovery's record.

    Raises:
        UsageError: its kind knows no such way.
        Refused: it is at an end already.
        LeaseHeld: the runner did not stop within `wait` seconds; the request stays.
    """
    ledger, actor = workspace.ledger, str(find_identity())
    recovery = ledger.recoveries.get(recovery_id)
    kind = workspace.kind_of(recovery)
    for way in ways:
        if way not in kind.cancel_ways:
            raise UsageError(
                f"`--{way}` is not for this kind of recovery",
                subject=f"{kind.name} {recovery_id}",
                hint="cancel it without that",
            )
    if recovery.state is State.CANCELLED:
        return recovery
    if recovery.state is State.PLANNED:
        return ledger.recoveries.advance(recovery_id, State.REJECTED, actor, {"why": "cancelled"})
    if recovery.state in (State.VERIFIED, State.REJECTED):
        raise Refused(
            f"it is {recovery.state}, so there is nothing to cancel",
            subject=f"recovery {recovery_id}",
        )
    ledger.events.append(recovery_id, actor, CANCEL_ASKED, {"ways": list(ways)})
    with telling_standing(workspace, recovery_id):
        return _cancel(workspace, recovery_id, wait, say, console)


def _cancel(
    workspace: Workspace,
    recovery_id: str,
    wait: float,
    say: Callable[[str], None],
    console: Console | None,
) -> Recovery:
    ledger, actor = workspace.ledger, str(find_identity())
    end = time.monotonic() + wait
    asked = False
    while True:
        try:
            with ledger.leases.hold(recovery_id) as lease:
                current = ledger.recoveries.get(recovery_id)
                if current.state is State.CANCELLED:
                    return current
                return finish_cancel(workspace, recovery_id, lease, console=console)
        except LeaseHeld as held:
            if not asked:
                found = ledger.recoveries.request(recovery_id, "cancel", actor)
                say(f"asked the runner {found.runner} to stop; waiting for it")
                asked = True
            if time.monotonic() >= end:
                raise LeaseHeld(
                    f"the runner has not stopped yet: {held.message}",
                    subject=held.subject,
                    hint="the request stays, and the runner carries it out; look with "
                    f"`backlogctl show {recovery_id}`",
                ) from held
        time.sleep(_POLL_SECONDS)
        current = ledger.recoveries.get(recovery_id)
        if current.state is State.CANCELLED:
            return current
        if current.state is State.VERIFIED:
            raise Refused(
                "it was verified before the runner saw the request",
                subject=f"recovery {recovery_id}",
            )


def find_ways(workspace: Workspace, recovery_id: str) -> tuple[str, ...]:
    """The ways of the last `cancel`, so that whoever goes on with it goes the same."""
    return list_cancel_ways(workspace.ledger.events.list(recovery_id))


def finish_cancel(
    workspace: Workspace,
    recovery_id: str,
    lease: Lease,
    *,
    context: RunContext[Any] | None = None,
    console: Console | None = None,
) -> Recovery:
    """Closes the work, and only then changes the state; its gaps are open again.

    The kind closes it (`Kind.close`). The recovery is read under the lease: one that was read
    before may have run since.

    Args:
        context: that of the run which is cancelled, where there is one.

    Raises:
        LeaseHeld: another runner took it over; nothing was done.
        BacklogError: it could not be closed, so the state was not changed; cancel again.
    """
    lease.confirm()
    recovery = workspace.ledger.recoveries.get(recovery_id)
    kind = workspace.kind_of(recovery)
    if recovery.state is not State.APPROVED:
        try:
            # On record first: where this is killed, the next run finishes it.
            workspace.ledger.recoveries.request(recovery.id, "cancel", str(find_identity()))
            kind.close(
                workspace,
                recovery,
                lease,
                context=context,
                console=console or Console(stderr=True, quiet=True),
            )
        except BacklogError as error:
            detail = {"code": error.code, "message": mask_secrets(error.message)}
            actor = str(find_identity())
            workspace.ledger.events.append(recovery.id, actor, CANCEL_FAILED, detail)
            raise
    return workspace.ledger.recoveries.advance(
        recovery.id,
        State.CANCELLED,
        actor=str(find_identity()),
        detail={"injected": recovery.injected},
        owner=lease.owner,
    )
