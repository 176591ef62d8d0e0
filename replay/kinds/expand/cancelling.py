"""Cancels an expansion: cuts over now, and restores the layout (protocol P4.8 to 10); or sets the
group back, where that is asked for, or nothing was handled yet.
"""

from __future__ import annotations

from rich.console import Console

from backlog.errors import Refused, VerificationFailed
from backlog.ledger import Lease
from backlog.values import Recovery
from replay.kinds.expand.context import ExpandContext
from replay.kinds.expand.options import REWIND
from replay.kinds.expand.rewinding import can_rewind, is_rewound, rewind
from replay.kinds.expand.steps import CLOSING
from replay.recovery.interrupts import Interrupts
from replay.recovery.workspace import Workspace


def cancel_expansion(
    workspace: Workspace, recovery: Recovery, lease: Lease, console: Console
) -> None:
    """Cuts over where no run is at it.

    Raises:
        Refused: the stream has another cluster, topic or group by now.
        BacklogError: it could not be closed; cancel again, it goes on.
    """
    stream = workspace.config.stream(recovery.stream)
    planned = (recovery.cluster, recovery.topic, recovery.group)
    if (stream.cluster, stream.topic, stream.group) != planned:
        raise Refused(
            "the stream has another cluster, topic or group in the configuration now than when "
            f"its expansion was planned: {', '.join(planned)}",
            subject=f"stream {stream.name}",
            hint=f"put them back, then `backlogctl cancel {recovery.id}` again",
        )
    interrupts = Interrupts()
    context = ExpandContext(
        workspace=workspace,
        recovery=recovery,
        stream=stream,
        lease=lease,
        interrupts=interrupts,
        console=console,
    )
    with interrupts.installed():
        context.open()
        try:
            close_expansion(context)
        except BaseException as error:
            context.close(error)
            raise
        context.close(None)


def close_expansion(context: ExpandContext) -> None:
    """By the way that was asked for last; by itself the one that leaves nobody waiting.

    Requests are no longer looked at; Ctrl-C is: cancelling again goes on.
    """
    context.closing = context.cancelling = True
    context.__dict__.pop("launcher", None)  # it is another one where consumers are left alone
    if REWIND in context.cancel_ways or is_rewound(context):
        rewind(context)
    elif not (can_rewind(context) and not context.read_handled()) or not rewind(
        context, unless_handled=True
    ):
        close_layout(context)


def close_layout(context: ExpandContext) -> None:
    """The closing steps; what is done already is not done again.

    Never a deletion of unread messages.
    """
    context.closing = context.cancelling = True
    for step in CLOSING:
        if context.is_complete(step.name):
            continue
        context.begin(step.name)
        try:
            step.start(context)
        except VerificationFailed as failed:
            # The layout is restored: a cancel ends here, and keeps the topic that differs.
            context.say(f"{failed.message}; {failed.hint}")
            context.record("cancelled without verification", **failed.to_json())
            return
        context.lease.confirm()
        step.complete(context)
        context.end(step.name)
