"""Messages that wait in an archive: a redrive puts them back from there."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from backlogctl.config import Stream
from backlogctl.replay.engine.archives import ARCHIVE, list_givers, was_given
from backlogctl.replay.injection.unprocessed import WORD, is_in_log
from backlogctl.values import Gap, GapState, RecoveryState

if TYPE_CHECKING:
    from backlogctl.ledger import ArchiveRecord, Ledger


@dataclass(frozen=True, slots=True)
class ArchivedGap:
    """A gap and an archive that gives it back.

    `is_held`: the archive has all its offsets; else messages lie in it that were put back from the
    archive, and expired unread again.
    """

    gap: Gap
    record: ArchiveRecord
    is_held: bool


def list_archives(ledger: Ledger, topic_id: str) -> tuple[ArchiveRecord, ...]:
    """Of a topic, whoever offloaded it, oldest first."""
    return tuple(record for record in ledger.archives.list() if record.topic_id == topic_id)


def find_archive_of(gap: Gap, archives: Iterable[ArchiveRecord]) -> ArchiveRecord | None:
    """The archive that has all of a gap's messages: its own, or one of the same offsets."""
    if gap.sequences is not None or gap.count is None:
        return None  # it has no offsets
    for record in archives:
        own = gap.archive == record.recovery_id
        there = gap.archive is None and record.purged_at is None
        if (own or there) and record.topic_id == gap.topic_id and _holds(record, gap):
            return record
    return None


def list_free(ledger: Ledger, stream: Stream) -> tuple[Gap, ...]:
    """Gaps of a stream that a new plan may take: open ones, those that wait in an archive, and
    those of a plan that nobody approved yet."""
    free = {gap.id for gap in ledger.gaps.list_waiting(stream.name)}
    for recovery in ledger.recoveries.list(stream.name, [RecoveryState.PLANNED]):
        free.update(ledger.recoveries.gap_ids(recovery.id))
    return tuple(
        gap
        for gap in ledger.gaps.list(stream.name, [GapState.OPEN, GapState.PLANNED, GapState.STAGED])
        if gap.state is GapState.OPEN or gap.id in free
    )


def list_archived(
    ledger: Ledger, stream: Stream, topic_id: str | None = None
) -> tuple[ArchivedGap, ...]:
    """Gaps of a stream that a redrive from an archive puts back, the oldest archive first: also
    where its topic was deleted since and made anew.

    Args:
        topic_id: that the topic has now: what was put back and lost again in one that was deleted
            is left out. None leaves that to the plan.
    """
    records = ledger.archives.list(with_purged=False)
    if not records:
        return ()
    found = [
        each
        for gap in list_free(ledger, stream)
        if (gap.group, gap.topic) == (stream.group, stream.topic)
        for each in _find_givers(ledger, gap, records)
        if each.is_held or topic_id in (None, gap.topic_id)
    ]
    rank = {record.recovery_id: place for place, record in enumerate(records)}
    return tuple(sorted(found, key=lambda each: rank[each.record.recovery_id]))


def suggest_redrive(ledger: Ledger, gap: Gap) -> str:
    """The command that plans to put a gap's messages back as they were; "" where none can."""
    if is_in_log(ledger, gap):
        return name_redrive(gap.stream, WORD)
    for each in _find_givers(ledger, gap, ledger.archives.list(with_purged=False)):
        if each.is_held or not was_given(ledger, gap, each.record.recovery_id):
            return name_redrive(gap.stream, f"{ARCHIVE}:{each.record.recovery_id}")
    return ""


def name_redrive(stream: str, source: str) -> str:
    """The command, from where the messages are."""
    return f"backlogctl plan redrive {stream} --from {source}"


def _find_givers(
    ledger: Ledger, gap: Gap, records: Iterable[ArchiveRecord]
) -> tuple[ArchivedGap, ...]:
    if (record := find_archive_of(gap, records)) is not None:
        return (ArchivedGap(gap, record, is_held=True),)
    known = {record.recovery_id: record for record in records}
    names = [name for name in list_givers(ledger, gap) if name in known] if known else []
    return tuple(ArchivedGap(gap, known[name], is_held=False) for name in names)


def _holds(record: ArchiveRecord, gap: Gap) -> bool:
    assert gap.start is not None
    assert gap.end is not None
    return any(
        item.partition == gap.partition and item.start <= gap.start and gap.end <= item.end
        for item in record.ranges
    )
