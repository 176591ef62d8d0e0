"""Somebody resets the group's offsets, or reads beside us, while no runner guards it."""

from __future__ import annotations

import signal

import pytest

from backlogctl.errors import VerificationFailed
from backlogctl.fanout.launchers import Role
from backlogctl.fanout.relay.commits import (
    READ_BESIDE,
    REPEATED,
    SKIPPED,
    CommitWithMetadata,
    Counters,
    Moved,
    find_moved_commits,
    write_counters,
)
from backlogctl.replay.consumers.fleet import find_begin
from backlogctl.values import Cause, Certainty, Recovery
from tests.kafka_tools import read_all, wait_until
from tests.replay.expand.oracle import (
    SETTINGS,
    await_handled,
    find_layout_problems,
    find_unhandled,
    read_log,
)
from tests.replay.expand.world import PARTITIONS, WITHIN, World

OURS = write_counters(Counters("r-1", 5, 50, {0: 5}), 4)
OTHERS = write_counters(Counters("r-2", 5, 50, {0: 5}), 4)
SLOW = 5.0
UNSET: dict[str, str | None] = dict.fromkeys(SETTINGS)


@pytest.mark.parametrize("metadata", [None, "", "{", "[]", "7", '"r"', OTHERS])
def test_a_commit_without_our_counters_is_somebody_elses(metadata: str | None) -> None:
    ours = {number: CommitWithMetadata(15, OURS) for number in (0, 1, 2)}
    commits = {
        0: CommitWithMetadata(15, OURS),
        1: CommitWithMetadata(20, metadata),
        2: CommitWithMetadata(20, metadata, epoch=3),
        3: CommitWithMetadata(30, metadata),  # where it was when the consumers were stopped
        4: CommitWithMetadata(10, metadata),
    }
    begun = {0: 10, 1: 10, 2: 10, 3: 30, 4: 12}
    assert find_moved_commits(commits, ours, begun, "r-1") == (
        Moved(1, 15, 20, SKIPPED),
        Moved(2, 15, 20, READ_BESIDE),
        Moved(4, 10, 12, REPEATED),
    )


def test_a_relay_that_has_committed_meanwhile_is_no_outsider() -> None:
    """The two commits of one transaction are read one after the other."""
    commits = {0: CommitWithMetadata(25, OURS)}
    assert find_moved_commits(commits, {0: CommitWithMetadata(15, OURS)}, {0: 10}, "r-1") == ()


def kill_in_the_drain(world: World) -> Recovery:
    """A runner that is killed while much is still to be relayed."""
    recovery = world.plan_approved(rate=1)
    world.set_speed(Role.RECOVERY, SLOW)
    killed = world.start("run", recovery.id, crash_at="p4.7.canary.relayed")
    killed.communicate(timeout=WITHIN)
    assert killed.returncode == -signal.SIGKILL
    return recovery


def find_left(world: World) -> set[tuple[int, int]]:
    """Partition and offset of each message that nobody handled."""
    handled = {(line.key, line.sequence) for line in read_log(world)}
    return {
        (message.partition() or 0, message.offset() or 0)
        for message in read_all(world.properties, world.topic, range(PARTITIONS))
        if ((message.key() or b"").decode(), int(message.value() or 0)) not in handled
    }


def test_a_reset_to_latest_is_an_exact_gap_and_never_verified(world: World) -> None:
    recovery = kill_in_the_drain(world)
    world.reset_group("latest")
    world.publish(100)
    world.set_speed(Role.RECOVERY, None)
    world.set_speed(Role.ORIGINAL, None)
    for _ in range(2):  # the second one changes nothing
        with pytest.raises(VerificationFailed, match="were never handled") as caught:
            world.run(recovery)
    assert f"backlogctl cancel {recovery.id}" in caught.value.hint
    assert "backlogctl plan rebuild orders" in caught.value.hint
    assert world.read(recovery).state == "failed"
    gaps = world.open().ledger.gaps.list("orders")
    assert {(gap.cause, gap.certainty) for gap in gaps} == {(Cause.SKIPPED, Certainty.EXACT)}
    wait_until(lambda: not world.find_rest(), what="the rest is read")
    named = {(g.partition, at) for g in gaps for at in range(g.start or 0, g.end or 0)}
    assert find_left(world) == named
    assert "set the offsets of the group forward" in world.told.getvalue()
    assert world.cancel(recovery).state == "cancelled"
    assert find_layout_problems(world, recovery, UNSET, "cancelled") == []


def test_a_reset_to_earliest_is_counted_and_told(world: World) -> None:
    recovery = kill_in_the_drain(world)
    world.reset_group("earliest")
    world.set_speed(Role.RECOVERY, None)
    world.run(recovery)
    await_handled(world)
    assert find_unhandled(world) == []
    assert find_layout_problems(world, recovery, UNSET, "verified") == []
    told = world.told.getvalue()
    assert "set the offsets of the group back" in told
    assert "are handled once more" in told


def test_a_group_that_is_reset_before_its_consumers_are_back(world: World) -> None:
    """All is drained, the runner is killed, and only then the group is set forward."""
    recovery = world.plan_approved()
    killed = world.start("run", recovery.id, crash_at="p4.9.guard.left")
    killed.communicate(timeout=WITHIN)
    world.publish(100)
    world.reset_group("latest")
    with pytest.raises(VerificationFailed, match="at most 100 messages were never handled"):
        world.run(recovery)
    assert sum(gap.count or 0 for gap in world.open().ledger.gaps.list("orders")) == 100
    assert len(world.list_pids(Role.ORIGINAL)) == 2


def test_what_a_reader_committed_while_it_stopped_is_its_own() -> None:
    assert find_begin(10, CommitWithMetadata(15, None, epoch=3)) == 15
    assert find_begin(10, CommitWithMetadata(15, None)) == 10, "somebody set it"
    assert find_begin(10, CommitWithMetadata(5, None, epoch=3)) == 10


@pytest.mark.parametrize("way", ["run", "cancel"])
def test_a_reset_to_latest_right_after_the_consumers_were_stopped(world: World, way: str) -> None:
    """Nothing was relayed yet, and the group was not even watched: what was skipped is a gap."""
    recovery = world.plan_approved()
    killed = world.start("run", recovery.id, crash_at="p4.3.stopped")
    killed.communicate(timeout=WITHIN)
    assert killed.returncode == -signal.SIGKILL
    world.reset_group("latest")
    if way == "run":
        with pytest.raises(VerificationFailed, match="were never handled"):
            world.run(recovery)
    else:
        world.cancel(recovery)
    gaps = world.open().ledger.gaps.list("orders")
    assert {(gap.cause, gap.certainty) for gap in gaps} == {(Cause.SKIPPED, Certainty.EXACT)}
    wait_until(lambda: not world.find_rest(), what="the rest is read")
    named = {(g.partition, at) for g in gaps for at in range(g.start or 0, g.end or 0)}
    assert find_left(world) == named
