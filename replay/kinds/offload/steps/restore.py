"""Step 7: the group's own consumers are started again (protocol P5.7)."""

from __future__ import annotations

from backlog.step import Step
from backlogctl_delivery.crashpoints import reach
from replay.around.leftovers import CONSUMERS_MISSING
from replay.kinds.offload.context import OffloadContext
from replay.kinds.offload.skipping import note_skipped


class Restore(Step[OffloadContext]):
    """They go on where the group stands."""

    name = "restore"

    def start(self, context: OffloadContext) -> None:
        """Starts them.

        Raises:
            BacklogError: they could not be started: says how to do it by hand.
        """
        context.closing = True
        if context.was_started("stop_consumers"):
            note_skipped(context)
            with context.leftovers.noting(CONSUMERS_MISSING):
                context.start_originals()
        reach("p5.7.started")
        fleet = context.originals
        context.leftovers.refuse(
            f"do it by hand (group {fleet.group}: {context.launcher.describe(fleet)}), then "
            f"`backlogctl cancel {context.recovery.id} --leave-consumers` closes the recovery"
        )
