"""What the DAGs show of backlog.yaml when they are parsed: never a reason not to load."""

from __future__ import annotations

from collections import Counter
from datetime import time

from backlog.config.outline import Outline, read_outline

__all__ = ["UTC", "find_cron", "find_zone", "read_outline"]

UTC = "UTC"


def find_zone(outline: Outline) -> str:
    """The time zone of the schedule: that of most streams that can be rebuilt, the first of two.

    Streams of another zone wait within the run for their own window.
    """
    zones = Counter(
        stream.off_peak.timezone
        for stream in outline.streams
        if stream.rebuilds and stream.off_peak is not None
    )
    return zones.most_common(1)[0][0] if zones else UTC


def find_cron(outline: Outline, zone: str) -> str:
    """Once a night, when the most windows of the zone are open: `30 0 * * *`.

    Streams whose window opens later wait for it. Without any window it is half past midnight.
    """
    windows = [
        stream.off_peak.window()
        for stream in outline.streams
        if stream.rebuilds and stream.off_peak is not None and stream.off_peak.timezone == zone
    ]
    starts = sorted({window.start for window in windows}) or [time(0, 30)]

    def count_open(start: time) -> int:
        return sum(
            w.start <= start < w.end if w.start < w.end else start >= w.start or start < w.end
            for w in windows
        )

    best = max(starts, key=lambda start: (count_open(start), -starts.index(start)))
    return f"{best.minute} {best.hour} * * *"
