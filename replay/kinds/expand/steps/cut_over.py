"""Step 7: the relay ends, and the temporary topic is read to its end (protocol P4.8)."""

from __future__ import annotations

from backlog.step import Step
from replay.kinds.expand.closing import close_relays
from replay.kinds.expand.context import ExpandContext


class CutOver(Step[ExpandContext]):
    """What was relayed exists only in the temporary topic, until it is handled."""

    name = "cut_over"

    def start(self, context: ExpandContext) -> None:
        """Stops the relays, waits until nothing is unread, stops the recovery's consumers."""
        context.details[self.name] = close_relays(context)
