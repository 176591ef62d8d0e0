"""Which messages of a chunk lie in a gap, where others wrote in between; pure."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from backlog.values import OffsetRange
from spark_backfill.evidence.injected import locate_messages
from spark_backfill.request import PriorChunk


@given(data=st.data())
def test_what_is_sure_lies_in_a_gap_and_what_is_not_possible_does_not(data: st.DataObject) -> None:
    offsets = sorted(data.draw(st.sets(st.integers(100, 160), min_size=1, max_size=40)))
    log_start = data.draw(st.integers(90, 170))
    start = data.draw(st.integers(90, log_start))
    gap = OffsetRange(0, start, data.draw(st.integers(start, log_start)))
    ids = np.array([f"m{i}" for i in range(len(offsets))], dtype=object)
    there = {mid: at for mid, at in zip(ids, offsets, strict=True) if at >= log_start}
    chunk = PriorChunk("r-1", 0, 0, len(ids), offsets[0], offsets[-1])
    found = locate_messages(chunk, ids, [gap], there, log_start)
    truth = np.array([gap.start <= at < gap.end for at in offsets])
    assert not (found.sure & ~truth).any()
    assert not (truth & ~found.possible).any()
    assert not (found.likely & ~found.possible).any()
    assert not (found.sure & ~found.likely).any()
    if gap.start <= offsets[0] and gap.end == log_start:
        # The log itself says which of them expired.
        assert (found.sure == truth).all()
        assert (found.possible == truth).all()


def test_a_chunk_that_nobody_wrote_into_leaves_nothing_open() -> None:
    chunk = PriorChunk("r-1", 0, 0, 10, 50, 59)
    ids = np.array([f"m{i}" for i in range(10)], dtype=object)
    found = locate_messages(chunk, ids, [OffsetRange(0, 53, 57)], {}, None)
    assert found.sure.tolist() == [False] * 3 + [True] * 4 + [False] * 3
    assert (found.possible == found.sure).all()
