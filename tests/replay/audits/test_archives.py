"""What archives have joins on to the topic, or is left out: a stretch in between would look lost."""

from __future__ import annotations

from backlog.values import OffsetRange
from replay.audits.sequence import _take_before


def test_only_what_joins_on_is_read() -> None:
    begins = {0: 100, 1: 50, 2: 0}
    newest = [OffsetRange(0, 60, 100), OffsetRange(1, 10, 40), OffsetRange(7, 0, 9)]
    assert _take_before(newest, begins) == [OffsetRange(0, 60, 100)]
    assert begins == {0: 60, 1: 50, 2: 0}
    # It overlaps what is read already, in two ranges of one partition.
    older = [OffsetRange(0, 0, 30), OffsetRange(0, 30, 80), OffsetRange(2, 0, 5)]
    assert _take_before(older, begins) == [OffsetRange(0, 30, 60), OffsetRange(0, 0, 30)]
    assert begins[0] == 0
