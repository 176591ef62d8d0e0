"""Groups that exist, but could not be read in a pass: their last status is kept.

For a window it stands as it was, with the time it was taken; after that nothing is known. An alert
about such a group must not end because a coordinator moved.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from backlog.numbers import format_duration
from monitoring.status import GroupStatus, PartitionStatus
from monitoring.summaries import summarize_group
from monitoring.verdicts import Verdict

Key = tuple[str, str]  # group, topic


@dataclass
class UnreadableGroups:
    """Remembers the last status of each group on each topic. `window` is in seconds."""

    window: float
    _last: dict[Key, tuple[float, GroupStatus]] = field(default_factory=dict)

    def add(
        self, judged: Iterable[GroupStatus], expected: Iterable[Key], now: float
    ) -> list[GroupStatus]:
        """Those that were judged, and the last of those that are expected and were not, in order.

        The others are forgotten.
        """
        found = {(status.group, status.topic): (now, status) for status in judged}
        for key in expected:
            if key not in found and key in self._last:
                found[key] = self._last[key]
        self._last = {key: found[key] for key in sorted(found)}
        return [
            status if now - at <= self.window else _make_unknown(status, now - at)
            for at, status in self._last.values()
        ]


def _make_unknown(last: GroupStatus, seconds: float) -> GroupStatus:
    parts = [
        PartitionStatus(
            partition=part.partition,
            log_start=part.log_start,
            committed=part.committed,
            end=part.end,
            lag=None,
            lag_seconds=None,
            lost=None,
            verdict=Verdict.UNKNOWN,
            course=Verdict.UNKNOWN,
        )
        for part in last.partitions
    ]
    status = summarize_group(
        parts,
        stream="",
        cluster=last.cluster,
        topic=last.topic,
        group=last.group,
        group_state=last.group_state,
        taken_at=last.taken_at,
        written=[True] * len(parts),
        retention=last.retention,
    )
    return replace(
        status, sentence=f"{last.topic}: could not be read for {format_duration(seconds)}"
    )
