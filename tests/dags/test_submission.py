"""Spark work by a driver that a real spark-submit starts, without Airflow around the task."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from sqlalchemy import make_url

from backlogctl.errors import BacklogError
from backlogctl.replay.engine.approval import approve_plan
from backlogctl.replay.engine.kind import Workspace
from backlogctl.replay.engine.plan import name_origin
from backlogctl.replay.kinds import REBUILD
from backlogctl.replay.runbooks.driver import ALIVE, APPLICATION, read_outcome, write_submission
from backlogctl.sandbox.embedded import EmbeddedKafka
from backlogctl.values import RecoveryState
from tests.conftest import MakeTopic
from tests.dags.submitting import GRACE, Tasks, know, make_environment
from tests.kit.kafka import wait_until
from tests.kit.processes import is_running
from tests.kit.shop import LOCAL_SPARK, LOST, PARTITIONS, Shop
from tests.spark_backfill.standalone import StandaloneSpark

pytestmark = pytest.mark.timeout(600)
S = RecoveryState
ORIGIN = name_origin("recover_backlog", "run-1", deployment="d-1").model_dump()
PASSWORD = "hunter2-of-the-shop"


@pytest.fixture
def shop(
    kafka: EmbeddedKafka,
    topic: MakeTopic,
    group: str,
    unique: str,
    pg_url: str,
    tmp_path: Path,
) -> Shop:
    """One that lost orders, and whose database is a connection of Airflow's."""
    made = Shop(
        directory=tmp_path,
        bootstrap=kafka.bootstrap,
        topic=topic(partitions=PARTITIONS, name="orders"),
        group=group,
        url=pg_url,
        ledger="sqlite:///ledger.db",
        kafka_ledger=f"recovery-ledger-{unique}",
    )
    made.lose_orders()
    made.write_config(limits={"messages_per_second": 1})
    return made


@pytest.fixture
def tasks(shop: Shop, cluster: StandaloneSpark) -> Iterator[Tasks]:
    """Of an Airflow that knows a cluster to submit to, and the shop's database."""
    database = make_url(shop.url)
    config = shop.directory / "backlog.yaml"
    document = json.loads(config.read_text())
    document["sources"]["shop"] = {"conn_id": "shop_db"}
    own = shop.directory / "airflow.yaml"
    own.write_text(json.dumps(document))
    made = Tasks(
        {
            **make_environment(own),
            **know("backlogctl_spark", host=cluster.master, extra=cluster.conf(**CLIENT)),
            **know(
                "shop_db",
                conn_type="postgres",
                host=database.host,
                port=database.port,
                login=database.username,
                password=PASSWORD,
                schema=database.database,
            ),
        }
    )
    yield made
    made.end()


CLIENT = {"deploy-mode": "client"}


def plan(tasks: Tasks, desk: Workspace) -> str:
    """Planned by a driver, approved here."""
    form = {"stream": "orders", "action": "rebuild"}
    recovery = tasks.run("plan", form=form, kind="rebuild", origin=ORIGIN)
    planned = desk.ledger.recoveries.get(recovery)
    assert planned.plan["planned_by"]["user"] == "grace"
    approve_plan(desk, planned, by="tester")
    return str(recovery)


def start_work(tasks: Tasks, shop: Shop, recovery: str) -> list[psutil.Process]:
    """The task and all that it started, once some of the messages are put back."""
    sent = len(shop.read_injected())
    task = tasks.start("carry_on", recovery=recovery, resumed=False)
    wait_until(lambda: len(shop.read_injected()) > sent, 120, "it puts messages back")
    me = psutil.Process(task.pid)
    family = [me, *me.children(recursive=True)]
    assert "main.py" in " ".join(word for one in family for word in one.cmdline())
    return family


def await_end(family: list[psutil.Process], within: float) -> None:
    wait_until(lambda: not any(is_running(one.pid) for one in family), within, "all has ended")


def check_interrupted(desk: Workspace, shop: Shop, recovery: str) -> None:
    """It stopped between two waves, and somebody else may go on."""
    found = desk.ledger.recoveries.get(recovery)
    assert (found.state, found.detail["why"]) == (S.PAUSED, "interrupted")
    assert desk.ledger.leases.find_runner(recovery) is None
    assert len(shop.read_injected()) < LOST, "it had time to end"


def test_fault_159_a_driver_ends_with_its_task_and_the_next_one_goes_on(
    tasks: Tasks, shop: Shop, cluster: StandaloneSpark
) -> None:
    """Planned and put back by drivers of a standalone cluster; the first is ended with its task."""
    desk = shop.open()
    recovery = plan(tasks, desk)
    family = start_work(tasks, shop, recovery)
    family[0].send_signal(signal.SIGTERM)
    code, said = tasks.await_end()
    assert code != 0
    assert "PausedBecause" in said
    await_end(family, 30)
    check_interrupted(desk, shop, recovery)
    assert cluster.list_apps() == []

    done = tasks.run("carry_on", recovery=recovery, resumed=False)
    assert done["document"]["state"] == "verified"
    shop.check_same_set()
    assert list(desk.config.staging.dir.glob("submission-*")) == []


def test_fault_159_a_driver_whose_task_was_killed_stops_by_itself(tasks: Tasks, shop: Shop) -> None:
    desk = shop.open()
    recovery = plan(tasks, desk)
    family = start_work(tasks, shop, recovery)
    os.kill(family[0].pid, signal.SIGKILL)
    await_end(family, 150)
    assert tasks.await_end()[0] == -signal.SIGKILL
    check_interrupted(desk, shop, recovery)
    tasks.run("carry_on", recovery=recovery, resumed=False)
    shop.check_same_set()
    assert list(desk.config.staging.dir.glob("submission-*")) == []


def test_a_plan_by_a_driver_on_the_workers_machine(shop: Shop) -> None:
    spark = know("backlogctl_spark", host="local[2]", extra=CLIENT)
    tasks = Tasks({**make_environment(shop.directory / "backlog.yaml"), **spark})
    desk = shop.open()
    planned = desk.ledger.recoveries.get(plan(tasks, desk))
    assert REBUILD.read_plan(planned).outcome.counts.rebuilt == LOST


def test_a_driver_without_the_connector_says_so(shop: Shop) -> None:
    """In cluster mode its image has it, or not."""
    environment = make_environment(shop.directory / "backlog.yaml")
    folder = shop.directory / "submission"
    request = {
        "verb": "plan",
        "args": {"form": {"stream": "orders"}, "kind": "rebuild", "origin": ORIGIN},
        "approver": GRACE.to_json(),
        "config": environment["BACKLOG_CONFIG"],
        "spark": LOCAL_SPARK,
    }
    write_submission(folder, request)
    words = ["spark-submit", "--master", "local[2]", str(folder / APPLICATION)]
    driver = subprocess.Popen(words, env={**os.environ, **environment})

    def is_over() -> bool:
        (folder / ALIVE).write_text(str(time.monotonic()))  # as its task does
        return driver.poll() is not None

    wait_until(is_over, 300, "the driver ends")
    with pytest.raises(BacklogError, match="without Spark's Kafka connector"):
        read_outcome(folder)
