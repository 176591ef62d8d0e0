"""Which gaps a plan takes, since when, and what of them was put back before; no broker, no Spark."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from backlog.config import Config, Stream
from backlog.errors import UsageError
from backlog.kafka.admin import TopicInfo
from backlog.ledger.chunks import ChunkRecord
from backlog.values import Chunk, ChunkState, Gap, GapState, RecoveryState
from replay.kinds.rebuild import planning as plans
from replay.kinds.rebuild.losses import lies_in, mark_lost_again, tighten_times
from replay.kinds.rebuild.options import RebuildOptions
from replay.kinds.rebuild.plan import RebuildPlan
from replay.kinds.rebuild.planning import Losses, choose_gaps
from replay.opening import open_workspace
from replay.recovery.workspace import Workspace
from spark_backfill.request import PriorChunk
from tests.backlog.ledger.makers import NOON, make_gap, make_sample
from tests.replay.makers import keep_plan, make_rebuild_plan
from tests.spark_backfill.world import make_stream

CHUNK = Chunk(0, 0, 10, 100, "hash", "messages/0", "ids/0")
TOPIC = TopicInfo("orders", "topic-id", 3, {}, 1)
GROUP = "orders-service"


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    text = f"ledger: sqlite:///{tmp_path}/ledger.db\nstaging: {{dir: {tmp_path}/staging}}\n"
    return open_workspace(Config.from_text(text, tmp_path))


@pytest.fixture
def stream() -> Stream:
    return make_stream("orders").model_copy(update={"group": GROUP})


def record(first: int | None, last: int | None) -> ChunkRecord:
    return ChunkRecord(CHUNK, ChunkState.INJECTED, first, last, NOON)


def test_a_chunk_is_lost_again_where_the_gaps_cover_all_of_it() -> None:
    gaps = [make_gap(30, 40), make_gap(10, 30), make_gap(0, 99, partition=1)]
    assert lies_in(record(10, 39), gaps)
    assert lies_in(record(25, 35), gaps)
    for first, last in ((9, 20), (20, 40), (50, 60), (None, None)):
        assert not lies_in(record(first, last), gaps)


def put_back(workspace: Workspace, gap: Gap) -> str:
    """A recovery of the gap whose only chunk went to the offsets 100 to 109."""
    ledger = workspace.ledger
    made = keep_plan(workspace, make_rebuild_plan(group=GROUP), [gap.id])
    ledger.chunks.add_all(made.id, [CHUNK])
    ledger.chunks.mark_injected(made.id, 0, 0, 100, 109)
    return made.id


def test_what_was_put_back_and_lost_again_explains_nothing(workspace: Workspace) -> None:
    recovery = put_back(workspace, workspace.ledger.gaps.record(make_gap(10, 20)))
    prior = (PriorChunk(recovery, 0, 0), PriorChunk("r-unknown", 0, 0))
    again = make_gap(90, 120)
    assert mark_lost_again(workspace, prior, [again]) == (replace(prior[0], lost=True), prior[1])
    for other in (make_gap(105, 120), replace(again, topic_id="new"), replace(again, partition=1)):
        assert mark_lost_again(workspace, prior, [other]) == prior


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
    chosen, warnings = choose_gaps(workspace, stream, TOPIC, ())
    assert chosen == (ours,)
    assert other.id in warnings[0]
    assert "it is of group the-old-name" in warnings[0]
    with pytest.raises(UsageError, match="the-old-name"):
        choose_gaps(workspace, stream, TOPIC, [other.id])


@dataclass(frozen=True)
class Staged:
    """A manifest's chunks."""

    chunks: tuple[Chunk, ...] = (CHUNK,)


def test_a_plan_that_is_interrupted_on_record_is_rejected(
    workspace: Workspace, stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    gap = workspace.ledger.gaps.record(make_gap(10, 20))

    def compute(*arguments: Any) -> RebuildPlan:
        workspace.staging_of(arguments[4]).mkdir(parents=True)
        return make_rebuild_plan()

    def interrupt(*arguments: Any) -> None:
        raise KeyboardInterrupt

    losses = Losses(TOPIC, (gap,), {}, (), None)
    monkeypatch.setattr(plans, "observe_losses", lambda *arguments: losses)
    monkeypatch.setattr(plans, "_compute_plan", compute)
    monkeypatch.setattr(plans, "read_manifest", lambda *arguments: Staged())
    monkeypatch.setattr(workspace.ledger.chunks, "add_all", interrupt)
    with pytest.raises(KeyboardInterrupt):
        plans.plan_rebuild(workspace, stream, RebuildOptions())
    (recovery,) = workspace.ledger.recoveries.list()
    assert recovery.state is RecoveryState.REJECTED
    assert workspace.ledger.gaps.get(gap.id).state is GapState.OPEN
    assert not workspace.staging_of(recovery.id).exists()
