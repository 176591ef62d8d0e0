"""Fault 1: killed at every point, run again, the same set. And the oracle can fail."""

from __future__ import annotations

from pathlib import Path

import pytest

from backlogctl.sandbox.embedded import EmbeddedKafka
from tests.crash.points import POINTS
from tests.crash.runner import read_copies, start_runner
from tests.crash.scenario import judge, make_scenario
from tests.crash.schedule import Kill, Schedule, run_schedule

pytestmark = pytest.mark.timeout(900)
WITHIN = 150.0  # seconds; the first runner waits for the imports


@pytest.mark.parametrize("point", POINTS)
def test_fault_01_killed_at_a_step_and_run_again_gives_the_same_set(
    kafka: EmbeddedKafka, tmp_path: Path, point: str
) -> None:
    scenario = make_scenario(kafka.bootstrap, tmp_path, chunks=1, messages=20)
    writer = "stumbling" if point.startswith("p3.6") else "transactional"
    # p3.6 happens once in a run; elsewhere the second slot is hit, with one already committed.
    times = 1 if point.startswith("p3.6") else 2
    killed = start_runner(tmp_path, crash_at=f"{point}:{times}", writer=writer)
    killed.join(WITHIN)
    assert killed.exitcode == -9, "the point was not reached"
    again = start_runner(tmp_path)
    again.join(WITHIN)
    assert again.exitcode == 0
    assert judge(scenario.job).is_same_set
    # The copy in SQL is complete too, whichever run a chunk was committed in.
    assert {(slot, number) for slot, number, _ in read_copies(tmp_path)} == {
        (chunk.slot, chunk.number) for chunk in scenario.job.manifest.chunks
    }


def test_the_oracle_sees_a_ledger_record_outside_of_the_transaction(
    kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    scenario = make_scenario(kafka.bootstrap, tmp_path)
    killed = start_runner(tmp_path, crash_at="p3.5.commit.after:2", writer="broken")
    killed.join(WITHIN)
    assert killed.exitcode == -9
    again = start_runner(tmp_path, writer="broken")
    again.join(WITHIN)
    assert again.exitcode == 0
    assert judge(scenario.job).doubled == 50


def test_the_oracle_sees_a_message_that_is_not_there(kafka: EmbeddedKafka, tmp_path: Path) -> None:
    scenario = make_scenario(kafka.bootstrap, tmp_path)
    assert judge(scenario.job).missing == 300


@pytest.mark.parametrize("seed", range(7000, 7006))
def test_fault_01_random_schedules(kafka: EmbeddedKafka, tmp_path: Path, seed: int) -> None:
    schedule = Schedule.draw(seed)
    verdict = run_schedule(kafka.bootstrap, tmp_path, schedule)
    assert verdict.is_good, f"{schedule}: {verdict}"


def test_a_schedule_is_the_same_for_the_same_seed() -> None:
    assert Schedule.draw(11) == Schedule.draw(11)
    assert Schedule.draw(11) != Schedule.draw(12)
    assert str(Kill(point="p3.2.init.before:1")) == "p3.2.init.before:1"
