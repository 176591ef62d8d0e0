"""`emergency_offload`: from the form to the archive, and back at night; marked failed meanwhile."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from backlogctl.fanout.launchers import Role
from tests.dags.airflow import Airflow
from tests.dags.offloads import APPROVE, RESTORE, WORK, SlotOffload, start_offload, take_offload
from tests.dags.slots import Slots
from tests.kafka_tools import wait_until
from tests.replay.offload.world import find_place

NIGHT = "nightly_backfill"
pytestmark = pytest.mark.timeout(900)


@pytest.fixture
def world(airflow: Airflow, slots: Slots, monkeypatch: pytest.MonkeyPatch) -> Iterator[SlotOffload]:
    made = take_offload(slots, monkeypatch)
    yield made
    made.end()


def test_fault_43_marked_failed_while_it_archives(airflow: Airflow, world: SlotOffload) -> None:
    """Nothing was deleted yet: the consumers are started, and the archive is thrown away."""
    one = start_offload(airflow, world)
    before = world.read_lows()
    airflow.answer(one.run, APPROVE)
    one.await_step("archive")
    process = airflow.find_task(one.run, WORK)
    airflow.mark(one.run, "failed")
    airflow.await_run(one.run, {"failed"}, within=300)
    wait_until(lambda: not process.is_running(), 90, "its process ends")
    assert airflow.read_states(one.run)[RESTORE] == "success"
    assert one.now.state == "cancelled"
    assert world.read_lows() == before
    assert len(world.list_pids(Role.ORIGINAL)) == 2
    assert not list(find_place(one.recovery).rglob("*.parquet"))
    assert world.open().ledger.gaps.list(world.stream) == ()
