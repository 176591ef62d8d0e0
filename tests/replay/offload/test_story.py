"""A whole offload, and one that could not be finished: which gaps it leaves."""

from __future__ import annotations

from typing import Any

import pytest

from backlogctl.errors import BacklogError, Refused
from backlogctl.fanout.launchers import Role
from backlogctl.kafka.admin import create_topic
from backlogctl.replay.observe.stream import sample_stream
from backlogctl.values import Gap, Recovery
from tests.kit.kafka import delete_topic, move_log_start, set_offsets_raw, wait_until
from tests.replay.offload.conftest import READ
from tests.replay.offload.world import (
    OffloadWorld,
    await_fresh,
    find_fence,
    find_place,
    judge_gaps,
    judge_offload,
    read_archive,
)


def test_what_is_unread_moves_into_the_archive(world: OffloadWorld) -> None:
    recovery = world.plan_approved()
    assert recovery.plan["unread"] > 1000
    done = world.run(recovery)
    assert judge_offload(world, recovery) == []
    counts = done.detail["counts"]
    assert counts["archived"] == len(read_archive(recovery)) > 1000
    assert counts["freed_bytes"] > 15_000, world.told.getvalue()
    await_fresh(world, 40)
    assert world.read_lows() == find_fence(world, recovery)
    again = world.run(recovery)
    assert again.state == "verified"


def test_what_is_archived_is_not_lost(idle: OffloadWorld) -> None:
    """Another group that is named is cut."""
    audit = f"{idle.group}-audit"
    set_offsets_raw(idle.properties, audit, idle.topic, {0: 3})
    recovery = idle.plan_approved(allow=(f"other-groups:{audit}",))
    idle.run(recovery)
    assert judge_offload(idle, recovery) == []
    workspace = idle.open()
    _, entry = sample_stream(workspace, workspace.config.stream("orders"))
    assert entry["lost"] == 0
    assert entry["verdict"] != "lost"
    assert "580 messages of it in an archive" in entry["sentence"]
    command = f"backlogctl plan redrive orders --from archive:{recovery.id}"
    assert command in entry["next_commands"]
    told = " ".join(idle.call("gaps", "orders").out.split())
    assert "moved to archive" in told
    assert recovery.id in told
    assert "none open; at most 580 messages in archives" in told


LEFT = "leave-consumers"  # so that nobody moves the group but the test


def fail_at(world: OffloadWorld, recovery: Recovery, point: str, **offsets: int) -> None:
    """Its run ends there, since somebody sets offsets: `p0=5` is 5 in partition 0."""
    wanted = {int(name[1:]): at for name, at in offsets.items()}
    world.at(point, lambda: set_offsets_raw(world.properties, world.group, world.topic, wanted))
    with pytest.raises(Refused):
        world.run(recovery)


@pytest.mark.parametrize("discard", [False, True])
def test_fault_69_the_offload_after_one_that_was_given_up_records_all(
    idle: OffloadWorld, discard: bool
) -> None:
    options: dict[str, Any] = {"discard": True, "allow": ("lose",)} if discard else {}
    first = idle.plan_approved(**options)
    fail_at(idle, first, "p5.5.gaps", p0=0)
    assert idle.cancel(first, LEFT).state == "cancelled"
    second = idle.plan_approved(**options)
    assert idle.run(second).state == "verified"
    if not discard:
        assert judge_gaps(idle, second, read_archive(second)) == []
    gaps = [gap for gap in idle.open().ledger.gaps.list("orders") if gap.state != "waived"]
    fence = find_fence(idle, second)
    assert [(g.partition, g.start, g.end) for g in gaps] == [(0, 0, fence[0]), (1, READ, fence[1])]


def test_fault_69_what_the_group_was_moved_past_stays_a_gap(idle: OffloadWorld) -> None:
    """Killed after the move; then somebody starts consumers by hand, and they commit."""
    recovery = idle.plan_approved()
    killed = idle.start("run", recovery.id, crash_at="p5.5.moved")
    killed.communicate(timeout=400)
    assert killed.returncode == -9
    fence = find_fence(idle, recovery)
    set_offsets_raw(idle.properties, idle.group, idle.topic, {0: fence[0] + 5, 1: READ})
    assert idle.cancel(recovery, LEFT).state == "cancelled"
    gaps = {gap.partition: (gap.state, gap.archive) for gap in list_gaps(idle)}
    assert gaps == {0: ("staged", recovery.id), 1: ("waived", recovery.id)}
    assert idle.read_lows() == {0: 0, 1: 0}


@pytest.mark.parametrize("discard", [False, True])
def test_fault_69_a_gap_is_cut_where_the_group_was_set_back_to(
    idle: OffloadWorld, discard: bool
) -> None:
    """Of partition 1 a part was deleted already."""
    options: dict[str, Any] = {"discard": True, "allow": ("lose",)} if discard else {}
    recovery = idle.plan_approved(**options)
    idle.at("p5.5.staged", lambda: move_log_start(idle.properties, idle.topic, {1: READ + 20}))
    fail_at(idle, recovery, "p5.5.staged", p0=READ + 50, p1=READ)
    fence = find_fence(idle, recovery)
    assert idle.cancel(recovery, LEFT).state == "cancelled"
    found = {(g.partition, g.start, g.end, str(g.state)) for g in list_gaps(idle)}
    kept = "open" if discard else "staged"
    assert found == {
        (0, READ, fence[0], "waived"),
        (0, READ, READ + 50, kept),
        (1, READ, fence[1], "waived"),
        (1, READ, READ + 20, kept),
    }
    if not discard:
        waiting = idle.open().ledger.gaps.list_waiting("orders")
        assert {(g.partition, g.end) for g in waiting} == {(0, READ + 50), (1, READ + 20)}


@pytest.mark.parametrize("point", ["p5.5.gaps", "p5.5.staged"])
@pytest.mark.parametrize("damage", ["archive", "topic"])
def test_fault_43_a_cancel_that_cannot_go_forward_ends_and_starts_the_consumers(
    idle: OffloadWorld, point: str, damage: str
) -> None:
    """Before the deletion the run sees itself what is wrong, and deletes nothing."""
    recovery = idle.plan_approved()

    def spoil() -> None:
        if damage == "archive":
            next(find_place(recovery).rglob("*.parquet")).unlink()
        else:
            delete_topic(idle.properties, idle.topic)
            create_topic(idle.properties, idle.topic, partitions=2)
            idle.publish(100)
        if point == "p5.5.gaps":
            raise BacklogError("stopped here")

    idle.at(point, spoil)
    seen = "missing: partition" if damage == "archive" else "created again"
    with pytest.raises(BacklogError, match="stopped here" if point == "p5.5.gaps" else seen):
        idle.run(recovery)
    assert idle.read_lows() == {0: 0, 1: 0}
    assert idle.cancel(recovery).state == "cancelled"
    wait_until(lambda: len(idle.list_pids(Role.ORIGINAL)) == 2, what="consumers are back")
    told = idle.told.getvalue()
    assert ("still in the topic" if damage == "archive" else "another one") in told
    assert f"archive {recovery.id} is kept" in told
    wanted = "waived" if (damage, point) == ("archive", "p5.5.gaps") else "staged"
    assert {str(gap.state) for gap in list_gaps(idle)} == {wanted}
    assert idle.read_lows() == {0: 0, 1: 0}


def list_gaps(world: OffloadWorld) -> tuple[Gap, ...]:
    return world.open().ledger.gaps.list("orders")
