"""One word for how a group is doing, the worst that applies."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum


class Verdict(StrEnum):
    """Best first; `severity` is the place in this list."""

    OK = "ok"  # nothing unread, or what is unread gets less at times
    LAGGING = "lagging"  # something unread, and too few samples yet for a trend
    UNKNOWN = "unknown"  # written, and the group has no committed offset
    WARN = "warn"  # lag never fell in the window, or a recovery has stopped the consumers
    STALL = "stall"  # members, lag, and the committed offset did not move in the window
    STOP = "stop"  # no members, lag, and no commit in the window
    REWIND = "rewind"  # the committed offset went back, and did not recover
    BEYOND_END = "beyond_end"  # the committed offset lies beyond the end of the log
    LOSING = "losing"  # retention passes the committed offset within the horizon
    LOST = "lost"  # messages are gone that the group never read

    @property
    def severity(self) -> int:
        """0 for `ok`, growing."""
        return _ORDER[self]


_ORDER = {verdict: number for number, verdict in enumerate(Verdict)}


def find_worst(verdicts: Iterable[Verdict]) -> Verdict:
    """The worst of them; `ok` of none."""
    return max(verdicts, key=lambda verdict: verdict.severity, default=Verdict.OK)
