"""Cancels an expansion: cuts over now, and restores the layout (protocol P4.8 to 10); or sets the
group back, where that is asked for, or nothing was handled yet.
"""

from __future__ import annotations

from backlog.errors import VerificationFailed
from replay.kinds.expand.context import ExpandContext
from replay.kinds.expand.options import REWIND
from replay.kinds.expand.rewinding import can_rewind, is_rewound, rewind
from replay.kinds.expand.steps import CLOSING


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
