"""A whole offload: archived, moved, deleted, and the consumers read only what is fresh."""

from __future__ import annotations

from backlogctl.replay.observe.stream import sample_stream
from tests.replay.offload.world import (
    OffloadWorld,
    await_fresh,
    find_fence,
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
    recovery = idle.plan_approved()
    idle.run(recovery)
    workspace = idle.open()
    _, entry = sample_stream(workspace, workspace.config.stream("orders"))
    assert entry["lost"] == 0
    assert entry["verdict"] != "lost"
    assert "580 messages of it in an archive" in entry["sentence"]
    command = f"backlogctl plan redrive orders --from archive:{recovery.id}"
    assert command in entry["next_commands"]
    told = " ".join(idle.call("gaps", "orders").out.split())
    assert f"archive {recovery.id}" in told
    assert "0 open, at most 0 messages lost; at most 580 messages in archives" in told
