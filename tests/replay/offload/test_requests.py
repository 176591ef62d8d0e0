"""`pause` and `cancel`: before the group is moved it goes back, from there on forward."""

from __future__ import annotations

from typing import Literal

import pytest

from backlogctl.errors import BacklogError
from backlogctl.fanout.launchers import Role
from backlogctl.replay.cli import main
from backlogctl.replay.engine.brakes import CancelRequested, PausedBecause
from backlogctl.replay.observe.stream import sample_stream
from backlogctl.replay.present.status import find_status
from backlogctl.spark_backfill.archive import writing
from tests.kit.kafka import wait_until
from tests.replay.expand.world import PARTITIONS
from tests.replay.offload.world import OffloadWorld, await_fresh, find_place, judge_offload


def ask(world: OffloadWorld, recovery_id: str, what: Literal["pause", "cancel"]) -> None:
    """As another process does while the run is at work."""
    world.open().ledger.recoveries.request(recovery_id, what, "tester")


@pytest.mark.parametrize("point", ["p5.2.quiet", "p5.3.fenced", "p5.4.recorded"])
def test_fault_43_cancelled_before_the_group_is_moved_nothing_has_happened(
    idle: OffloadWorld, point: str
) -> None:
    recovery = idle.plan_approved()
    idle.at(point, lambda: fail("stopped here"))
    with pytest.raises(BacklogError, match="stopped here"):
        idle.run(recovery)
    assert not idle.find_members()
    cancelled = idle.cancel(recovery)
    assert cancelled.state == "cancelled"
    assert idle.read_lows() == {0: 0, 1: 0}
    assert not find_place(recovery).exists()
    assert idle.open().ledger.gaps.list("orders") == ()
    wait_until(lambda: len(idle.list_pids(Role.ORIGINAL)) == 2, what="consumers are back")
    # Nobody commits past the marker that ended a segment.
    wait_until(lambda: idle.find_rest() <= PARTITIONS, what="they read all of it")


def fail(why: str) -> None:
    """Ends a run."""
    raise BacklogError(why)


@pytest.mark.parametrize("point", ["p5.5.forward", "p5.5.gaps", "p5.5.moved", "p5.6.deleted"])
def test_fault_43_cancelled_after_it_is_moved_it_goes_forward(
    idle: OffloadWorld, point: str
) -> None:
    recovery = idle.plan_approved()
    idle.at(point, lambda: fail("stopped here"))
    with pytest.raises(BacklogError, match="stopped here"):
        idle.run(recovery)
    assert idle.cancel(recovery).state == "cancelled"
    assert "goes forward" in idle.told.getvalue()
    assert judge_offload(idle, recovery, state="cancelled") == []
    await_fresh(idle, 40)


def test_cancel_asked_of_a_run_between_two_batches(
    idle: OffloadWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "_PIECES_PER_CORE", 1)
    recovery = idle.plan_approved()
    idle.at("p5.3.fenced", lambda: ask(idle, recovery.id, "cancel"))
    with pytest.raises(CancelRequested):
        idle.run(recovery)
    assert idle.read(recovery).state == "cancelled"
    # Nobody commits past the marker that ended a segment.
    wait_until(lambda: idle.find_rest() <= PARTITIONS, what="the consumers read all of it")


def test_paused_it_says_that_the_consumers_stay_stopped(idle: OffloadWorld) -> None:
    recovery = idle.plan_approved()
    idle.at("p5.3.fenced", lambda: ask(idle, recovery.id, "pause"))
    with pytest.raises(PausedBecause) as caught:
        idle.run(recovery)
    assert "the original consumers stay stopped" in caught.value.hint
    paused = idle.read(recovery)
    assert paused.state == "paused"
    assert not idle.find_members()
    workspace = idle.open()
    _, entry = sample_stream(workspace, workspace.config.stream("orders"))
    assert entry["verdict"] == "stop"
    assert f"stopped by offload {recovery.id}" in entry["sentence"]
    standing = find_status(workspace, paused)
    assert standing is not None
    assert (standing["reads"], standing["archive"]) == ("nobody", None)
    assert standing["stopped"].startswith("the 2 consumers of group")
    idle.run(recovery, resumed=True)
    assert judge_offload(idle, recovery) == []


def test_left_consumers_are_a_persons_to_start(
    idle: OffloadWorld, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whoever asks again is told the same."""
    recovery = idle.plan_approved()
    idle.at("p5.4.recorded", lambda: fail("stopped here"))
    with pytest.raises(BacklogError, match="stopped here"):
        idle.run(recovery)
    assert idle.cancel(recovery, "leave-consumers").state == "cancelled"
    assert idle.list_pids(Role.ORIGINAL) == []
    assert "yourself" in idle.told.getvalue()
    assert main(["cancel", recovery.id, "--config", str(idle.directory / "backlog.yaml")]) == 0
    assert "start the consumers of" in capsys.readouterr().out
