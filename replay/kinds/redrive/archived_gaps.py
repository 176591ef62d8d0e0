"""Gaps that wait in the archive that is read, and which of them a redrive closes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from backlogctl.config import Stream
from backlogctl.errors import Refused
from backlogctl.kafka.admin import TopicInfo
from backlogctl.ledger import ArchiveRecord
from backlogctl.ledger.gaps import is_waiting
from backlogctl.replay.engine.archives import find_source_archive
from backlogctl.replay.engine.plan import find_identity
from backlogctl.replay.injection.archived import ArchivedGap, list_archived
from backlogctl.replay.injection.ledger import intersect_ranges
from backlogctl.replay.injection.unprocessed import list_unprocessed_offsets
from backlogctl.replay.kinds.redrive.plan import RedriveOptions, RedrivePlan
from backlogctl.replay.kinds.redrive.sources import (
    is_unfiltered,
    merge_ranges,
    parse_offsets,
    takes_waiting,
)
from backlogctl.spark_backfill.request import PriorChunk, count_offsets, list_stretches
from backlogctl.values import Gap, GapState, OffsetRange, RecoveryState

if TYPE_CHECKING:
    from backlogctl.ledger import Ledger

_MOST_PARTITIONS = 2**31


def take_archived(
    ledger: Ledger,
    stream: Stream,
    options: RedriveOptions,
    record: ArchiveRecord,
    topic: TopicInfo,
    wants: Callable[[Gap], bool],
) -> tuple[ArchivedGap, ...]:
    """Those whose messages are all read, or were put back from there by recoveries before.

    Raises:
        Refused: no bound is said, and none waits.
    """
    said = parse_offsets(options.offsets, _MOST_PARTITIONS)
    whole = merge_ranges((*said, *_list_done(ledger, stream, record, topic))) if said else ()
    found = tuple(
        each
        for each in list_archived(ledger, stream, topic.topic_id)
        if each.record.recovery_id == record.recovery_id and wants(each.gap)
        # What was lost again may be anywhere in the archive.
        if not said or (each.is_held and _is_within(each.gap, whole))
    )
    if not found and takes_waiting(options):
        raise Refused(
            f"archive {record.recovery_id} holds nothing that stream {stream.name} has lost",
            subject=f"stream {stream.name}",
            hint="`--all`, or a bound such as --offsets, puts back what it holds all the same",
        )
    return found


def list_held(gaps: Sequence[ArchivedGap]) -> tuple[OffsetRange, ...]:
    """The offsets of the archive that wait in it."""
    return list_unprocessed_offsets(each.gap for each in gaps if each.is_held)


def list_whole(
    gaps: Sequence[ArchivedGap], damaged: Sequence[OffsetRange]
) -> tuple[ArchivedGap, ...]:
    """Those without an offset that cannot be read; what was lost again may be anywhere in it."""
    return tuple(
        each
        for each in gaps
        if not damaged
        or (each.is_held and not intersect_ranges(list_unprocessed_offsets([each.gap]), damaged))
    )


def list_closed(
    gaps: Sequence[ArchivedGap], prior: Sequence[PriorChunk]
) -> tuple[tuple[str, OffsetRange | None], ...]:
    """Those that lie in the archive, or of which all came from there before.

    Args:
        prior: with their offsets.
    """
    closed: list[tuple[str, OffsetRange | None]] = []
    for each in gaps:
        gap, name = each.gap, each.record.recovery_id
        (place,) = list_unprocessed_offsets([gap])
        own = [one for one in prior if one.archive == name and one.slot == gap.partition]
        ours = list_stretches(own)
        if each.is_held:
            closed.append((gap.id, place))
        elif not count_offsets(place.start, place.end, ours):
            closed.append((gap.id, None))
    return tuple(closed)


def close_put_back(
    ledger: Ledger, gaps: Sequence[ArchivedGap], prior: Sequence[PriorChunk]
) -> bool:
    """Closes gaps that wait in an archive, of which all was put back before by recoveries that did
    not take them.

    Args:
        prior: with their offsets. One of which the place is not known went, it may be, into a topic
            of this name that was deleted since: then none is closed.

    Returns:
        Whether they were closed.
    """
    names = {each.record.recovery_id for each in gaps}
    givers = sorted({one.recovery_id for one in prior if one.archive in names})
    is_known = all(one.first_offset is not None for one in prior)
    ids = [each.gap.id for each in gaps if each.is_held and _is_free(each.gap)]
    if not givers or not is_known or len(ids) < len(gaps):
        return False
    reason = f"put back by {', '.join(givers)}"
    ledger.recoveries.add_put_back(givers[-1], ids, reason, str(find_identity()))
    return True


def _is_free(gap: Gap) -> bool:
    return gap.state is GapState.OPEN or is_waiting(gap)


def _list_done(
    ledger: Ledger, stream: Stream, record: ArchiveRecord, topic: TopicInfo
) -> tuple[OffsetRange, ...]:
    """What earlier redrives put back of the archive, whole and into this very topic."""
    done: list[OffsetRange] = []
    for recovery in ledger.recoveries.list(stream.name, [RecoveryState.VERIFIED]):
        if find_source_archive(recovery.plan) != record.recovery_id:
            continue
        plan = RedrivePlan.read(recovery.plan)
        counts = plan.outcome.counts
        some = plan.lost_only or plan.keys or counts.replays or counts.quarantined
        if plan.topic_id == topic.topic_id and is_unfiltered(plan.options) and not some:
            done += plan.ranges
    return tuple(done)


def _is_within(gap: Gap, ranges: Sequence[OffsetRange]) -> bool:
    return any(
        place.partition == item.partition and item.start <= place.start and place.end <= item.end
        for place in list_unprocessed_offsets([gap])
        for item in ranges
    )
