"""What a group lost of what was put back, as the ledger knows it; no broker."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backlogctl.config import Config, Stream
from backlogctl.manifests import ArchivedRange
from backlogctl.replay.engine.kind import Workspace
from backlogctl.replay.injection.ledger import Lost, find_lost, intersect_ranges, subtract_ranges
from backlogctl.replay.opening import open_workspace
from backlogctl.spark_backfill.request import PriorChunk
from backlogctl.values import Certainty, GapState, OffsetRange
from tests.kernel.ledger.makers import make_gap, make_sample
from tests.replay.makers import keep_plan, make_rebuild_plan
from tests.spark_backfill.world import make_stream

STREAM = make_stream("orders").model_copy(update={"group": "orders-service"})
CHUNK = PriorChunk("r-1", 0, 0, 100, 200, 299)
RANGES = st.lists(
    st.builds(
        lambda p, start, count: OffsetRange(p, start, start + count),
        st.integers(0, 1),
        st.integers(0, 30),
        st.integers(0, 12),
    ),
    max_size=5,
)


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    text = f"ledger: sqlite:///{tmp_path}/ledger.db\nstaging: {{dir: {tmp_path}/staging}}\n"
    return open_workspace(Config.from_text(text, tmp_path))


def find(workspace: Workspace, source: str | None = None, stream: Stream = STREAM) -> Lost:
    return find_lost(workspace, stream, "topic-id", [CHUNK], source)


def keep_archive(workspace: Workspace, start: int, end: int) -> str:
    name = keep_plan(workspace, make_rebuild_plan()).id
    workspace.ledger.archives.record(
        name,
        stream="orders",
        cluster="main",
        topic="orders",
        topic_id="topic-id",
        location=f"/archives/{name}",
        manifest_sha256="ab",
        messages=end - start,
        bytes=1,
        ranges=[ArchivedRange(0, start, end, end - start, None, None)],
    )
    return name


@given(ranges=RANGES, others=RANGES)
def test_ranges_are_cut_offset_by_offset(
    ranges: list[OffsetRange], others: list[OffsetRange]
) -> None:
    both, left = intersect_ranges(ranges, others), subtract_ranges(ranges, others)
    assert spread(both) == spread(ranges) & spread(others)
    assert spread(left) == spread(ranges) - spread(others)
    assert all(item.count for item in left)


def spread(ranges: list[OffsetRange] | tuple[OffsetRange, ...]) -> set[tuple[int, int]]:
    return {(item.partition, offset) for item in ranges for offset in range(item.start, item.end)}


def test_what_an_archive_holds_is_not_lost_but_for_who_reads_it(workspace: Workspace) -> None:
    workspace.ledger.gaps.record(make_gap(190, 310))
    assert find(workspace) == Lost((OffsetRange(0, 190, 310),))
    name = keep_archive(workspace, 250, 301)
    found = find(workspace)
    assert found.ranges == (OffsetRange(0, 190, 250), OffsetRange(0, 301, 310))
    assert [f"archive {name} has them" in one for one in found.told] == [True]
    assert find(workspace, name) == Lost((OffsetRange(0, 190, 310),))
    workspace.ledger.archives.mark_purged(name, "ada")
    assert find(workspace) == Lost((OffsetRange(0, 190, 310),))


def test_an_archive_without_anything_of_ours_is_not_named(workspace: Workspace) -> None:
    workspace.ledger.gaps.record(make_gap(100, 150))
    keep_archive(workspace, 100, 150)
    assert find(workspace) == Lost()


def test_what_the_group_read_after_all_is_not_lost(workspace: Workspace) -> None:
    """The rest of a bounded gap is, and may have been read: that is said."""
    bounded = make_gap(190, 310, certainty=Certainty.BOUNDED)
    workspace.ledger.gaps.record(bounded)
    assert workspace.ledger.gaps.trim_read(make_sample(), {0: 250}) == 1
    found = find(workspace)
    assert found.ranges == (OffsetRange(0, 250, 310),)
    assert found.told == ()
    assert ["up to 50 offsets" in one for one in found.cautions] == [True]


def test_what_a_rebuild_closed_is_lost_still(workspace: Workspace) -> None:
    """What it put back has the same id in a later chunk; what it could not is nowhere. One that a
    person waived is lost too."""
    ledger = workspace.ledger
    gap = ledger.gaps.record(make_gap(200, 250))
    recovery = keep_plan(workspace, make_rebuild_plan(group=STREAM.group), [gap.id]).id
    for state in (GapState.STAGED, GapState.INJECTED, GapState.VERIFIED):
        ledger.gaps.advance([gap.id], state, recovery)
    waived = ledger.gaps.record(make_gap(260, 270))
    ledger.gaps.advance([waived.id], GapState.WAIVED, reason="test data", actor="ada")
    assert find(workspace) == Lost((OffsetRange(0, 200, 250), OffsetRange(0, 260, 270)))
    keep_archive(workspace, 200, 250)
    assert find(workspace) == Lost((OffsetRange(0, 260, 270),)), "closed, so nothing waits there"
