"""Visits of a page, and what is on it: audits, outboxes and look-back."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from starlette.testclient import TestClient

from backlogctl.clock import format_time
from backlogctl.ledger.measurements import AuditRecord
from backlogctl.replay.web.deliveries import DeliveryLook, LookBackStatus
from backlogctl.replay.web.page.app import make_page
from backlogctl_delivery.lookback.admin import OPEN, Count
from backlogctl_delivery.lookback.messages import State
from backlogctl_delivery.outbox.admin import OutboxStatus
from tests.replay.web.page.night import NOW, Night


def serve(night: Night, **changes: Any) -> TestClient:
    """A client of the page; `changes` are of what `make_page` takes."""
    values = {"board": night.board, "deliveries": lambda: night.deliveries, **changes}
    app = make_page(night.workspace, clock=lambda: night.now, **values)
    return TestClient(app)


def read(night: Night, path: str, status: int = 200, **changes: Any) -> str:
    """A page as it is sent."""
    answer = serve(night, **changes).get(path)
    text: str = answer.text
    assert answer.status_code == status, text
    return text


def strip(text: str) -> str:
    """The words of a page."""
    text = re.sub(r"<svg.*?</svg>", "", text, flags=re.DOTALL)
    return " ".join(re.sub(r"<[^>]+>", " ", text).split())


def tell_audits(night: Night) -> None:
    """Of `orders` a producer lost some, and counts show a stretch whose messages are nowhere."""
    at = NOW - timedelta(hours=5)
    claims = "Each hole is messages that their producer numbered and that are nowhere in the topic."
    hole = "37 messages (sequence 4,120 to 4,156) of producer shop-7 never reached the topic"
    night.ledger.audits.record(
        AuditRecord(
            *("orders", "main", "sequence", at, "lost", 37),
            {
                "claims": claims,
                "findings": [
                    {"level": "lost", "found": hole, "commands": ["backlogctl doctor orders"]},
                    {"level": "noted", "found": "nothing to see", "commands": []},
                ],
            },
        )
    )
    width = timedelta(minutes=15)
    begin = at - 24 * 4 * width
    windows = []
    for number in range(24 * 4):
        rows = 4_000 + 1_500 * (number % 48) // 24
        gone = 620 if 40 <= number < 44 else 0
        start = begin + number * width
        windows.append(
            {
                "start": format_time(start),
                "end": format_time(start + width),
                "rows": rows,
                "messages": rows - gone,
                "handled": rows - gone,
                "rows_without_message": gone,
                "not_handled": 0,
            }
        )
    told = "2,480 rows have no message in the topic"
    night.ledger.audits.record(
        AuditRecord(
            *("orders", "main", "counts", at, "suspect", 0),
            {
                "claims": "Counts tell how many, not which.",
                "findings": [{"level": "suspect", "found": told, "commands": []}],
                "windows": windows,
            },
        )
    )


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
