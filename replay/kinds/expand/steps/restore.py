"""Step 8: the layout is as it was, in an order that holds after any crash (protocol P4.9)."""

from __future__ import annotations

from backlog.crashpoints import reach
from backlog.step import Step
from replay.kinds.expand.closing import close_relays
from replay.kinds.expand.context import ExpandContext
from replay.kinds.expand.steps.hold_retention import give_retention_back
from replay.kinds.expand.steps.stop_consumers import start_originals


class Restore(Step[ExpandContext]):
    """The original consumers come back only when nothing is left in the temporary topic."""

    name = "restore"

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
