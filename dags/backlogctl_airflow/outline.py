"""What the DAGs show of backlog.yaml when they are parsed: never a reason not to load."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import time

from backlog.config.outline import Outline, StreamOutline, read_outline

__all__ = ["UTC", "find_cron", "list_zones", "name_nightly", "read_outline"]

UTC = "UTC"


def list_zones(outline: Outline) -> tuple[str, ...]:
    """Time zones of the streams that can be rebuilt, sorted; those without a window are UTC's."""
    zones = {_zone(stream) for stream in outline.streams if stream.rebuilds}
    return tuple(sorted(zones)) or (UTC,)


def name_nightly(zone: str, zones: Iterable[str]) -> str:
    """`nightly_backfill`, or `nightly_backfill__Europe-Berlin` where there are several zones."""
    if len(tuple(zones)) == 1:
        return "nightly_backfill"
    # Etc/GMT+1 and Etc/GMT-1 are two zones.
    return "nightly_backfill__" + re.sub(r"[^A-Za-z0-9_.-]", "-", zone.replace("+", "plus"))


def find_cron(outline: Outline, zone: str) -> str:
    """Once a night, when the most windows of the zone are open: `30 0 * * *`.

    Streams whose window opens later wait for it. Without any window it is half past midnight.
    """
    windows = [
        stream.off_peak.window()
        for stream in outline.streams
        if stream.rebuilds and stream.off_peak is not None and _zone(stream) == zone
    ]
    starts = sorted({window.start for window in windows}) or [time(0, 30)]

    def count_open(start: time) -> int:
        return sum(
            w.start <= start < w.end if w.start < w.end else start >= w.start or start < w.end
            for w in windows
        )

    best = max(starts, key=lambda start: (count_open(start), -starts.index(start)))
    return f"{best.minute} {best.hour} * * *"


def _zone(stream: StreamOutline) -> str:
    return UTC if stream.off_peak is None else stream.off_peak.timezone
