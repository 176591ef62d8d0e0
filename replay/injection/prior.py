"""Where in a topic earlier recoveries put messages, and what of that its group lost again."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from backlog.config import Stream
from backlog.numbers import format_plural
from backlog.values import Certainty, GapState, OffsetRange
from replay.injection.archived import ARCHIVE, find_source_archive, name_redrive
from replay.injection.plan import InjectionPlan
from replay.recovery.workspace import Workspace

if TYPE_CHECKING:
    from spark_backfill.request import PriorChunk


def locate_chunks(
    workspace: Workspace, prior: Sequence[PriorChunk], topic_id: str, group: str
) -> tuple[PriorChunk, ...]:
    """The chunks with their offsets, where the SQL ledger knows them and the topic is the same.

    Raises:
        Refused: a plan of an earlier recovery cannot be read.
    """
    located = {(chunk.recovery_id, chunk.slot, chunk.number): chunk for chunk in prior}
    ids = {chunk.recovery_id for chunk in prior}
    for recovery in workspace.ledger.recoveries.list() if ids else ():
        plan = workspace.plan_of(recovery) if recovery.id in ids else None
        if not isinstance(plan, InjectionPlan):
            continue
        if topic_id != plan.target_id:
            continue
        for record in workspace.ledger.chunks.list(recovery.id):
            place = (recovery.id, record.chunk.slot, record.chunk.number)
            if place in located:
                located[place] = replace(
                    located[place],
                    count=record.chunk.count,
                    first_offset=record.first_offset,
                    last_offset=record.last_offset,
                    same_group=plan.delivers and recovery.group == group,
                    archive=find_source_archive(recovery.plan),
                )
    return tuple(located.values())


@dataclass(frozen=True, slots=True)
class Lost:
    """What a group lost of a topic: of what was put back there, that is put back again.

    `told` says why some of it is left out, `cautions` what may be too much; one sentence each.
    """

    ranges: tuple[OffsetRange, ...] = ()
    told: tuple[str, ...] = ()
    cautions: tuple[str, ...] = ()


def find_lost(
    workspace: Workspace,
    stream: Stream,
    topic_id: str,
    prior: Sequence[PriorChunk],
    source: str | None = None,
) -> Lost:
    """What the group has lost of the topic, and no archive holds.

    What an archive holds is put back from there: from elsewhere it would come twice. What a rebuild
    put back has its id in a later chunk, so a gap that it closed is in nobody's way.

    Args:
        prior: with their offsets.
        source: the archive that is read.
    """
    known = [
        (gap, OffsetRange(gap.partition, gap.start, gap.end))
        for gap in workspace.ledger.gaps.list_lost(stream.name)
        if (gap.group, gap.topic_id) == (stream.group, topic_id)
        and gap.start is not None
        and gap.end is not None
    ]
    gaps = [place for _, place in known]
    still = [(gap, place) for gap, place in known if gap.state is not GapState.VERIFIED]
    bounded = [place for gap, place in still if gap.certainty is Certainty.BOUNDED]
    archives = {
        record.recovery_id: [OffsetRange(r.partition, r.start, r.end) for r in record.ranges]
        for record in workspace.ledger.archives.list(with_purged=False)
        if record.topic_id == topic_id
    }
    own = archives.pop(source, []) if source else []
    held = {name: subtract_ranges(ranges, own) for name, ranges in archives.items()}
    elsewhere = [item for ranges in held.values() for item in ranges]
    places = _list_places(prior)
    ours = intersect_ranges([place for _, place in still], places)
    waiting = [name for name, ranges in held.items() if intersect_ranges(ours, ranges)]
    unsure = subtract_ranges(intersect_ranges(bounded, places), elsewhere)
    return Lost(
        subtract_ranges(gaps, elsewhere),
        tuple(_say_waiting(name, stream.name) for name in waiting),
        (_say_unsure(sum(item.count for item in unsure), stream.group),) if unsure else (),
    )


def _list_places(prior: Sequence[PriorChunk]) -> list[OffsetRange]:
    """Where in the log messages were put back for the group."""
    return [
        OffsetRange(chunk.slot, chunk.first_offset, chunk.last_offset + 1)
        for chunk in prior
        if chunk.same_group and chunk.first_offset is not None and chunk.last_offset is not None
    ]


def _say_unsure(count: int, group: str) -> str:
    return (
        f"what was put back before at up to {format_plural(count, 'offset')} counts as lost and "
        f"comes again, and group {group} may have read it: the gap is bounded, not exact"
    )


def _say_waiting(archive: str, stream: str) -> str:
    return (
        f"messages that were put back before were offloaded since, unread: archive {archive} has "
        f"them, and `{name_redrive(stream, f'{ARCHIVE}:{archive}')}` puts them back"
    )


def intersect_ranges(
    ranges: Iterable[OffsetRange], others: Sequence[OffsetRange]
) -> tuple[OffsetRange, ...]:
    """What lies in one of both."""
    return tuple(
        OffsetRange(item.partition, max(item.start, other.start), min(item.end, other.end))
        for item in ranges
        for other in others
        if item.partition == other.partition and item.start < other.end and other.start < item.end
    )


def subtract_ranges(
    ranges: Iterable[OffsetRange], others: Sequence[OffsetRange]
) -> tuple[OffsetRange, ...]:
    """What of the first lies in none of the others."""
    left: list[OffsetRange] = []
    for item in ranges:
        start = item.start
        for other in sorted(intersect_ranges([item], others), key=lambda part: part.start):
            if start < other.start:
                left.append(OffsetRange(item.partition, start, other.start))
            start = max(start, other.end)
        if start < item.end:
            left.append(OffsetRange(item.partition, start, item.end))
    return tuple(left)
