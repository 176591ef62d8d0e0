"""The transactional outbox: "business done" and "message sent" are one thing (docs/outbox.md)."""

from delivery.outbox.databases import OutboxDatabaseError
from delivery.outbox.outbox import Outbox
from delivery.outbox.sender import OutboxSender
from delivery.outbox.settings import Settings
from delivery.outbox.tables import create_tables, drop_tables, metadata

__all__ = [
    "Outbox",
    "OutboxDatabaseError",
    "OutboxSender",
    "Settings",
    "create_tables",
    "drop_tables",
    "metadata",
]
