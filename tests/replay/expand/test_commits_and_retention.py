"""Retention that empties a partition, commits that are gone, and a last commit that was lost."""

from __future__ import annotations

import signal
from collections.abc import Iterable

import pytest

from backlogctl.fanout.launchers import Role
from backlogctl.kafka.admin import committed_offsets, list_offsets
from backlogctl.replay.engine.plan import REWIND
from backlogctl.replay.kinds.expand import closing
from backlogctl.replay.kinds.expand.context import ExpandContext
from backlogctl.values import Cause, Recovery
from tests.kit.kafka import (
    commit,
    delete_group,
    move_log_start,
    read_all,
    set_offsets_raw,
    wait_until,
)
from tests.replay.expand.conftest import MakeWorld
from tests.replay.expand.oracle import (
    SETTINGS,
    await_handled,
    find_copy_problems,
    find_layout_problems,
    find_unhandled,
    read_log,
)
from tests.replay.expand.world import PARTITIONS, WITHIN, World

UNSET: dict[str, str | None] = dict.fromkeys(SETTINGS)
SLOW = 5.0  # of each recovery consumer
Place = tuple[str, int, int, int]  # key, sequence, partition, offset


def kill_at(world: World, recovery: Recovery, point: str) -> None:
    killed = world.start("run", recovery.id, crash_at=point)
    out, err = killed.communicate(timeout=WITHIN)
    assert killed.returncode == -signal.SIGKILL, f"{point} was not reached: {out} {err}"


def list_places(world: World) -> list[Place]:
    """Every message that the topic has now."""
    return [
        (
            (message.key() or b"").decode(),
            int(message.value() or 0),
            message.partition() or 0,
            message.offset() or 0,
        )
        for message in read_all(world.properties, world.topic, range(PARTITIONS))
    ]


def empty_partition(world: World, number: int) -> None:
    """Deletes all of it, as retention would."""
    ends = list_offsets(world.properties, world.topic, [number], "latest")
    move_log_start(world.properties, world.topic, ends)


def find_lost_in_silence(world: World, places: Iterable[Place]) -> list[Place]:
    """Those that nobody handled and no gap names."""
    handled = {(line.key, line.sequence) for line in read_log(world)}
    gaps = world.open().ledger.gaps.list("orders")
    return [
        (key, sequence, partition, offset)
        for key, sequence, partition, offset in places
        if (key, sequence) not in handled
        and not any(
            gap.partition == partition and (gap.start or 0) <= offset < (gap.end or 0)
            for gap in gaps
        )
    ]


def end_in(world: World, recovery: Recovery, way: str) -> str:
    """Runs or cancels it; the state it has then."""
    if way == "run":
        world.run(recovery)
        return "verified"
    world.cancel(recovery, *([REWIND] if way == "rewind" else []))
    return "cancelled"


@pytest.mark.parametrize(
    ("point", "way"),
    [
        ("p4.3.stopped", "run"),  # nothing was relayed
        ("p4.3.stopped", "cancel"),
        ("p4.7.canary.relayed", "run"),  # the source of a position of the relay is gone
        ("p4.7.canary.relayed", "cancel"),
        ("p4.6.relays.started", "run"),
        ("p4.9.guard.left", "run"),
    ],
)
def test_fault_116_retention_empties_a_partition_while_the_runner_is_dead(
    world: World, point: str, way: str
) -> None:
    """It ends all the same; what was removed unread is a gap, and nothing else is missing."""
    recovery = world.plan_approved()
    kill_at(world, recovery, point)
    world.publish(80)
    places = list_places(world)
    empty_partition(world, 0)
    world.publish(40)
    places += [place for place in list_places(world) if place not in places]
    state = end_in(world, recovery, way)
    world.release_holds()
    await_handled(world, 10.0)
    assert find_lost_in_silence(world, places) == []
    assert find_layout_problems(world, recovery, UNSET, state) == []
    gaps = world.open().ledger.gaps.list("orders")
    assert {(gap.partition, gap.cause) for gap in gaps} <= {(0, Cause.EXPIRED)}


def test_fault_116_a_partition_that_is_emptied_in_the_drain(world: World) -> None:
    """With nothing new behind it: the relay has no message to commit."""
    recovery = world.plan_approved()
    world.set_speed(Role.RECOVERY, SLOW)
    kill_at(world, recovery, "p4.7.canary.relayed")
    places = list_places(world)
    # The relay starts behind its commit, and no message comes.
    world.at("p4.5.guard.joined", lambda: empty_partition(world, 0))
    world.set_speed(Role.RECOVERY, None)
    world.run(recovery)
    assert find_lost_in_silence(world, places) == []
    assert find_layout_problems(world, recovery, UNSET, "verified") == []
    gaps = world.open().ledger.gaps.list("orders")
    assert {(gap.partition, gap.cause) for gap in gaps} == {(0, Cause.EXPIRED)}
    assert world.find_rest() == 0


def forget(world: World, what: str) -> None:
    """Deletes the group, or its commit of partition 0 alone."""
    wait_until(lambda: not world.find_members(), what="the group is empty")
    commits = committed_offsets(world.properties, world.group, world.topic, [1])
    delete_group(world.properties, world.group)
    if what == "one commit":
        kept = {number: at for number, at in commits.items() if at is not None}
        set_offsets_raw(world.properties, world.group, world.topic, kept)


@pytest.mark.parametrize("what", ["group", "one commit"])
@pytest.mark.parametrize(
    ("point", "way"),
    [
        ("p4.3.stopped", "run"),
        ("p4.3.stopped", "cancel"),
        ("p4.7.canary.relayed", "run"),
        ("p4.7.canary.relayed", "cancel"),
        ("p4.7.canary.relayed", "rewind"),
        ("p4.9.guard.left", "run"),
        ("p4.9.guard.left", "cancel"),
    ],
)
def test_fault_117_commits_are_deleted_while_the_runner_is_dead(
    world: World, what: str, point: str, way: str
) -> None:
    """They are where the relay, or who was stopped, had left them: nothing is lost or copied anew."""
    recovery = world.plan_approved()
    kill_at(world, recovery, point)
    forget(world, what)
    world.publish(80)
    state = end_in(world, recovery, way)
    world.release_holds()
    await_handled(world)
    assert find_unhandled(world) == []
    assert find_layout_problems(world, recovery, UNSET, state) == []
    if way == "run":
        assert find_copy_problems(world, recovery) == []
    assert world.open().ledger.gaps.list("orders") == ()
    assert "has no committed offset" in world.told.getvalue() or way == "rewind"


@pytest.mark.parametrize("way", ["run", "cancel"])
@pytest.mark.parametrize("read", [{}, {1: 100}])
def test_fault_117_a_group_that_never_committed(
    make_world: MakeWorld, way: str, read: dict[int, int]
) -> None:
    """Not anywhere, or not on one partition; planned, killed before anything was relayed."""
    world = make_world(start=False)
    before = set(list_places(world))
    if read:
        commit(world.properties, world.group, world.topic, read)
    recovery = world.plan_approved(start="earliest")
    kill_at(world, recovery, "p4.3.stopped")
    state = end_in(world, recovery, way)
    world.release_holds()
    wait_until(lambda: not world.find_rest(), what="the rest is read")
    handled = {(line.key, line.sequence) for line in read_log(world)}
    left = {place[2:] for place in before if place[:2] not in handled}
    assert left == {(number, at) for number, end in read.items() for at in range(end)}
    assert find_layout_problems(world, recovery, UNSET, state) == []


def test_fault_117_a_plan_after_the_group_was_deleted(world: World) -> None:
    """Of an expansion that was cancelled, and without one."""
    recovery = world.plan_approved()
    kill_at(world, recovery, "p4.7.canary.relayed")
    forget(world, "group")
    world.cancel(recovery)
    world.launcher.stop(world.fleet(Role.ORIGINAL), lambda: None)
    forget(world, "group")
    world.publish(400)
    again = world.plan_approved(start="earliest")
    world.run(again)
    await_handled(world)
    assert find_unhandled(world) == []
    assert find_layout_problems(world, again, UNSET, "verified") == []


def start_late_consumers(world: World, recovery: Recovery) -> None:
    """The drain's consumers lose their last commit, until they are started again."""
    world.set_wrong(Role.RECOVERY, LATE=str(world.directory / "late"))
    kill_at(world, recovery, "p4.7.canary.relayed")


@pytest.mark.parametrize("way", ["run", "cancel"])
def test_fault_118_a_lost_last_commit_is_healed_by_a_restart(world: World, way: str) -> None:
    world.patch.setattr(closing, "STALL_SECONDS", 3.0)
    world.patch.setattr(closing, "LOOK_SECONDS", 0.5)
    recovery = world.plan_approved(rate=1)
    start_late_consumers(world, recovery)
    state = end_in(world, recovery, way)
    world.release_holds()
    await_handled(world)
    assert find_unhandled(world) == []
    assert find_layout_problems(world, recovery, UNSET, state) == []
    told = world.told.getvalue()
    assert told.count("are started again, once") == 1
    assert "cannot handle" not in told.partition("are started again, once")[2]


def test_fault_118_what_a_restart_does_not_heal_is_told_with_both_possibilities(
    world: World,
) -> None:
    """Once restarted, and not again and again."""
    world.patch.setattr(closing, "STALL_SECONDS", 2.0)
    world.patch.setattr(closing, "LOOK_SECONDS", 0.5)
    recovery = world.plan_approved(rate=1)
    world.set_speed(Role.RECOVERY, None)
    pids: set[int] = set()

    def stall() -> None:
        world.set_speed(Role.RECOVERY, 0)

    world.at("p4.5.guard.joined", stall)
    say = ExpandContext.say

    def hear(context: ExpandContext, text: str) -> None:
        say(context, text)
        if "cannot handle" in text:
            told.append(text)
            pids.update(world.list_pids(Role.RECOVERY, recovery))
            if len(told) == 2:
                world.set_speed(Role.RECOVERY, None)

    told: list[str] = []
    world.patch.setattr(ExpandContext, "say", hear)
    world.run(recovery)
    assert world.told.getvalue().count("are started again, once") == 1
    assert len(told) >= 2
    assert len(pids) == int(recovery.plan["consumers"])
    assert all("commit" in text and "cannot handle" in text for text in told)
    assert find_unhandled(world) == []
