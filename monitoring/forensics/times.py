"""When a batch was written, as its header says."""

from __future__ import annotations

from datetime import UTC, datetime

from backlog.kafka.batches import BatchHeader


def read_first(header: BatchHeader) -> int:
    """Milliseconds of its first record; -1 where it has none.

    With LogAppendTime the broker sets only the newest one.
    """
    if header.is_log_append_time or header.first_timestamp_ms < 0:
        return header.max_timestamp_ms
    return header.first_timestamp_ms


def read_last(header: BatchHeader) -> int:
    """Milliseconds of its newest record; -1 where it has none."""
    return header.max_timestamp_ms


def to_time(milliseconds: int) -> datetime | None:
    """None for what is no time: producers set it, some in microseconds."""
    if milliseconds < 0:
        return None
    try:
        return datetime.fromtimestamp(milliseconds / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return None
