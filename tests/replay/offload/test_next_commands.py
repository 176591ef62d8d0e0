"""Each standing of an offload: the commands that are printed lead to an end, and lose nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from backlogctl.errors import Refused
from backlogctl.fanout.launchers import Role
from backlogctl.values import GapState, Recovery
from tests.kit.kafka import set_offsets_raw, wait_until
from tests.replay.expand.oracle import read_log
from tests.replay.expand.world import WITHIN
from tests.replay.offload.conftest import READ
from tests.replay.offload.world import OffloadWorld


def kill_in_the_archive(world: OffloadWorld) -> Recovery:
    recovery = world.plan_approved()
    killed = world.start("run", recovery.id, crash_at="p5.4.archived")
    killed.communicate(timeout=WITHIN)
    return recovery


def set_forward_before_it_is_moved(world: OffloadWorld) -> Recovery:
    """What somebody skips then is in no archive once the offload is taken back."""
    recovery = world.plan_approved()
    world.at(
        "p5.4.recorded",
        lambda: set_offsets_raw(world.properties, world.group, world.topic, {0: 50}),
    )
    with pytest.raises(Refused, match=rf"partition 0 from {READ} to 50") as caught:
        world.run(recovery)
    assert world.read_lows() == {0: 0, 1: 0}
    assert world.read_commits() == {0: 50, 1: READ}
    assert world.open().ledger.gaps.list("orders") == ()
    assert caught.value.next_commands == (f"backlogctl cancel {recovery.id}",)
    return recovery


ARCHIVE = ("plan redrive orders --from archive:R", "approve P --by NAME", "run P")


@dataclass(frozen=True)
class Case:
    """A standing, and how the commands that are printed begin."""

    arrange: Callable[[OffloadWorld], Recovery]
    typed: tuple[str, ...]


CASES = {
    "the runner was killed": Case(kill_in_the_archive, ("run R", *ARCHIVE)),
    "the group was set forward before": Case(
        set_forward_before_it_is_moved,
        ("cancel R", "plan redrive orders --from log --offsets 0:10-49", *ARCHIVE[1:]),
    ),
}


@pytest.mark.spark
@pytest.mark.parametrize("name", CASES)
def test_faults_122_and_123_the_commands_that_are_printed_lead_to_an_end(
    idle: OffloadWorld, name: str
) -> None:
    """Each message is handled, and no gap is left."""
    case = CASES[name]
    recovery = case.arrange(idle)
    idle.set_speed(Role.ORIGINAL, None)
    typed = idle.follow(recovery)
    assert tuple(typed) == case.typed
    wanted = {(key, n) for key, many in idle.produced.items() for n in range(many)}
    wanted -= {row[2:] for row in idle.read_before}
    wait_until(
        lambda: wanted <= {(line.key, line.sequence) for line in read_log(idle)},
        WITHIN,
        "each message is handled",
    )
    gaps = idle.open().ledger.gaps.list("orders")
    assert {gap.state for gap in gaps} <= {GapState.VERIFIED, GapState.WAIVED}
