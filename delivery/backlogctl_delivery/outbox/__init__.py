"""The transactional outbox: "business done" and "message sent" are one thing (docs/outbox.md)."""

from backlogctl_delivery.outbox.database import (
    OutboxDatabaseError,
    create_tables,
    drop_tables,
    metadata,
)
from backlogctl_delivery.outbox.outbox import Outbox
from backlogctl_delivery.outbox.sender import OutboxSender, Settings

__all__ = [
    "Outbox",
    "OutboxDatabaseError",
    "OutboxSender",
    "Settings",
    "create_tables",
    "drop_tables",
    "metadata",
]
