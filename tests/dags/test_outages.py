"""The brokers and the ledger's database go away in the middle of runs, and come back."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from backlogctl.fanout.launchers import Role
from backlogctl.sandbox.embedded import EmbeddedKafka
from backlogctl.values import RecoveryState
from tests.dags.airflow import Airflow, DagRun
from tests.dags.conftest import TakeShop, TakeWorld, make_slots, start_airflow
from tests.dags.expansion import WORK, relaying, start
from tests.dags.slots import Slots
from tests.kit.services import EmbeddedPostgres
from tests.kit.shop import upgrade_ledger
from tests.replay.expand.oracle import judge

pytestmark = pytest.mark.timeout(1200)

CARRY_OUT = "rebuild.carry_out"


@pytest.fixture(scope="module")
def own_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka.start(tmp_path_factory.mktemp("own-kafka")) as running:
        yield running


@pytest.fixture(scope="module")
def database() -> Iterator[EmbeddedPostgres]:
    with EmbeddedPostgres() as running:
        upgrade_ledger(running.url())
        yield running


@pytest.fixture(scope="module")
def slots(
    own_kafka: EmbeddedKafka,
    database: EmbeddedPostgres,
    tmp_path_factory: pytest.TempPathFactory,
) -> Slots:
    place = tmp_path_factory.mktemp("streams")
    return make_slots(place, own_kafka.bootstrap, database.url())


@pytest.fixture(scope="module")
def airflow(slots: Slots, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Airflow]:
    with start_airflow(tmp_path_factory.mktemp("airflow"), slots.config) as started:
        yield started


def go_away(
    airflow: Airflow,
    run: DagRun,
    task_id: str,
    end: Callable[[], None],
    come_back: Callable[[], object],
) -> str:
    """Until the task's try has failed for it; its reason."""
    tried = airflow.read_task(run, task_id)["try_number"]
    end()
    try:
        airflow.await_another_try(run, task_id, tried)
    finally:
        come_back()
    said = airflow.logs(run, task_id, tried)
    print(f"===== {task_id} try {tried}\n{said}\n=====")
    return said


def test_a_rebuild(
    airflow: Airflow, take_shop: TakeShop, own_kafka: EmbeddedKafka, database: EmbeddedPostgres
) -> None:
    shop = take_shop("long")
    recovery = shop.plan_approved().id
    form = {"stream": shop.stream, "action": "rebuild", "recovery": recovery}
    run = airflow.trigger("recover_backlog", form)
    airflow.await_state(run, CARRY_OUT, {"running"}, within=200)
    for end, come_back in (
        (own_kafka.kill, own_kafka.restart),
        (database.kill, database.start),
    ):
        shop.await_progress()
        said = go_away(airflow, run, CARRY_OUT, end, come_back)
        assert "Traceback" not in said
    airflow.await_run(run, {"success"}, within=500)
    print(airflow.read_run(run)["note"], airflow.read_task(run, CARRY_OUT)["try_number"])
    shop.check_same_set()
    (verified,) = shop.open().ledger.recoveries.list(shop.stream, [RecoveryState.VERIFIED])
    assert airflow.read_run(run)["note"].startswith(f"{verified.id} is verified")


def test_an_expansion(
    airflow: Airflow, take_world: TakeWorld, own_kafka: EmbeddedKafka, database: EmbeddedPostgres
) -> None:
    world = take_world()
    one = start(airflow, world)
    with relaying(one):
        database.kill()
        airflow.await_another_try(one.run, WORK, 1)
        database.start()
        print(airflow.logs(one.run, WORK, 1))
        one.await_relayed()
        own_kafka.kill()
        own_kafka.restart()
        one.await_relayed()
        one.go_on()
        airflow.await_run(one.run, {"success"})
    world.release_holds()
    print(airflow.logs(one.run, WORK))
    print(airflow.read_run(one.run)["note"], one.task["try_number"])
    assert judge(world, one.recovery) == []
    assert len(world.list_pids(Role.ORIGINAL)) == 2
