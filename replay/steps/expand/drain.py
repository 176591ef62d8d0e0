"""Step 6: everything is relayed, and all consumers work (protocol P4.5 to 7)."""

from __future__ import annotations

import time

from backlog.crashpoints import reach
from backlog.errors import KafkaFailure
from fanout.launchers.ramp import ramp_up
from replay.expand_closing import close_relays
from replay.expand_context import ExpandContext

_POLL_SECONDS = 0.1


class Drain:
    """Relays until the source's lag is under the threshold, with all consumers at work."""

    name = "drain"

    def validate(self, context: ExpandContext) -> None:
        """Nothing to look at before the consumers are stopped."""

    def start(self, context: ExpandContext) -> None:
        """Goes on where the group's commits say.

        Raises:
            ConsumerCameBack: somebody is in the group; the relay has stopped.
        """
        context.session.join()  # 5. the guard
        reach("p4.5.guard.joined")
        context.note_counters()
        context.session.start(context.make_ranges)  # 6. the relays
        reach("p4.6.relays.started")
        ramp_up(  # 7. the consumers
            context.launcher,
            context.fleet,
            context.plan["consumers"],
            context.consumers.ramp,
            context.tick,
            lambda _: None,
            max_consumers=context.consumers.max_consumers,
        )
        reach("p4.7.consumers.started")
        while not _is_relayed(context):
            context.tick()
            time.sleep(_POLL_SECONDS)

    def complete(self, context: ExpandContext) -> None:
        """The relays go on until the cut over."""

    def rollback(self, context: ExpandContext) -> None:
        """Drains what was relayed, and stops the consumers."""
        close_relays(context)


def _is_relayed(context: ExpandContext) -> bool:
    try:
        left = context.read_lags().source_total
    except KafkaFailure as error:
        if not error.retryable:
            raise
        return False
    return left <= int(context.plan["max_lag_at_cutover"])
