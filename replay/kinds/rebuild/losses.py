"""When the losses of a plan began, and where in the log earlier recoveries put messages back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import pairwise
from typing import TYPE_CHECKING, cast

from backlogctl.clock import read_time
from backlogctl.config import Stream
from backlogctl.errors import Refused, UsageError
from backlogctl.formats import format_plural
from backlogctl.ledger.chunks import ChunkRecord
from backlogctl.monitoring.offsets.timeline import Timeline
from backlogctl.replay.engine.archives import touches
from backlogctl.replay.engine.kind import Workspace
from backlogctl.replay.engine.plan import Plan
from backlogctl.replay.injection.archived import (
    find_archive_of,
    list_archives,
    list_free,
    suggest_redrive,
)
from backlogctl.replay.injection.ledger import locate_chunks
from backlogctl.replay.injection.unprocessed import is_in_log
from backlogctl.replay.kinds.rebuild.plan import NAME, RebuildPlan
from backlogctl.spark_backfill.request import ALLOW_PROOF
from backlogctl.values import (
    Cause,
    Certainty,
    EdgeTimes,
    Gap,
    GapState,
    PartitionSample,
    Recovery,
    RecoveryState,
    Sample,
)

if TYPE_CHECKING:
    from backlogctl.ledger import Ledger
    from backlogctl.spark_backfill.request import Growth, PriorChunk


# Which gaps of a group a recovery for another group of the topic has put back already.

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
    from backlogctl.spark_backfill.request import Growth

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


# Which gaps a rebuild takes.

_REPAIRABLE = (
    *(Cause.EXPIRED, Cause.SKIPPED, Cause.DISCARDED),
    *(Cause.PRODUCER_GAP, Cause.UNPROCESSED),
)
_BUSY = (GapState.PLANNED, GapState.STAGED, GapState.INJECTED)
NO_SOURCE = "the stream has no source table to rebuild it from"


def take_every(_: Gap) -> bool:
    """No gap is left alone."""
    return True


def list_repairable(ledger: Ledger, stream: Stream, topic_id: str | None = None) -> tuple[Gap, ...]:
    """Open gaps of a stream that a rebuild would take now; none that may be no loss at all.

    Args:
        topic_id: that the topic has now; None for that of the newest sample.
    """
    known = ledger.gaps.list(stream=stream.name, states=[GapState.OPEN])
    return tuple(
        gap
        for gap in known
        if gap.certainty is not Certainty.POSSIBLE
        and not explain_unrebuildable(ledger, gap, stream, topic_id)
    )


def explain_unrebuildable(
    ledger: Ledger, gap: Gap, stream: Stream, topic_id: str | None = None
) -> str:
    """Why a gap of a topic that has this id now cannot be rebuilt; "" where it can.

    Args:
        topic_id: as for `list_repairable`.
    """
    if gap.cause not in _REPAIRABLE:
        return f"{gap.cause} is reported only, what was lost is unknown"
    if gap.count is None:
        return "its range is unknown"
    if gap.group != stream.group:
        return f"it is of group {gap.group}, and the stream's group is {stream.group}"
    if is_in_log(ledger, gap):
        return f"the log still has its messages: `{suggest_redrive(ledger, gap)}` puts them back"
    record = find_archive_of(gap, list_archives(ledger, gap.topic_id))
    if record is not None and record.purged_at is not None:
        return (
            f"its archive {record.recovery_id} was purged at {record.purged_at:%Y-%m-%d %H:%M}Z: "
            "its messages are gone"
        )
    if record is None and gap.archive is not None:
        return f"its archive {gap.archive} is not on record"
    if record is not None:
        return (
            f"its messages are in archive {record.recovery_id}: `{suggest_redrive(ledger, gap)}` "
            "puts them back"
        )
    if _is_of_another(ledger, gap, topic_id):
        return "it is of a topic of this name that was deleted since"
    if gap.sequences is not None:
        return _say_why_unsent(gap, stream)
    return NO_SOURCE if stream.source is None else ""


def _is_of_another(ledger: Ledger, gap: Gap, topic_id: str | None) -> bool:
    if topic_id is None and (newest := ledger.samples.latest(gap.stream)) is not None:
        topic_id = newest.topic_id
    return topic_id not in (None, gap.topic_id)


def _say_why_unsent(gap: Gap, stream: Stream) -> str:
    if stream.source is None:
        return NO_SOURCE
    if gap.first_time is None and stream.source.consumed is None:
        return "they are the first messages of their producer, and when it began is not known"
    return ""


def choose_gaps(
    ledger: Ledger, stream: Stream, topic_id: str, gaps: Iterable[Gap], wanted: Sequence[str]
) -> tuple[tuple[Gap, ...], list[str]]:
    """The gaps to repair, and what is to be said about the others.

    Open ones, and those of an older plan that nobody approved: the new plan takes its place.

    Args:
        topic_id: that the topic has now.
        gaps: of the stream, those that may be taken.
        wanted: only these, by their ids; () is all.

    Raises:
        UsageError: a gap that was named cannot be repaired.
        Refused: there is nothing to repair.
    """
    free = {gap.id for gap in list_free(ledger, stream)}
    known = {gap.id: gap for gap in gaps}
    for gap_id in wanted:
        if gap_id not in known:
            raise UsageError(
                f"stream {stream.name} has no such gap",
                subject=f"gap {gap_id}",
                hint="`backlogctl gaps` lists them",
            )
    chosen: list[Gap] = []
    warnings: list[str] = []
    for gap in known.values():
        why = f"it is {gap.state}"
        if is_free := gap.id in free:
            why = explain_unrebuildable(ledger, gap, stream, topic_id)
            if not why and gap.certainty is Certainty.POSSIBLE and gap.id not in wanted:
                why = f"it may be no loss at all: {gap.reason}; `--gap {gap.id}` takes it"
        if not why and (not wanted or gap.id in wanted):
            chosen.append(gap)
        elif gap.id in wanted:
            raise UsageError(
                f"cannot be planned: {why}",
                subject=f"gap {gap.id}",
                hint="`backlogctl gaps` lists them",
            )
        elif is_free and not wanted:
            warnings.append(f"gap {gap.id} (partition {gap.partition}) is left out: {why}")
    if not chosen:
        busy = [gap for gap in known.values() if gap.state in _BUSY and gap.id not in free]
        elsewhere = {gap.id: suggest_redrive(ledger, gap) for gap in known.values()}
        commands = [elsewhere[gap_id] for gap_id in sorted(free & set(elsewhere))]
        raise _refuse_nothing(stream, warnings, list(filter(None, commands)), is_busy=bool(busy))
    return _choose_sort(chosen, warnings)


def _choose_sort(chosen: list[Gap], warnings: list[str]) -> tuple[tuple[Gap, ...], list[str]]:
    """One plan is of what readers lost, or of what never reached the topic: the rows of a loss are
    told by offsets and times, those that were never sent by having no message at all."""
    unsent = tuple(gap for gap in chosen if gap.sequences is not None)
    others = tuple(gap for gap in chosen if gap.sequences is None)
    if unsent and others:
        left = f"{format_plural(len(unsent), 'gap')} of producers ({unsent[0].id}"
        left += ", ...)" if len(unsent) > 1 else ")"
        warnings = [*warnings, f"{left} are left out: a plan of their own puts them back"]
    return others or unsent, warnings


def _refuse_nothing(
    stream: Stream, warnings: Sequence[str], commands: Sequence[str], *, is_busy: bool
) -> Refused:
    subject = f"stream {stream.name}"
    if is_busy:
        return Refused(
            "every gap belongs to a recovery already",
            subject=subject,
            hint="see `backlogctl recoveries`; run it, or cancel it",
        )
    if warnings:
        return Refused(
            f"no gap can be rebuilt: {'; '.join(warnings)}",
            subject=subject,
            hint=" and ".join(f"`{command}`" for command in dict.fromkeys(commands))
            or "`backlogctl waive` closes a gap that needs no recovery",
        )
    return Refused("nothing is lost, so there is nothing to rebuild", subject=subject)
