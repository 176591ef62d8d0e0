"""What is seen of an outbox or of look-back at one moment: frozen, or why it is unknown."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from backlogctl_delivery.lookback.admin import Count
    from backlogctl_delivery.outbox.admin import OutboxStatus


@dataclass(frozen=True, slots=True)
class LookBackStatus:
    """How look-back stands: the states that have not ended, and records that did not fit."""

    counts: tuple[Count, ...]
    incidents: int


Status: TypeAlias = "OutboxStatus | LookBackStatus"


@dataclass(frozen=True, slots=True)
class DeliveryLook:
    """One outbox, or look-back.

    Attributes:
        outbox: its name; "" is look-back.
        status: None where it is unknown.
        problem: why it is unknown; "" where it is known, or was not looked at yet.
        taken_at: of the last look, good or not; None before it.
    """

    outbox: str
    status: Status | None = None
    problem: str = ""
    taken_at: datetime | None = None

    @property
    def subject(self) -> str:
        return f"outbox {self.outbox}" if self.outbox else "look-back"
