"""Which messages of a chunk lie in a gap, where others wrote in between; pure."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from backlogctl.spark_backfill.evidence.injected import locate_messages
from backlogctl.spark_backfill.request import PriorChunk
from backlogctl.values import OffsetRange


@given(data=st.data())
def test_what_is_sure_lies_in_a_gap_and_what_is_not_possible_does_not(data: st.DataObject) -> None:
    offsets = sorted(data.draw(st.sets(st.integers(100, 160), min_size=1, max_size=40)))
    log_start = data.draw(st.integers(90, 170))
    start = data.draw(st.integers(90, log_start))
    gap = OffsetRange(0, start, data.draw(st.integers(start, log_start)))
    ids = np.array([f"m{i}" for i in range(len(offsets))], dtype=object)
    # A later recovery has put some of them behind the chunk once more.
    again = data.draw(st.sets(st.sampled_from(ids.tolist())))
    there: dict[str, list[int]] = {mid: [at] for at, mid in enumerate(sorted(again), 170)}
    for mid, at in zip(ids, offsets, strict=True):
        if at >= log_start:
            there.setdefault(mid, []).append(at)
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


def test_a_copy_elsewhere_does_not_move_the_others_of_its_chunk() -> None:
    """Put back once more since: the copy says nothing of where the chunk's own lay."""
    chunk = PriorChunk("r-1", 0, 0, 10, 50, 59)
    ids = np.array([f"m{i}" for i in range(10)], dtype=object)
    there = {f"m{i}": [80 + i] for i in range(5)}
    found = locate_messages(chunk, ids, [OffsetRange(0, 50, 60)], there, 60)
    assert found.sure.all()
    assert found.possible.all()
