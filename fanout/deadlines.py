"""When retention reaches unread messages; pure calculation, nothing here asks Kafka."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

# Retention is raised unless the time left is this many times what the drain takes, and a bit more.
HOLD_TIMES = 2.0
HOLD_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class Unread:
    """What a group has not read of one partition, `[start, end)`.

    `bytes` is the whole partition's size; `oldest_at` the time of the message at `start`; None
    where they are not known. `produced_per_second` is in offsets.
    """

    partition: int
    log_start: int
    start: int
    end: int
    high: int
    produced_per_second: float | None = None
    oldest_at: datetime | None = None
    bytes: int | None = None

    @property
    def lag(self) -> int:
        return max(0, self.end - self.start)


@dataclass(frozen=True, slots=True)
class TimeToLoss:
    """Until the first unread message may be deleted: at least `seconds`; None where unknown.

    `limited`: whether retention deletes anything at all.
    """

    seconds: float | None
    by: Literal["time", "size"] | None
    limited: bool


def find_time_to_loss(
    unread: Iterable[Unread], retention: timedelta | None, limit_bytes: int | None, now: datetime
) -> TimeToLoss:
    """The earliest loss over all partitions with something unread, by time or by size.

    Args:
        retention: `retention.ms`; None where time deletes nothing.
        limit_bytes: `retention.bytes` of one partition; None where size deletes nothing.
    """
    found: list[tuple[float, Literal["time", "size"]]] = []
    for part in unread:
        if not part.lag:
            continue
        if retention is not None and part.oldest_at is not None:
            found.append((max(0.0, (part.oldest_at + retention - now).total_seconds()), "time"))
        if limit_bytes is not None:
            seconds = _reach_by_size(part, limit_bytes)
            if seconds is not None:
                found.append((seconds, "size"))
    limited = retention is not None or limit_bytes is not None
    if not found:
        return TimeToLoss(None, None, limited)
    seconds, by = min(found)
    return TimeToLoss(seconds, by, limited)


def needs_hold(loss: TimeToLoss, seconds_to_drain: float | None) -> bool:
    """Whether retention has to be raised while the backlog is drained."""
    if not loss.limited:
        return False
    if loss.seconds is None or seconds_to_drain is None:
        return True
    return loss.seconds < HOLD_TIMES * seconds_to_drain + HOLD_SECONDS


def _reach_by_size(part: Unread, limit: int) -> float | None:
    """None where nothing is known, or nothing is written that would push the oldest out."""
    offsets = part.high - part.log_start
    if part.bytes is None or offsets <= 0:
        return None
    each = part.bytes / offsets
    free = limit - each * (part.high - part.start)
    if free <= 0:
        return 0.0
    growth = each * (part.produced_per_second or 0.0)
    return free / growth if growth > 0 else None
