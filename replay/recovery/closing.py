"""The context in which a recovery is closed: that of the run which is cancelled, or a new one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar, cast

from rich.console import Console

from backlog.errors import Refused
from backlog.values import Recovery
from replay.recovery.context import RunContext
from replay.recovery.interrupts import Interrupts
from replay.recovery.workspace import Workspace

if TYPE_CHECKING:
    from backlog.ledger import Lease

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
            hint=f"put them back, then `backlogctl cancel {recovery.id}` again",
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
    with interrupts.installed():
        opened.open()
        try:
            yield opened
        except BaseException as error:
            opened.close(error)
            raise
        opened.close(None)
