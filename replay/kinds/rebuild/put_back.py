"""Which gaps of a group a recovery for another group of the topic has put back already."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from backlog.config import Stream
from backlog.errors import Refused
from backlog.ledger.chunks import ChunkRecord
from backlog.values import Gap, PartitionSample, Recovery, RecoveryState
from replay.kinds.rebuild.options import ALLOW_PROOF
from replay.kinds.rebuild.plan import NAME, RebuildPlan
from replay.recovery.workspace import Workspace

_SHOWN = 5
# They say it of partitions without uncertain rows; a short plan's counts may fit by chance.
_WHOLE = ("exact", "within", "covering")


@dataclass(frozen=True, slots=True)
class PutBack:
    """A gap, and the verified recovery that put all its messages into the log again."""

    gap: Gap
    recovery: Recovery


def leave_out_put_back(
    workspace: Workspace,
    stream: Stream,
    gaps: Sequence[Gap],
    seen: Sequence[PartitionSample],
) -> tuple[tuple[Gap, ...], list[str]]:
    """The gaps that are left to rebuild, and what is to be said about the others.

    A gap that is put back only in part is planned whole: the chunks explain those rows (P2.4).

    Args:
        seen: the partitions as they are now.

    Raises:
        Refused: all of them are put back, so there is nothing to do.
    """
    found = {item.gap.id: item for item in find_put_back(workspace, stream, gaps, seen)}
    left = tuple(gap for gap in gaps if gap.id not in found)
    if gaps and not left:
        raise _refuse(stream, list(found.values()))
    return left, [
        f"gap {item.gap.id} (partition {item.gap.partition}) is left out: its messages are in the "
        f"log again, put back by recovery {item.recovery.id} for group {item.recovery.group}; "
        f"`{_waive(item)}` closes it"
        for item in found.values()
    ]


def find_put_back(
    workspace: Workspace, stream: Stream, gaps: Sequence[Gap], seen: Sequence[PartitionSample]
) -> tuple[PutBack, ...]:
    """The gaps whose messages are all in the log again, where the group reads them or has read
    them since; from the ledger and the offsets alone."""
    here = {item.partition: item for item in seen}
    known = [gap for gap in workspace.ledger.gaps.list() if gap.group == stream.group]
    found: dict[str, PutBack] = {}
    for recovery in workspace.ledger.recoveries.list(states=[RecoveryState.VERIFIED]):
        same = (recovery.cluster, recovery.topic) == (stream.cluster, stream.topic)
        if not same or recovery.kind != NAME or recovery.group == stream.group:
            continue
        plan = cast("RebuildPlan", workspace.plan_of(recovery))
        if not plan.delivers:
            continue
        records = workspace.ledger.chunks.list(recovery.id)
        lost = [gap for gap in known if gap.topic_id == plan.topic_id]
        if ALLOW_PROOF in plan.allowed or not all(is_there(r, here, lost) for r in records):
            continue
        for gap in gaps:
            if gap.id not in found and gap.topic_id == plan.topic_id and covers(plan, gap):
                found[gap.id] = PutBack(gap, recovery)
    return tuple(found[gap.id] for gap in gaps if gap.id in found)


def covers(plan: RebuildPlan, gap: Gap) -> bool:
    """Whether a plan put all messages of a gap back for sure: its own gaps hold the range, and none
    of that partition was left out, or may have been."""
    if gap.start is None or gap.end is None or plan.outcome.verdict not in _WHOLE:
        return False
    whole = any(
        row.partition == gap.partition
        and not (row.shortfall or row.surplus or row.quarantined or row.uncertain)
        for row in plan.outcome.partitions
    )
    cursor = gap.start
    for item in sorted(plan.gaps, key=lambda item: item.start):
        if item.partition == gap.partition and item.start <= cursor < item.end:
            cursor = item.end
    return whole and cursor >= gap.end


def is_there(record: ChunkRecord, seen: Mapping[int, PartitionSample], lost: Sequence[Gap]) -> bool:
    """Whether a chunk's messages are in the log and the group will read them, or read them since.

    A group without a committed offset may begin anywhere: that is not known.
    """
    here, first, last = seen.get(record.chunk.slot), record.first_offset, record.last_offset
    if here is None or here.committed is None or first is None or last is None:
        return False
    if first < here.low:
        return False
    # Past them, it read them, unless it is on record that it skipped some.
    return first >= here.committed or not any(
        gap.partition == record.chunk.slot
        and gap.sequences is None  # its messages never had an offset
        and (gap.start is None or gap.end is None or (gap.start <= last and first < gap.end))
        for gap in lost
    )


def _refuse(stream: Stream, found: Sequence[PutBack]) -> Refused:
    recoveries = {item.recovery.id: item.recovery for item in found}.values()
    # Equal counts are no proof: of a plan that is not exact one row may stand for another.
    all_exact = all(one.plan["outcome"]["verdict"] == "exact" for one in recoveries)
    what = "all its lost messages" if all_exact else "as many messages as it lost"
    by = ", ".join(f"recovery {one.id} for group {one.group}" for one in recoveries)
    commands = "; ".join(f"`{_waive(item)}`" for item in found[:_SHOWN])
    more = f"; and {len(found) - _SHOWN} more gaps" if len(found) > _SHOWN else ""
    return Refused(
        f"{what} are in the log again (put back by {by}), nothing to do",
        subject=f"stream {stream.name}",
        hint=f"close what is on record: {commands}{more}",
    )


def _waive(item: PutBack) -> str:
    return f'backlogctl waive {item.gap.id} --reason "put back by {item.recovery.id}"'
