"""The off-peak window that a plan froze."""

from __future__ import annotations

from datetime import time
from zoneinfo import ZoneInfo

from backlog.clock import OffPeakWindow
from backlog.values import Recovery


def find_window(recovery: Recovery) -> OffPeakWindow | None:
    """The plan's window; None where it may run at any time."""
    planned = recovery.plan.get("off_peak")
    if planned is None:
        return None
    start, end = time.fromisoformat(planned["from"]), time.fromisoformat(planned["to"])
    return OffPeakWindow(start, end, ZoneInfo(planned["timezone"]))
