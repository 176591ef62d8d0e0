"""All partitions of one group on one topic as one status."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime

from backlog.kafka.group_types import SHARE
from monitoring.advice import suggest_commands
from monitoring.sentences import describe_share, describe_verdict
from monitoring.status import UNLIMITED, GroupStatus, PartitionStatus, Retention
from monitoring.verdicts import Verdict, find_worst

# A partition with less than this share of the lag does not decide when all is drained.
SMALL_SHARE = 0.01


def summarize_group(
    parts: Sequence[PartitionStatus],
    *,
    stream: str,
    cluster: str,
    topic: str,
    group: str,
    group_state: str,
    taken_at: datetime,
    written: Sequence[bool],
    retention: Retention = UNLIMITED,
    consumers: int | None = None,
    window: float = 600.0,
    has_consumers: bool = False,
    has_source: bool = False,
) -> GroupStatus:
    """The totals, the worst verdict, and its sentence.

    Args:
        written: by partition, whether it was ever written: one that was not needs no commit.
        consumers: how many read now; None where that is not known.
        window: seconds that trends are judged over.
        has_consumers, has_source: what the stream's configuration lets the tool do.
    """
    verdict = find_worst(part.verdict for part in parts)
    course = find_worst(part.course for part in parts)
    worst = _find_worst_part(parts, verdict)
    lag = _total([part.lag for part in parts], written)
    lost = _total([part.lost for part in parts], written)
    loss = min(
        (part for part in parts if part.seconds_to_loss is not None),
        key=lambda part: part.seconds_to_loss or 0.0,
        default=None,
    )
    drain = _find_drain(parts, lag)
    winners = _count_winners(parts, consumers)
    return GroupStatus(
        stream=stream,
        cluster=cluster,
        topic=topic,
        group=group,
        group_state=group_state,
        taken_at=taken_at,
        verdict=verdict,
        partitions=tuple(parts),
        lag=lag,
        lag_seconds=max((p.lag_seconds for p in parts if p.lag_seconds is not None), default=None),
        lost=lost,
        seconds_to_drain=drain,
        seconds_to_loss=None if loss is None else loss.seconds_to_loss,
        loss_by=None if loss is None else loss.loss_by,
        expected_loss=sum(part.expected_loss or 0 for part in parts) or None,
        consumed_per_second=_sum_known([part.consumed_per_second for part in parts]),
        produced_per_second=_sum_known([part.produced_per_second for part in parts]),
        sentence=describe_share(stream or topic)
        if group_state == SHARE
        else describe_verdict(
            stream or topic,
            verdict,
            worst,
            lag=lag,
            lost=lost,
            seconds_to_drain=drain,
            consumers_to_win=winners,
            window=window,
            keeps_up=all(part.keeps_up for part in parts if part.lag),
        ),
        consumers_to_win=winners,
        retention=retention,
        course=course,
        # What is lost already can wait; an ongoing loss cannot.
        next_commands=tuple(
            dict.fromkeys(
                command
                for word in (course, verdict)
                for command in suggest_commands(
                    stream,
                    word,
                    cluster=cluster,
                    group=group,
                    has_consumers=has_consumers,
                    has_source=has_source,
                )
            )
        ),
    )


def _find_worst_part(parts: Sequence[PartitionStatus], verdict: Verdict) -> PartitionStatus | None:
    """Of those that made the verdict, the one with the least time, the most lost, the most lag."""
    return min(
        (part for part in parts if part.verdict is verdict),
        key=lambda part: (
            math.inf if part.seconds_to_loss is None else part.seconds_to_loss,
            -(part.lost or 0),
            -(part.lag or 0),
            part.partition,
        ),
        default=None,
    )


def _total(values: Sequence[int | None], written: Sequence[bool]) -> int | None:
    """The sum of what is known; None where nothing is, or where zero would be only a part.

    With an unknown partition a sum above zero is "at least" that.
    """
    known = [value for value in values if value is not None]
    unknown = any(
        value is None and has_data for value, has_data in zip(values, written, strict=True)
    )
    return sum(known) if known and (sum(known) or not unknown) else None


def _sum_known(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _find_drain(parts: Sequence[PartitionStatus], lag: int | None) -> float | None:
    """When the last partition that matters is drained; None where one of them never is."""
    if not lag:
        return None if lag is None else 0.0
    large = [part for part in parts if (part.lag or 0) >= SMALL_SHARE * lag and not part.keeps_up]
    drains = [part.seconds_to_drain for part in large]
    known = [drain for drain in drains if drain is not None]
    return max(known) if known and len(known) == len(drains) else None


def _count_winners(parts: Sequence[PartitionStatus], consumers: int | None) -> int | None:
    """How many consumers as fast as today's read every partition fast enough."""
    losing = [part for part in parts if part.needed_per_second is not None]
    consumed = _sum_known([part.consumed_per_second for part in parts])
    if not losing or not consumed or not consumers:
        return None
    if any(part.seconds_to_loss == 0 for part in losing):
        return None  # retention is there already: no number of consumers wins that
    needed = sum(part.needed_per_second or part.produced_per_second or 0.0 for part in parts)
    # A consumer without a partition does nothing.
    each = consumed / min(consumers, len(parts))
    return math.ceil(needed / each)
