"""What archives have joins on to the topic, or is told apart: a stretch in between would look lost."""

from __future__ import annotations

from datetime import UTC, datetime

from backlogctl.archive_manifest import ArchivedRange
from backlogctl.ledger.archives import ArchiveRecord
from backlogctl.replay.audits.tiers import find_archived
from backlogctl.values import OffsetRange

NOON = datetime(2026, 11, 24, 12, tzinfo=UTC)


def make_record(name: str, *ranges: tuple[int, int, int]) -> ArchiveRecord:
    kept = tuple(ArchivedRange(*item, item[2] - item[1], NOON, NOON) for item in ranges)
    return ArchiveRecord(name, "o", "main", "o", "id", "/a", "0" * 64, 1, 1, kept, NOON)


def test_each_offset_is_read_once_and_a_gone_stretch_ends_what_joins_on() -> None:
    newest = make_record("r-2", (0, 60, 100), (1, 10, 40), (2, 0, 0))
    # It overlaps the newer one, in two ranges of one partition.
    older = make_record("r-1", (0, 0, 30), (0, 30, 80), (2, 0, 5))
    found = find_archived([newest, older], {0: 90, 1: 50, 2: 0})
    assert [(part.record.recovery_id, part.ranges) for part in found.parts] == [
        ("r-2", (OffsetRange(0, 60, 90), OffsetRange(1, 10, 40))),
        ("r-1", (OffsetRange(0, 0, 30), OffsetRange(0, 30, 60))),
    ]
    assert found.begins == {0: 0, 1: 50, 2: 0}
    assert [part.ranges for part in found.list_joined()] == [
        (OffsetRange(0, 60, 90),),
        (OffsetRange(0, 0, 30), OffsetRange(0, 30, 60)),
    ]
    assert [part.ranges for part in found.list_joined(40)] == [
        (OffsetRange(0, 0, 30), OffsetRange(0, 30, 40))
    ]
