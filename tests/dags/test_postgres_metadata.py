"""Airflow's own database is PostgreSQL, and two of its API servers take answers."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import httpx
import psycopg
import pytest
from pyspark.sql import SparkSession

from backlogctl.dags.local import guard
from backlogctl.sandbox.secured import HOST, free_port, listens
from backlogctl.values import RecoveryState
from tests.dags.airflow import Airflow, DagRun
from tests.dags.conftest import TakeShop, start_airflow
from tests.dags.slots import Slots
from tests.kit.kafka import wait_until
from tests.kit.services import Postgres

pytestmark = pytest.mark.timeout(900)

METADATA, APPROVE = "airflow_metadata", "rebuild.approve"


@pytest.fixture(scope="module")
def airflow(
    slots: Slots, postgres: Postgres, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Airflow]:
    postgres.execute(f"CREATE DATABASE {METADATA}")
    url = {"AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": postgres.url(METADATA)}
    with start_airflow(tmp_path_factory.mktemp("airflow"), slots.config, **url) as started:
        yield started
    postgres.execute(f"DROP DATABASE {METADATA} WITH (FORCE)")


@pytest.fixture(scope="module")
def second_server(airflow: Airflow) -> Iterator[str]:
    """Address of another API server of the same Airflow."""
    port = free_port()
    command = ("airflow", "api-server", "--apps", "core", "--port", str(port))
    with (airflow.standalone.logs / "second.log").open("wb") as log:
        started = subprocess.Popen(
            [sys.executable, guard.__file__, sys.executable, "-m", *command],
            env=airflow.standalone.environment,
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
        )
    wait_until(lambda: listens(port), 120, "the second API server listens")
    yield f"http://{HOST}:{port}"
    started.communicate(timeout=60)


def answer_on_both(
    airflow: Airflow, postgres: Postgres, run: DagRun, second: str, *options: str
) -> list[int]:
    """Each option by a person at an API server of their own, and what they are told. Both servers
    have read that nobody has answered when the first of them may write."""
    airflow.await_question(run, APPROVE)
    airflow.await_parked(run, APPROVE)
    path = f"{run.task(APPROVE)}/-1/hitlDetails"

    def give(address: str, option: str, user: str) -> int:
        headers = airflow.client(user).headers
        body = {"chosen_options": [option], "params_input": {}}
        return httpx.patch(f"{address}{path}", json=body, headers=headers, timeout=90).status_code

    where = f"host={HOST} port={postgres.port} user=postgres dbname={METADATA}"
    with ThreadPoolExecutor() as people, closing(psycopg.connect(where)) as held:
        held.execute("SELECT * FROM hitl_detail FOR UPDATE")
        given = []
        for number, (address, option, user) in enumerate(
            zip((airflow.standalone.address, second), options, ("second", "admin"), strict=True), 1
        ):
            given.append(people.submit(give, address, option, user))

            def wait(number: int = number) -> bool:
                with psycopg.connect(where) as looking:
                    found = looking.execute(
                        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
                        " AND wait_event_type = 'Lock'"
                    ).fetchone()
                return found is not None and found[0] == number

            wait_until(wait, 60, f"{option} waits for the row")
        held.rollback()
        return [one.result() for one in given]


def test_fault_167_of_two_api_servers_one_takes_the_answer(
    airflow: Airflow,
    take_shop: TakeShop,
    spark: SparkSession,
    postgres: Postgres,
    second_server: str,
) -> None:
    """A no is not lost to a yes a moment later, nor a yes to a no; what was approved is put back."""
    shop = take_shop("asked")
    form = {"stream": shop.stream, "action": "rebuild"}
    run = airflow.trigger("recover_backlog", form)
    answers = (airflow, postgres, run, second_server)
    assert answer_on_both(*answers, "Reject", "Approve") == [200, 409]
    airflow.await_run(run, {"success"})
    assert "rejected by second" in airflow.read_run(run)["note"]

    run = airflow.trigger("recover_backlog", form)
    assert answer_on_both(airflow, postgres, run, second_server, "Approve", "Reject") == [200, 409]
    airflow.await_run(run, {"success"}, within=300)
    ledger = shop.open().ledger
    (verified,) = ledger.recoveries.list(shop.stream, [RecoveryState.VERIFIED])
    assert verified.approved_by == "second"
    assert f"{verified.id}" in airflow.read_run(run)["note"]
    shop.check_same_set()
