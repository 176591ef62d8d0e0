"""Families of the sequence check: what it has read, and what is missing."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import Metric

from monitoring.board import BoardState
from monitoring.metrics.exposition import Counter, Gauge


def describe_sequences(seen: BoardState) -> Iterator[Metric]:
    """What the sequence check has read and misses; nothing of what it cannot tell."""
    up, behind = Gauge("backlog_sequence_up"), Gauge("backlog_sequence_behind_messages")
    checked = Counter("backlog_sequence_checked_messages")
    unreadable = Counter("backlog_sequence_unreadable_messages")
    missing = Gauge("backlog_sequence_missing_messages")
    for stream, look in sorted(seen.sequences.items()):
        place = (look.cluster, stream)
        up.add_metric(place, int(not look.trouble))
        checked.add_metric(place, look.checked)
        unreadable.add_metric(place, look.unreadable)
        if look.behind is not None:
            behind.add_metric(place, look.behind)
        for certainty, count in (("lost", look.lost), ("suspect", look.suspect)):
            # A count that nobody keeps up with is a lower bound: then zero says nothing.
            if count is not None and (count or not look.trouble):
                missing.add_metric((*place, certainty), count)
    yield from (up, behind, checked, unreadable, missing)
