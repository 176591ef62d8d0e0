"""When the losses of a plan began, and where in the log earlier recoveries put messages back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise
from typing import TYPE_CHECKING

from backlog.clock import read_time
from backlog.ledger.chunks import ChunkRecord
from backlog.values import EdgeTimes, Gap, Sample
from monitoring.timeline import Timeline
from replay.injection.plan import InjectionPlan
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
    located = {(chunk.recovery_id, chunk.slot, chunk.number): chunk for chunk in prior}
    ids = {chunk.recovery_id for chunk in prior}
    since: datetime | None = None
    for recovery in workspace.ledger.recoveries.list() if ids else ():
        if recovery.id not in ids:
            continue
        plan = workspace.plan_of(recovery)
        if not isinstance(plan, InjectionPlan) or not plan.delivers:
            continue
        if not gaps or plan.topic_id != gaps[0].topic_id:
            continue
        # Put back for another group, this one may have read the messages that they are copies of.
        same_group = recovery.group == gaps[0].group
        again = False
        for record in workspace.ledger.chunks.list(recovery.id):
            place = (recovery.id, record.chunk.slot, record.chunk.number)
            if place not in located:
                continue
            located[place] = replace(
                located[place],
                count=record.chunk.count,
                first_offset=record.first_offset,
                last_offset=record.last_offset,
                same_group=same_group,
            )
            again = again or (same_group and touches(record, gaps))
        if again and (begun := _find_first_time(plan)) is not None:
            since = begun if since is None else min(since, begun)
    return tuple(located.values()), since


def _find_first_time(plan: Plan) -> datetime | None:
    """From when on a rebuild read its rows: the beginning of time where it read all, None where it
    read none."""
    if not isinstance(plan, RebuildPlan) or not plan.outcome.counts.candidates:
        return None
    lower = plan.outcome.bounds[0]
    return datetime(1970, 1, 1, tzinfo=UTC) if lower is None else read_time(lower)


def touches(record: ChunkRecord, gaps: Iterable[Gap]) -> bool:
    """Whether some of the chunk's messages may lie in a gap."""
    first, last = record.first_offset, record.last_offset
    if first is None or last is None:
        return False
    return any(
        gap.partition == record.chunk.slot
        and gap.start is not None
        and gap.end is not None
        and gap.start <= last
        and first < gap.end
        for gap in gaps
    )
