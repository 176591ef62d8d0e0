"""Fault 1 of an offload: killed after every step of P5, and in the night after it; nothing is lost,
nothing is put back twice.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from backlogctl.errors import LeaseHeld
from backlogctl.replay.engine.brakes import CancelRequested
from backlogctl.replay.kinds.offload.plan import FORWARD
from backlogctl.sandbox.embedded import EmbeddedKafka
from backlogctl.values import Recovery
from tests.crash.offload.schedule import OffloadSchedule, make_crash_world, run_offload
from tests.crash.offload.world import CrashWorld, judge_cancelled, judge_end, judge_offloaded
from tests.crash.points import OFFLOAD_POINTS
from tests.kit.processes import ROOT
from tests.replay.offload.world import find_place

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(900)
SEED = 4711
BACK_POINTS = ("p3.5.produce.middle:1", "p3.5.commit.after:2")


@pytest.fixture
def world(kafka: EmbeddedKafka, spark: SparkSession, tmp_path: Path) -> Iterator[CrashWorld]:
    with make_crash_world(kafka.bootstrap, tmp_path, SEED) as made:
        yield made


def kill_at(world: CrashWorld, recovery: Recovery, point: str) -> None:
    assert world.kill(recovery, point), f"{point} was not reached"
    assert world.read(recovery).state == "running"


def put_back(world: CrashWorld, *points: str) -> Recovery:
    """What waits in the archive, by runs that are killed first."""
    back = world.plan_putting_back()
    for point in points:
        kill_at(world, back, point)
    assert world.finish(back) == []
    return back


@pytest.mark.parametrize(
    ("points", "back_points"),
    [(OFFLOAD_POINTS[1::20], BACK_POINTS[1:]), (OFFLOAD_POINTS, BACK_POINTS)],
    ids=["every twentieth", "each"],
)
def test_fault_01_20_killed_at_one_step_after_the_other(
    world: CrashWorld, points: tuple[str, ...], back_points: tuple[str, ...]
) -> None:
    """Each run begins where the one before was killed; a transaction is open across the fence."""
    world.traffic.begin(30)
    world.traffic.mix(30)
    recovery = world.plan_approved()
    for point in points:
        kill_at(world, recovery, point)
        world.traffic.mix(20)
    assert world.finish(recovery) == []
    assert judge_offloaded(world, recovery) == []
    world.traffic.end_open(commit=True)
    back = put_back(world, *back_points)
    assert judge_end(world, recovery, back) == []


def test_fault_01_killed_in_the_archive_and_cancelled(world: CrashWorld) -> None:
    """As if there had been no offload."""
    recovery = world.plan_approved()
    kill_at(world, recovery, "p5.4.batch.noted")
    world.traffic.mix(20)
    world.cancel(recovery)
    assert not find_place(recovery).exists()
    assert judge_cancelled(world, recovery) == []


def test_fault_01_43_a_cancel_from_the_move_on_goes_forward_also_when_it_is_killed(
    world: CrashWorld,
) -> None:
    recovery = world.plan_approved()
    kill_at(world, recovery, "p5.5.gaps")
    for point in ("p5.6.before", "p5.7.started"):
        killed = world.start("cancel", recovery.id, crash_at=point)
        killed.communicate(timeout=400)
        assert killed.returncode == -9, point
        world.traffic.mix(20)
    with pytest.raises(CancelRequested):
        world.run(recovery)
    assert judge_offloaded(world, recovery, "cancelled") == []
    assert judge_end(world, recovery, put_back(world)) == []


def test_fault_02_a_stopped_runner_wakes_up_when_all_is_over(world: CrashWorld) -> None:
    recovery = world.plan_approved()
    stopped = world.stop(recovery, "p5.6.before")
    assert world.finish(recovery) == []
    assert world.wake(stopped).startswith(f"{LeaseHeld.exit_code} ")
    assert judge_offloaded(world, recovery) == []


def test_fault_02_a_stopped_runner_wakes_up_after_a_cancel_and_decides_nothing(
    world: CrashWorld,
) -> None:
    """It was about to move the group: its archive is thrown away by now."""
    recovery = world.plan_approved()
    stopped = world.stop(recovery, "p5.5.confirmed")
    world.cancel(recovery)
    assert world.wake(stopped).startswith(f"{LeaseHeld.exit_code} ")
    assert judge_cancelled(world, recovery) == []
    assert FORWARD not in [e.action for e in world.open().ledger.events.list(recovery.id)]


@pytest.mark.parametrize("seed", [8100, 9004])
def test_fault_01_random_schedules(
    kafka: EmbeddedKafka, spark: SparkSession, tmp_path: Path, seed: int
) -> None:
    schedule = OffloadSchedule.draw(seed)
    verdict = run_offload(kafka.bootstrap, tmp_path, schedule)
    assert verdict.is_good, f"{schedule}: {verdict}"


def test_a_schedule_is_the_same_for_the_same_seed() -> None:
    assert OffloadSchedule.draw(11) == OffloadSchedule.draw(11)
    assert OffloadSchedule.draw(11) != OffloadSchedule.draw(12)


def test_every_point_of_an_offload_is_listed() -> None:
    found: set[str] = set()
    for room in ("replay/kinds/offload", "spark_backfill/archive"):
        for path in (ROOT / room).rglob("*.py"):
            found.update(re.findall(r'reach\("(p5[^"]+)"\)', path.read_text()))
    assert found == set(OFFLOAD_POINTS)
