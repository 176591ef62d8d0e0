"""Outboxes and look-back of a night, each in another state."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from backlogctl.replay.web.deliveries import DeliveryLook, LookBackStatus
from backlogctl_delivery.lookback.admin import OPEN, Count
from backlogctl_delivery.lookback.messages import State
from backlogctl_delivery.outbox.admin import OutboxStatus
from tests.replay.web.page.night import NOW, Night

SEEN = NOW - timedelta(seconds=11)


def describe_deliveries(more: Sequence[str] = ()) -> dict[str, Any]:
    """Of the configuration: four outboxes and more, and look-back."""
    names = ("shop", "billing", "stock", "crm", *more)
    url = "postgresql+psycopg://app:${env:PASSWORD}@db"
    return {
        "sources": {name: {"url": f"{url}/{name}"} for name in names},
        "outboxes": {name: {"cluster": "main"} for name in names},
        "look_back": {"database": f"{url}/look_back", "cluster": "main"},
    }


def make_outbox(name: str, *figures: Any) -> DeliveryLook:
    """Pending, in progress, parked; the oldest of all, and of those that wait."""
    return DeliveryLook(name, OutboxStatus(*figures), taken_at=SEEN)


def make_look_back(incidents: int = 0, /, **ages: tuple[int, float]) -> DeliveryLook:
    """How many are in a state, and the age of the oldest."""
    counts = (Count(state, *ages.get(str(State(state)), (0, None))) for state in OPEN)
    return DeliveryLook("", LookBackStatus(tuple(counts), incidents), taken_at=SEEN)


def tell_deliveries(night: Night, more: Sequence[str] = ()) -> None:
    """One is well, one parked, one late, one away; look-back is well, with two incidents.

    `more` are late, with very many.
    """
    night.deliveries = (
        make_outbox("shop", 14, 2, 0, 1.4, 1.4),
        make_outbox("billing", 1_204, 0, 3, 9_400.0, 5_100.0),
        make_outbox("stock", 48_310, 0, 0, 2_900.0, 2_900.0),
        DeliveryLook(
            "crm",
            None,
            "the database cannot be reached: nothing listens at crm.example.com:5432 (check that it "
            "runs, and host and port in `url`)",
            SEEN,
        ),
        make_look_back(2, prepared=(6, 21.0), forwarding=(1, 3.0)),
        *(make_outbox(name, 10**15, 10**9, 0, 10.0**8, 10.0**8) for name in more),
    )
