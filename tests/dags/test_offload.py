"""`emergency_offload`: from the form to the archive, and back at night; marked failed meanwhile."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from fanout.launchers import Role
from tests.dags.airflow import Airflow
from tests.dags.offloads import APPROVE, RESTORE, WORK, SlotOffload, start_offload, take_offload
from tests.dags.slots import Slots
from tests.kafka_tools import wait_until
from tests.replay.expand.oracle import await_handled, read_log
from tests.replay.offload.world import find_place, judge_offload, read_archive

NIGHT = "nightly_backfill"
pytestmark = pytest.mark.timeout(900)


@pytest.fixture
def world(airflow: Airflow, slots: Slots, monkeypatch: pytest.MonkeyPatch) -> Iterator[SlotOffload]:
    made = take_offload(slots, monkeypatch)
    yield made
    made.end()


def test_fault_38_from_the_form_to_the_archive_and_back_at_night(
    airflow: Airflow, world: SlotOffload
) -> None:
    """Its task is killed while it archives; the next try goes on."""
    one = start_offload(airflow, world, note="INC-4711")
    asked = airflow.get(f"{one.run.task(APPROVE)}/-1/hitlDetails")
    assert asked["subject"].startswith("Offload at most 1,")
    assert asked["subject"].endswith(f" of {world.stream} ({one.recovery.id})")
    for told in ("**Stops**", "**Moves**", "**Frees**", "**Gives back**", "INC-4711"):
        assert told in asked["body"], asked["body"]
    assert one.now.state == "planned", "whatever the stream's approval is: a person says yes"
    assert len(world.list_pids(Role.ORIGINAL)) == 2

    airflow.answer(one.run, APPROVE)
    one.await_step("archive")
    airflow.find_task(one.run, WORK).kill()
    airflow.await_run(one.run, {"success"}, within=400)
    assert airflow.read_task(one.run, WORK)["try_number"] == 2
    assert judge_offload(world, one.recovery) == []
    (outcome,) = airflow.xcom(one.run, "report")["outcomes"]
    assert (outcome["kind"], outcome["state"]) == ("offload", "verified")

    archived = Counter(row[2:] for row in read_archive(one.recovery))
    night = airflow.trigger(NIGHT, {"streams": [world.stream]})
    airflow.await_run(night, {"success"}, within=400)
    work = airflow.read_mapped(night, "stream.plan_night", 0)
    assert (work["action"], work["why"]) == ("run", "an exact plan, approved by itself")
    there = Counter(row[2:] for row in world.read_topic())
    assert {message: there[message] for message in archived} == archived, "each once"
    assert world.open().ledger.gaps.list_waiting(world.stream) == ()
    await_handled(world)
    handled = Counter((line.key, line.sequence) for line in read_log(world))
    assert {message: handled[message] for message in archived} == archived, "each once"


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
