"""Step 7: the relay ends, and the temporary topic is read to its end (protocol P4.8)."""

from __future__ import annotations

from replay.expand_closing import close_relays
from replay.expand_context import ExpandContext


class CutOver:
    """What was relayed exists only in the temporary topic, until it is handled."""

    name = "cut_over"

    def validate(self, context: ExpandContext) -> None:
        """Nothing to look at before the backlog is relayed."""

    def start(self, context: ExpandContext) -> None:
        """Stops the relays, waits until nothing is unread, stops the recovery's consumers."""
        context.details[self.name] = close_relays(context)

    def complete(self, context: ExpandContext) -> None:
        """What was relayed, by partition, is in the ledger with this step."""

    def rollback(self, context: ExpandContext) -> None:
        """There is nothing to take back: all of it was handled."""
