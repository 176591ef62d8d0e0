"""Which gaps a plan takes, since when, and what of them was put back before; no broker, no Spark."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backlogctl.archive_manifest import ArchivedRange
from backlogctl.config import Config, Stream
from backlogctl.errors import UsageError
from backlogctl.kafka.admin import TopicInfo
from backlogctl.kafka.readers import TopicReaders
from backlogctl.replay.engine.archives import touches
from backlogctl.replay.engine.kind import Workspace
from backlogctl.replay.injection import storing
from backlogctl.replay.injection.ledger import (
    Lost,
    find_lost_ranges,
    intersect_ranges,
    subtract_ranges,
)
from backlogctl.replay.injection.plan import PlannedTarget, To
from backlogctl.replay.injection.target import Target
from backlogctl.replay.kinds.rebuild import planning as plans
from backlogctl.replay.kinds.rebuild.losses import (
    choose_gaps,
    date_edges,
    find_growth,
    locate_prior,
    tighten_times,
)
from backlogctl.replay.kinds.rebuild.plan import RebuildOptions, RebuildPlan
from backlogctl.replay.observe.snapshot import Draft, StreamSnapshot
from backlogctl.replay.opening import open_workspace
from backlogctl.spark_backfill.request import Growth, PriorChunk
from backlogctl.values import Certainty, Chunk, Gap, GapState, OffsetRange, RecoveryState
from tests.kit.ledger import NOON, make_gap, make_sample
from tests.kit.recoveries import keep_plan, make_rebuild_plan
from tests.spark_backfill.world import make_stream

CHUNK = Chunk(0, 0, 10, 100, "hash", "messages/0", "ids/0")
TOPIC = TopicInfo("orders", "topic-id", 3, {}, 1)
GROUP = "orders-service"
STREAM = make_stream("orders").model_copy(update={"group": GROUP})


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    text = f"ledger: sqlite:///{tmp_path}/ledger.db\nstaging: {{dir: {tmp_path}/staging}}\n"
    return open_workspace(Config.from_text(text, tmp_path))


@pytest.fixture
def stream() -> Stream:
    return STREAM


def test_a_chunk_is_touched_where_a_gap_holds_some_of_it() -> None:
    gaps = [make_gap(10, 40), make_gap(0, 99, partition=1)]
    assert all(touches(0, first, last, gaps) for first, last in ((10, 39), (0, 10), (39, 50)))
    assert not any(touches(0, first, last, gaps) for first, last in ((0, 9), (40, 50)))
    assert not touches(0, None, None, gaps)


def put_back(workspace: Workspace, gap: Gap) -> str:
    """A recovery of the gap whose only chunk went to the offsets 100 to 109."""
    ledger = workspace.ledger
    made = keep_plan(workspace, make_rebuild_plan(group=GROUP), [gap.id])
    ledger.chunks.add_all(made.id, [CHUNK])
    ledger.chunks.mark_injected(made.id, 0, 0, 100, 109)
    return made.id


def test_what_was_put_back_is_located_for_the_group_and_the_topic(workspace: Workspace) -> None:
    recovery = put_back(workspace, workspace.ledger.gaps.record(make_gap(10, 20)))
    prior = (PriorChunk(recovery, 0, 0), PriorChunk("r-unknown", 0, 0))
    again = make_gap(105, 120)
    here = replace(prior[0], count=10, first_offset=100, last_offset=109)
    since = datetime(1970, 1, 1, tzinfo=UTC)  # that plan read the whole table
    assert locate_prior(workspace, prior, [again]) == ((here, prior[1]), since)
    assert locate_prior(workspace, prior, [make_gap(110, 120)]) == ((here, prior[1]), None)
    other = replace(again, group="another")
    copies = replace(here, same_group=False)
    assert locate_prior(workspace, prior, [other]) == ((copies, prior[1]), None)
    elsewhere = replace(again, topic_id="new")
    assert locate_prior(workspace, prior, [elsewhere]) == (prior, None)


def test_the_samples_tell_when_the_topic_got_partitions() -> None:
    one = make_sample(NOON).partitions[0]
    history = [
        replace(
            make_sample(NOON + timedelta(hours=hour)),
            partitions=tuple(replace(one, partition=number) for number in range(count)),
        )
        for hour, count in enumerate((2, 2, 3, 3, 6))
    ]
    topic_id = history[0].topic_id
    assert find_growth(history, topic_id) == (
        Growth(2, NOON + timedelta(hours=1), NOON + timedelta(hours=2)),
        Growth(3, NOON + timedelta(hours=3), NOON + timedelta(hours=4)),
    )
    assert find_growth(history, "another") == ()


def test_edges_are_dated_by_the_samples_around_them() -> None:
    part = make_sample().partitions[0]
    history = [
        replace(make_sample(NOON + timedelta(hours=n)), partitions=(replace(part, high=high),))
        for n, high in enumerate((10, 20, 30))
    ]
    start, end = date_edges([make_gap(15, 30)], history)
    assert (start.offset, start.lower) == (15, NOON)
    assert start.upper is not None
    assert abs(start.upper - NOON - timedelta(hours=1)) < timedelta(minutes=1)
    assert (end.offset, end.lower, end.upper) == (30, NOON + timedelta(hours=2), None)


def test_a_later_piece_does_not_inherit_the_older_time() -> None:
    history = [
        replace(make_sample(NOON + timedelta(hours=n)), partitions=parts)
        for n, parts in enumerate(
            (replace(make_sample().partitions[0], high=high),) for high in (10, 20, 30)
        )
    ]
    whole, piece = replace(make_gap(10, 40), first_time=NOON), make_gap(25, 40)
    piece = replace(piece, first_time=NOON)
    unknown = replace(piece, first_time=None)
    tight = tighten_times([whole, piece, unknown], history)
    assert tight == (whole, replace(piece, first_time=NOON + timedelta(hours=1)), unknown)
    assert tighten_times([piece], []) == (piece,)


def test_gaps_of_another_group_are_left_out(workspace: Workspace, stream: Stream) -> None:
    ours = workspace.ledger.gaps.record(make_gap(10, 20))
    other = workspace.ledger.gaps.record(replace(make_gap(10, 20), group="the-old-name"))
    ledger = workspace.ledger
    gaps = ledger.gaps.list(stream.name)
    chosen, warnings = choose_gaps(ledger, stream, TOPIC.topic_id, gaps, ())
    assert chosen == (ours,)
    assert other.id in warnings[0]
    assert "it is of group the-old-name" in warnings[0]
    with pytest.raises(UsageError, match="the-old-name"):
        choose_gaps(ledger, stream, TOPIC.topic_id, gaps, [other.id])


@dataclass(frozen=True)
class Staged:
    """A manifest's chunks."""

    chunks: tuple[Chunk, ...] = (CHUNK,)


READERS = TopicReaders({"audit": {0: 5}})
SNAPSHOT = StreamSnapshot(TOPIC, make_sample(), {"warnings": []}, READERS, (), ())
OWN = Target(None, TOPIC, {}, {}, ("audit",))


def test_a_plan_that_is_interrupted_on_record_is_rejected(
    workspace: Workspace, stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    gap = workspace.ledger.gaps.record(make_gap(10, 20))

    def compute(draft: Draft, *_: Any) -> RebuildPlan:
        assert workspace.staging_of(draft.recovery_id).is_dir()
        return make_rebuild_plan()

    def interrupt(*arguments: Any) -> None:
        raise KeyboardInterrupt

    draft = Draft(workspace, stream, "r-20261120-0001")
    losses = plans.Losses(SNAPSHOT, OWN, (gap,))
    monkeypatch.setattr(plans, "begin_injection", lambda *_, **__: (draft, SNAPSHOT, OWN))
    monkeypatch.setattr(plans, "choose_losses", lambda *_: losses)
    monkeypatch.setattr(plans, "compute_rebuild", compute)
    monkeypatch.setattr(storing, "read_manifest", lambda *arguments: Staged())
    monkeypatch.setattr(storing, "check_room", lambda *arguments: (None, []))
    monkeypatch.setattr(storing, "describe_staged", lambda *arguments: {})
    monkeypatch.setattr(type(workspace.config), "cluster_of", lambda *arguments: None)
    monkeypatch.setattr(workspace.ledger.chunks, "add_all", interrupt)
    with pytest.raises(KeyboardInterrupt):
        plans.plan_rebuild(workspace, stream, RebuildOptions())
    (recovery,) = workspace.ledger.recoveries.list()
    assert recovery.state is RecoveryState.REJECTED
    assert workspace.ledger.gaps.get(gap.id).state is GapState.OPEN
    assert not workspace.staging_of(recovery.id).exists()


def test_fault_23_what_expires_while_planning_is_told_with_both_bounds() -> None:
    """The gap of partition 1 ends far below the log start: the group read on behind it."""
    gaps = [make_gap(10, 20, partition=number) for number in (0, 1, 3)]
    before = {0: 20, 1: 70, 3: 20}
    told = plans.compare_log_starts(gaps, before, {0: 35, 1: 70, 2: 90, 3: 1_234})
    assert [text.split(";")[0] for text in told] == [
        "retention moved on while planning, partition 0 from 20 to 35, partition 3 from 20 to 1,234"
    ]
    assert plans.compare_log_starts(gaps, before, before) == []


@pytest.mark.parametrize("to", list(To))
def test_readers_of_the_topic_matter_only_where_they_get_the_messages(
    workspace: Workspace, stream: Stream, to: To
) -> None:
    planned = PlannedTarget(to=to, topic="side", topic_id=None, partitions=1)
    target = OWN if to is To.TOPIC else Target(planned, TOPIC, {}, {})
    draft = Draft(workspace, stream, "r-20261120-0001")
    made = storing.fill_injection(draft, SNAPSHOT, target, RebuildOptions(), (), None, ())
    assert any("audit" in text for text in made["warnings"]) is (to is To.TOPIC)
    assert made["other_groups"] == (("audit",) if to is To.TOPIC else ())


# What a group lost of what was put back, as the ledger knows it.

PUT_BACK = PriorChunk("r-1", 0, 0, 100, 200, 299)
RANGES = st.lists(
    st.builds(
        lambda p, start, count: OffsetRange(p, start, start + count),
        st.integers(0, 1),
        st.integers(0, 30),
        st.integers(0, 12),
    ),
    max_size=5,
)


def find(workspace: Workspace, source: str | None = None, stream: Stream = STREAM) -> Lost:
    return find_lost_ranges(workspace, stream, "topic-id", [PUT_BACK], source)


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
