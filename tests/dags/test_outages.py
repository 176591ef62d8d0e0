"""The brokers and the ledger's database go away in the middle of runs, and come back."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from backlogctl.fanout.launchers import Role
from backlogctl.sandbox.embedded import EmbeddedKafka
from tests.dags.airflow import Airflow, DagRun
from tests.dags.conftest import TakeShop, TakeWorld, make_slots, start_airflow
from tests.dags.expansion import WORK, relaying, start
from tests.dags.slots import Slots
from tests.kit.kafka import wait_until
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


def await_said(airflow: Airflow, run: DagRun, task_id: str, words: str) -> None:
    """Waits until the task's try has these words in its log."""
    with airflow.explaining(run):
        wait_until(lambda: words in airflow.logs(run, task_id), 240, words)


def test_a_rebuild_waits_for_brokers_and_ledger(
    airflow: Airflow, take_shop: TakeShop, own_kafka: EmbeddedKafka, database: EmbeddedPostgres
) -> None:
    """Its one try says who is away, and goes on when they are back: each message once."""
    shop = take_shop("long")
    recovery = shop.plan_approved().id
    form = {"stream": shop.stream, "action": "rebuild", "recovery": recovery}
    run = airflow.trigger("recover_backlog", form)
    airflow.await_state(run, CARRY_OUT, {"running"}, within=200)
    shop.await_progress()
    own_kafka.kill()
    await_said(airflow, run, CARRY_OUT, "is away since")
    own_kafka.restart()
    shop.await_progress()
    database.kill()
    await_said(airflow, run, CARRY_OUT, "the ledger has not answered since")
    database.start()
    airflow.await_run(run, {"success"}, within=500)
    shop.check_same_set()
    assert airflow.read_task(run, CARRY_OUT)["try_number"] == 1
    assert airflow.read_run(run)["note"].startswith(f"{recovery} is verified")


def read_page(airflow: Airflow, path: str = "") -> tuple[int, str]:
    """Status and text of our page within Airflow, whose own pages answer meanwhile."""
    answer = airflow.client().get(f"/backlogctl/{path}")
    assert airflow.get("/api/v2/plugins")
    return answer.status_code, answer.text


def test_an_expansion_waits_for_brokers_and_ledger(
    airflow: Airflow, take_world: TakeWorld, own_kafka: EmbeddedKafka, database: EmbeddedPostgres
) -> None:
    """In the middle of its relay; nothing is lost or doubled, and the consumers run again."""
    world = take_world()
    one = start(airflow, world)
    with relaying(one):
        database.kill()
        await_said(airflow, one.run, WORK, "the ledger has not answered since")
        status, page = read_page(airflow)
        assert (status, "The ledger does not answer" in page) == (503, True), page
        database.start()
        await_said(airflow, one.run, WORK, "the ledger answers again, after")
        wait_until(lambda: one.recovery.id in read_page(airflow)[1], 60.0, "the page has it again")
        one.await_relayed()
        own_kafka.kill()
        await_said(airflow, one.run, WORK, "is away since")
        status, page = read_page(airflow, f"recoveries/{one.recovery.id}")
        assert (status, "running" in page) == (200, True), page
        own_kafka.restart()
        one.await_relayed()
        one.go_on()
        airflow.await_run(one.run, {"success"})
    world.release_holds()
    assert one.task["try_number"] == 1
    assert airflow.read_run(one.run)["note"].startswith(f"{one.recovery.id} is verified")
    assert judge(world, one.recovery) == []
    assert len(world.list_pids(Role.ORIGINAL)) == 2


def test_a_dag_paused_in_mid_work_goes_on_when_it_is_unpaused(
    airflow: Airflow, take_world: TakeWorld
) -> None:
    """Airflow ends what runs, and starts nothing after it: that is told, and what it needs."""
    world = take_world()
    one = start(airflow, world)
    with relaying(one):
        with airflow.paused("recover_backlog"):
            one.go_on()
            airflow.await_state(one.run, WORK, {"success"}, within=300)
            assert one.now.state == "verified"
            look = airflow.trigger("detect_backlog", {"streams": [world.stream]})
            airflow.await_state(look, "tell_paused", {"failed"}, within=300)
            told = airflow.xcom(look, "tell_paused", "reason")
            assert "recover_backlog is paused, and has work" in told
            assert airflow.read_states(one.run)["report"] in (None, "none", "scheduled")
        airflow.await_run(one.run, {"success"}, within=300)
    world.release_holds()
    assert judge(world, one.recovery) == []
