"""Step 8: the layout is as it was, in an order that holds after any crash (protocol P4.9)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from backlog.step import Step
from backlogctl_delivery.crashpoints import reach
from replay.around.leftovers import CONSUMERS_MISSING, CONSUMERS_STAY
from replay.kinds.expand.closing import close_relays
from replay.kinds.expand.context import ExpandContext
from replay.kinds.expand.outsiders import note_outsiders
from replay.kinds.expand.steps.hold_retention import give_retention_back

STARTING = "the group's own consumers are started"


class Restore(Step[ExpandContext]):
    """The original consumers come back only when nothing is left in the temporary topic."""

    name = "restore"

    def start(self, context: ExpandContext) -> None:
        """P4.9. The order of these lines is what keeps keys from overtaking."""
        context.closing = True
        close_relays(context)  # 1. to 3. fenced, offsets stable, nothing unread; its consumers end
        context.note_sample()
        context.session.leave()  # 4. the guard leaves cleanly
        reach("p4.9.guard.left")
        if context.was_started("stop_consumers"):
            _note_outsiders_once(context)
        with restoring_retention(context):  # 6. also where 5. fails
            if context.was_started("stop_consumers"):
                context.start_originals()  # 5. only then
            reach("p4.9.originals.started")
        reach("p4.9.retention.given_back")


def _note_outsiders_once(context: ExpandContext) -> None:
    """Nobody is in the group now, and what was done to it since the last relay is told; not where
    an earlier run may have started the group's consumers, whose commits are in order."""
    events = context.workspace.ledger.events.list(context.recovery.id)
    if context.has_source() and not any(event.action == STARTING for event in events):
        note_outsiders(context, context.say)
    context.record(STARTING)


@contextmanager
def restoring_retention(context: ExpandContext) -> Iterator[None]:
    """Gives the retention back, also where consumers do not start; then says what is left to do.

    Raises:
        BacklogError: consumers could not be started or ended.
    """
    with context.leftovers.noting(CONSUMERS_MISSING):
        yield
    give_retention_back(context)
    mine = {CONSUMERS_STAY: context.fleet, CONSUMERS_MISSING: context.originals}
    by_hand = "; ".join(
        f"group {fleet.group}: {context.launcher.describe(fleet)}"
        for what, fleet in mine.items()
        if what in context.leftovers
    )
    context.leftovers.refuse(
        f"the rest of the layout is as it was. Do it by hand ({by_hand}), then `backlogctl cancel "
        f"{context.recovery.id} --leave-consumers` closes the recovery"
    )
