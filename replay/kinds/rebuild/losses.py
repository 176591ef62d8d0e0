"""When the losses of a plan began, and where in the log earlier recoveries put messages back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise
from typing import TYPE_CHECKING

from backlog.clock import read_time
from backlog.values import EdgeTimes, Gap, Sample
from monitoring.timeline import Timeline
from replay.injection.archived import touches
from replay.injection.prior import locate_chunks
from replay.kinds.rebuild.plan import RebuildPlan
from replay.recovery.plan import Plan
from replay.recovery.workspace import Workspace

if TYPE_CHECKING:
    from spark_backfill.request import Growth, PriorChunk


def tighten_times(gaps: Iterable[Gap], history: Sequence[Sample]) -> tuple[Gap, ...]:
    """The gaps, none beginning earlier than the samples say that its own first offset was written.

    A later piece of a range may have been recorded with the times of the whole range.
    """
    tight: list[Gap] = []
    gaps = tuple(gaps)
    timelines = _index_history(gaps, history)
    for gap in gaps:
        if gap.start is not None and gap.first_time is not None:
            timeline = timelines[gap.topic_id]
            own = timeline.bound(gap.partition, gap.start, gap.start + 1).lower
            if own is not None and own > gap.first_time:
                gap = replace(gap, first_time=own)
        tight.append(gap)
    return tuple(tight)


def date_edges(gaps: Iterable[Gap], history: Sequence[Sample]) -> tuple[EdgeTimes, ...]:
    """Between which samples the first message of each gap, and the one behind it, were written."""
    found: dict[tuple[int, int], EdgeTimes] = {}
    gaps = tuple(gaps)
    timelines = _index_history(gaps, history)
    for gap in gaps:
        for offset in (gap.start, gap.end):
            if offset is None:
                continue
            times = timelines[gap.topic_id].bound(gap.partition, offset, offset + 1)
            place = (gap.partition, offset)
            found[place] = EdgeTimes(*place, times.lower, times.upper)
    return tuple(found.values())


def _index_history(gaps: Iterable[Gap], history: Sequence[Sample]) -> dict[str, Timeline]:
    return {topic_id: Timeline(history, topic_id) for topic_id in {gap.topic_id for gap in gaps}}


def find_growth(history: Sequence[Sample], topic_id: str) -> tuple[Growth, ...]:
    """When the topic got partitions, as the samples saw it, oldest first."""
    from spark_backfill.request import Growth

    own = [sample for sample in history if sample.topic_id == topic_id]
    return tuple(
        Growth(len(before.partitions), before.taken_at, after.taken_at)
        for before, after in pairwise(own)
        if len(before.partitions) < len(after.partitions)
    )


def locate_prior(
    workspace: Workspace, prior: Sequence[PriorChunk], gaps: Sequence[Gap]
) -> tuple[tuple[PriorChunk, ...], datetime | None]:
    """The chunks with their offsets, where the SQL ledger knows them and the topic is the same,
    and from when on their rows are read where some lie in a gap: they were lost again.

    Raises:
        Refused: a plan of an earlier recovery cannot be read.
    """
    if not gaps:
        return tuple(prior), None
    located = locate_chunks(workspace, prior, gaps[0].topic_id, gaps[0].group)
    # Put back for another group, this one may have read the messages that they are copies of.
    again = {
        chunk.recovery_id
        for chunk in located
        if chunk.same_group and touches(chunk.slot, chunk.first_offset, chunk.last_offset, gaps)
    }
    plans = [workspace.plan_of(workspace.ledger.recoveries.get(name)) for name in sorted(again)]
    begun = [first for plan in plans if (first := _find_first_time(plan)) is not None]
    return located, min(begun, default=None)


def _find_first_time(plan: Plan) -> datetime | None:
    """From when on a rebuild read its rows: the beginning of time where it read all, None where it
    read none."""
    if not isinstance(plan, RebuildPlan) or not plan.outcome.counts.candidates:
        return None
    lower = plan.outcome.bounds[0]
    return datetime(1970, 1, 1, tzinfo=UTC) if lower is None else read_time(lower)
