"""The way back where no recovery consumer works: the group reads again what was relayed."""

from __future__ import annotations

import json
import signal
from collections import Counter

import pytest

from backlogctl.errors import BacklogError, Refused, UsageError
from backlogctl.fanout.launchers import Role
from backlogctl.replay.engine.brakes import CancelRequested
from backlogctl.replay.engine.plan import LEAVE_CONSUMERS, REWIND
from backlogctl.replay.kinds.expand import canary
from backlogctl.replay.kinds.expand.canary import CanaryFailed
from backlogctl.values import Certainty, Recovery
from tests.kit.kafka import delete_topic
from tests.replay.expand.oracle import (
    SETTINGS,
    await_handled,
    find_layout_problems,
    find_unhandled,
    read_log,
)
from tests.replay.expand.test_requests import find_left, kill_in_the_drain
from tests.replay.expand.world import WITHIN, World

UNSET: dict[str, str | None] = dict.fromkeys(SETTINGS)


def find_problems(world: World, recovery: Recovery) -> list[str]:
    """After a cancel: all is handled, and nothing is left."""
    await_handled(world)
    return find_unhandled(world) + find_layout_problems(world, recovery, UNSET, "cancelled")


def count_repeats(world: World) -> int:
    handled = Counter((line.key, line.sequence) for line in read_log(world))
    return sum(count - 1 for count in handled.values())


def fail_the_canary(world: World, **options: float) -> Recovery:
    """Its consumer handles nothing."""
    recovery = world.plan_approved(**options)
    world.set_speed(Role.RECOVERY, 0)
    world.patch.setattr(canary, "NOTHING_SECONDS", 3.0)
    with pytest.raises(CanaryFailed):
        world.run(recovery)
    return recovery


def test_rewind_doubles_what_was_handled_and_says_so(world: World) -> None:
    recovery = kill_in_the_drain(world)
    world.set_speed(Role.RECOVERY, None)
    killed = world.start("run", recovery.id, crash_at="p4.7.consumers.started")
    killed.communicate(timeout=WITHIN)
    assert world.cancel(recovery, REWIND).state == "cancelled"
    told = world.told.getvalue()
    assert "are handled once more" in told
    again = int(told.partition("at most ")[2].split()[0].replace(",", ""))
    assert find_problems(world, recovery) == []
    assert 0 < count_repeats(world) <= again


def test_fault_01_43_a_rewind_that_is_killed_is_finished_by_the_next_run(world: World) -> None:
    recovery = fail_the_canary(world)
    for point in ("p4.rewind.fenced", "p4.rewind.set", "p4.rewind.started"):
        killed = world.start("cancel", recovery.id, "--rewind", crash_at=point)
        killed.communicate(timeout=WITHIN)
        assert killed.returncode == -signal.SIGKILL, point
        world.publish(40)
    with pytest.raises(CancelRequested):
        world.run(recovery)
    assert find_problems(world, recovery) == []
    assert count_repeats(world) == 0


def test_fault_60_what_was_in_a_topic_that_somebody_deleted(world: World) -> None:
    """It is a gap on record."""
    recovery = kill_in_the_drain(world)
    delete_topic(world.properties, recovery.plan["temporary"]["topic"])
    with pytest.raises(Refused, match="is gone") as caught:
        world.run(recovery)
    assert caught.value.next_commands == (f"backlogctl cancel {recovery.id} --rewind",)
    assert world.cancel(recovery).state == "cancelled"
    gaps = world.open().ledger.gaps.list("orders")
    assert {gap.certainty for gap in gaps} == {Certainty.BOUNDED}
    await_handled(world, 10.0)
    named = {(g.partition, at) for g in gaps for at in range(g.start or 0, g.end or 0)}
    assert find_left(world)
    assert find_left(world) <= named


def test_consumers_that_cannot_be_started_are_left_to_a_person(world: World) -> None:
    """All else is given back; what to do by hand is said; then it can be closed."""
    recovery = fail_the_canary(world, rate=0.001)
    path = world.directory / "backlog.yaml"
    before = path.read_text()
    document = json.loads(before)
    document["streams"]["orders"]["consumers"]["command"] = ["/bin/false"]
    path.write_text(json.dumps(document))
    with pytest.raises(BacklogError, match="own consumers could not be started") as caught:
        world.cancel(recovery)
    leave = f"backlogctl cancel {recovery.id} --leave-consumers"
    assert caught.value.next_commands == (leave,)
    assert "/bin/false" in caught.value.hint
    holders = [hold.holder for hold in world.open().ledger.holds.list(open_only=True)]
    assert recovery.id not in holders
    assert world.cancel(recovery, LEAVE_CONSUMERS).state == "cancelled"
    assert "yourself" in world.told.getvalue()
    path.write_text(before)
    world.start_originals()
    assert find_problems(world, recovery) == []


def test_consumers_that_cannot_be_ended_keep_nobody_from_reading(world: World) -> None:
    """What they had to read is read: the others start, and the retention is given back."""
    recovery = kill_in_the_drain(world)
    world.set_speed(Role.RECOVERY, None)
    path = world.directory / "backlog.yaml"
    before = path.read_text()
    started = world.directory / "started"
    world.set_consumers(
        launcher="command",
        command=None,
        scale=["touch", str(started)],
        stop=["/bin/false", "{group}"],
    )
    with pytest.raises(BacklogError, match=r"could not be ended: .*exit code 1") as caught:
        world.cancel(recovery)
    assert f"`/bin/false {recovery.plan['recovery_group']}` ends all" in caught.value.hint
    leave = f"backlogctl cancel {recovery.id} --leave-consumers"
    assert caught.value.next_commands == (leave,)
    assert "could not be started" not in caught.value.message
    assert started.exists()
    holders = [hold.holder for hold in world.open().ledger.holds.list(open_only=True)]
    assert recovery.id not in holders
    path.write_text(before)
    world.launcher.stop(world.fleet(Role.RECOVERY, recovery), lambda: None)
    assert world.cancel(recovery, LEAVE_CONSUMERS).state == "cancelled"
    world.start_originals()
    assert find_problems(world, recovery) == []


def test_a_way_that_a_kind_does_not_know(world: World) -> None:
    recovery = world.plan_approved()
    with pytest.raises(UsageError, match="--sideways"):
        world.cancel(recovery, "sideways")
