"""Step 8: the layout is as it was, in an order that holds after any crash (protocol P4.9)."""

from __future__ import annotations

from backlog.crashpoints import reach
from replay.expand_closing import close_relays
from replay.expand_context import ExpandContext
from replay.steps.expand.hold_retention import give_retention_back
from replay.steps.expand.stop_consumers import start_originals


class Restore:
    """The original consumers come back only when nothing is left in the temporary topic."""

    name = "restore"

    def validate(self, context: ExpandContext) -> None:
        """Nothing to look at before the cut over."""

    def start(self, context: ExpandContext) -> None:
        """P4.9. The order of these lines is what keeps keys from overtaking."""
        context.closing = True
        close_relays(context)  # 1. to 3. fenced, offsets stable, nothing unread
        context.note_sample()
        context.session.leave()  # 4. the guard leaves cleanly
        reach("p4.9.guard.left")
        if context.was_started("stop_consumers"):
            start_originals(context)  # 5. only then
        reach("p4.9.originals.started")
        give_retention_back(context)  # 6.
        reach("p4.9.retention.given_back")

    def complete(self, context: ExpandContext) -> None:
        """The temporary topic is deleted when it was counted: see Verify and RemoveTopic."""

    def rollback(self, context: ExpandContext) -> None:
        """The layout is the one of normal times: there is nothing to take back."""
