"""Order service, its table, two senders, the topic, the consumer."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from backlogctl_delivery.outbox.admin import OutboxAdmin
from backlogctl_delivery.outbox.database import OutboxDatabase
from examples.delivery.facts import COMMITTED_ORDERS, create_orders
from tests.crash.delivery import cast
from tests.crash.delivery.chain import APPLICATION, RATE, Chain, Part
from tests.kafka_tools import wait_until

SENDERS = ("sender 1", "sender 2")


class OutboxChain(Chain):
    """See there.

    Args:
        sends: the application sends by itself, right after each commit; the senders come after it.
    """

    rows = COMMITTED_ORDERS

    def __init__(
        self, bootstrap: str, directory: Path, database: str, *, sends: bool = False
    ) -> None:
        self._sends = sends
        super().__init__(bootstrap, directory, database)

    def make_parts(self) -> Mapping[str, Part]:
        create_orders(self.database)
        self._outbox = OutboxDatabase(self.database)
        self._desk = OutboxAdmin(self._outbox)
        self._desk.create()
        ledger, brokers = self.ledger, self.bootstrap if self._sends else None
        ordering = (self.database, brokers, ledger.topic, ledger.begun, RATE)
        sending = Part(cast.send, (self.database, self.bootstrap))
        return {
            APPLICATION: Part(cast.serve_orders, ordering),
            **dict.fromkeys(SENDERS, sending),
        }

    def await_sent(self) -> None:
        wait_until(lambda: self._desk.read_status().unsent == 0, 60, "all of it is sent")

    def close(self) -> None:
        """With the senders' database."""
        super().close()
        self._outbox.close()
