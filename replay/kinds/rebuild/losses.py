"""When the losses of a plan began, and which of them were put back before and lost again."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

from backlog.ledger.chunks import ChunkRecord
from backlog.values import Gap, Sample
from monitoring.timeline import bound_times
from replay.recovery.workspace import Workspace

if TYPE_CHECKING:
    from spark_backfill.request import PriorChunk


def tighten_times(gaps: Iterable[Gap], history: Sequence[Sample]) -> tuple[Gap, ...]:
    """The gaps, none beginning earlier than the samples say that its own first offset was written.

    A later piece of a range may have been recorded with the times of the whole range.
    """
    tight: list[Gap] = []
    for gap in gaps:
        if gap.start is not None and gap.first_time is not None:
            own = bound_times(history, gap.partition, gap.start, gap.start + 1, gap.topic_id).lower
            if own is not None and own > gap.first_time:
                gap = replace(gap, first_time=own)
        tight.append(gap)
    return tuple(tight)


def measure_start_spread(gaps: Iterable[Gap], history: Sequence[Sample]) -> timedelta | None:
    """How exactly the samples date the first loss; None where some gap has no bounds."""
    spreads: list[timedelta] = []
    for gap in gaps:
        assert gap.start is not None
        bounds = bound_times(history, gap.partition, gap.start, gap.start + 1, gap.topic_id)
        if bounds.lower is None or bounds.upper is None:
            return None
        spreads.append(bounds.upper - bounds.lower)
    return max(spreads, default=None)


def mark_lost_again(
    workspace: Workspace, prior: Sequence[PriorChunk], gaps: Sequence[Gap]
) -> tuple[PriorChunk, ...]:
    """The chunks, with `lost` where all messages of one lie in the gaps: put back, and lost again.

    A chunk whose offsets the SQL ledger does not know explains its rows as before.
    """
    marked = list(prior)
    ledger = workspace.ledger
    ids = {chunk.recovery_id for chunk in prior}
    for recovery in ledger.recoveries.list() if ids else ():
        if recovery.id not in ids:
            continue
        # Put back for another group, this one may have read the messages that they are copies of.
        ours = [
            gap
            for gap in gaps
            if (gap.topic_id, gap.group) == (workspace.plan_of(recovery).topic_id, recovery.group)
        ]
        if not ours:
            continue
        lost = {
            (record.chunk.slot, record.chunk.number)
            for record in ledger.chunks.list(recovery.id)
            if lies_in(record, ours)
        }
        marked = [
            replace(chunk, lost=True)
            if chunk.recovery_id == recovery.id and (chunk.slot, chunk.number) in lost
            else chunk
            for chunk in marked
        ]
    return tuple(marked)


def lies_in(record: ChunkRecord, gaps: Iterable[Gap]) -> bool:
    """Whether the gaps together cover the chunk's messages from the first to the last."""
    if record.first_offset is None or record.last_offset is None:
        return False
    cursor = record.first_offset
    here = (gap for gap in gaps if gap.partition == record.chunk.slot)
    ranges = [(g.start, g.end) for g in here if g.start is not None and g.end is not None]
    for start, end in sorted(ranges):
        if start <= cursor < end:
            cursor = end
    return cursor > record.last_offset
