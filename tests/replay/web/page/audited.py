"""What audits found of a stream of the night."""

from __future__ import annotations

from datetime import timedelta

from backlogctl.clock import format_time
from backlogctl.ledger.measurements import AuditRecord
from tests.replay.web.page.night import NOW, Night


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
