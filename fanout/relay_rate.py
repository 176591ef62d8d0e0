"""What a share of the quota means for an expansion: how fast its relays copy, and its drain."""

from __future__ import annotations

from collections.abc import Iterable

from backlogctl.fanout.disk import PartitionBacklog, measure_message
from backlogctl.fanout.layout import Layout, Load, measure_drain
from backlogctl.formats import format_duration, format_rate
from backlogctl.kafka.log_dirs import LogDirs


def find_relay_rate(
    log_dirs: LogDirs, unread: Iterable[PartitionBacklog], bytes_per_second: float | None
) -> float | None:
    """Messages a second that the relays copy at this rate, if they are as large as the unread
    ones; None where it does not limit them, or their size is not known."""
    size = measure_message(log_dirs, unread)
    return None if bytes_per_second is None or size is None else bytes_per_second / size


def warn_about_quota(load: Load, layout: Layout, bytes_per_second: float | None) -> list[str]:
    """Whether the relays' share of their quota is what makes the drain take as long as it does."""
    if bytes_per_second is None:
        return []
    if load.relayed_per_second is None:
        return [
            "how large the messages are is not known, so neither is how long the relays take that "
            "keep to `limits.quota_share`: drain times are without that"
        ]
    free = measure_drain(load.unlimited, layout.consumers)
    now, rate = layout.seconds_expanded, format_rate(load.relayed_per_second)
    if now == free:
        return []
    takes = "it is never drained" if now is None else f"the drain takes {format_duration(now)}"
    instead = "" if free is None else f"; without that {format_duration(free)}"
    return [f"`limits.quota_share` lets the relays copy {rate}, so {takes}{instead}"]
