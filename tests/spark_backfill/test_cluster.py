"""Planning and injecting on a real Spark standalone cluster, and what outlives its runner."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Self

import psutil
import pytest

from backlogctl.kafka.admin import list_offsets
from backlogctl.sandbox.embedded import EmbeddedKafka
from backlogctl.sandbox.secured import HOST
from tests.conftest import MakeTopic
from tests.kit.kafka import wait_until
from tests.kit.shop import DONE, LOST, PARTITIONS, TOTAL, Shop
from tests.spark_backfill.standalone import ZOMBIES, StandaloneSpark


@pytest.fixture
def shop(
    kafka: EmbeddedKafka,
    topic: MakeTopic,
    group: str,
    unique: str,
    pg_url: str,
    tmp_path: Path,
    cluster: StandaloneSpark,
) -> Shop:
    """A shop on PostgreSQL that lost its orders, and whose Spark is the cluster."""
    made = Shop(
        directory=tmp_path,
        bootstrap=kafka.bootstrap,
        topic=topic(partitions=PARTITIONS, name="orders"),
        group=group,
        url=pg_url,
        ledger="sqlite:///ledger.db",
        kafka_ledger=f"recovery-ledger-{unique}",
        spark=use(cluster),
    )
    made.lose_orders()
    # Slow enough that, on a busy machine too, each runner of a story leaves work to the next.
    made.write_config(limits={"messages_per_second": 2})
    return made


def use(cluster: StandaloneSpark, **conf: str) -> dict[str, object]:
    """The section `spark` of this cluster."""
    return {"master": cluster.master, "conf": cluster.conf(**conf)}


def has_open_transaction(shop: Shop) -> bool:
    """Whether somebody's transaction holds back the topic's readers."""
    ends, stable = (
        list_offsets(shop.properties, shop.topic, range(PARTITIONS), "latest", isolation)
        for isolation in ("read_uncommitted", "read_committed")
    )
    return ends != stable


def freeze_writers(cluster: StandaloneSpark, shop: Shop) -> list[psutil.Process]:
    """Stops the executors' Python workers while a transaction is open: they become zombies."""
    found: list[psutil.Process] = []

    def is_caught() -> bool:
        if not has_open_transaction(shop):
            return False
        found[:] = cluster.find_tasks()
        for task in found:
            with contextlib.suppress(psutil.NoSuchProcess):  # its slot's work was done
                task.suspend()
        time.sleep(0.1)  # what was sent to the broker is decided
        if found and has_open_transaction(shop):
            return True
        thaw(found)
        return False

    wait_until(is_caught, 120, "an open transaction")
    return found


def thaw(zombies: list[psutil.Process]) -> None:
    """Lets them go on."""
    for zombie in zombies:
        with contextlib.suppress(psutil.NoSuchProcess):
            zombie.resume()


class Story:
    """One recovery whose runners come to grief, one after another."""

    def __init__(self, shop: Shop, cluster: StandaloneSpark, recovery: str) -> None:
        self._shop, self._cluster, self._recovery = shop, cluster, recovery
        self._ledger = shop.open().ledger
        self._runners: list[subprocess.Popen[str]] = []
        self.zombies: list[psutil.Process] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """A runner that outlives its test would keep the cluster's cores from the next one."""
        for runner in self._runners:
            if runner.poll() is None:
                os.killpg(runner.pid, signal.SIGKILL)
                print(runner.communicate())  # what it had to say

    def start(self) -> subprocess.Popen[str]:
        """A runner that has committed a chunk."""
        before = self.count()
        runner = self._shop.start("run", self._recovery, "--json")
        self._runners.append(runner)
        self.await_more(before, runner)
        return runner

    def count(self) -> int:
        """How many messages are injected."""
        return self._ledger.recoveries.get(self._recovery).injected

    def await_more(self, before: int, runner: subprocess.Popen[str]) -> None:
        """Until somebody has committed another chunk."""
        wait_until(lambda: self.count() > before or runner.poll() is not None, 200, "a chunk")
        assert runner.poll() is None, runner.communicate()
        assert self.count() < LOST

    def freeze(self) -> int:
        """What is injected when the writers hang in the middle of a transaction."""
        self.zombies = freeze_writers(self._cluster, self._shop)
        return self.count()

    def wake(self) -> None:
        """The zombies write on, in vain, and end."""
        assert {zombie.status() for zombie in self.zombies} == {psutil.STATUS_STOPPED}
        thaw(self.zombies)
        _, alive = psutil.wait_procs(self.zombies, 120)
        assert alive == []
        seen = self._shop.read_injected()
        assert len(seen) == len(set(seen)), "a zombie wrote a second copy"

    def await_end(self) -> None:
        """Until the cluster has nothing left of a runner."""
        wait_until(lambda: not self._cluster.list_apps(), 90, "the end of the application")
        wait_until(lambda: not self._cluster.find_executors(), 90, "the end of its executors")


@pytest.mark.timeout(900)
def test_a_recovery_on_a_cluster_and_its_zombies(shop: Shop, cluster: StandaloneSpark) -> None:
    """Planned, injected and verified by code that was shipped. An executor, then a driver, is
    killed with SIGKILL while its Python workers hang in the middle of a transaction; they wake up
    when others have gone on in their place. A third runner gets SIGTERM, as when its task is marked
    failed. The set is the same, each message once (faults 1, 2 and 38)."""
    planned = shop.run("plan", "rebuild", "orders", "--json").document
    assert planned["verdict"] == "exact"
    counts = planned["counts"]
    assert (counts["rebuilt"], counts["candidates"], counts["consumed"]) == (LOST, TOTAL, DONE)
    shop.run("approve", planned["id"], "--by", "Ada")
    shop.spark = use(cluster, **{f"spark.executorEnv.{ZOMBIES}": "1"})
    shop.write_config()
    with Story(shop, cluster, planned["id"]) as story:
        runner = story.start()
        (executor,) = cluster.find_executors()
        before = story.freeze()
        executor.kill()
        story.await_more(before, runner)
        story.wake()

        story.freeze()
        os.killpg(runner.pid, signal.SIGKILL)
        runner.communicate()
        story.await_end()
        runner = story.start()
        story.wake()

        runner.terminate()
        story.await_end()
        out, err = runner.communicate(timeout=400)
        assert runner.returncode == 4, (out, err)
        # Its last commit's markers may still be written: one that was left open stays for 15 s.
        wait_until(lambda: not has_open_transaction(shop), 5, "no transaction is open")
        assert len(shop.read_injected()) == story.count() < LOST

    assert shop.run("run", planned["id"], "--json").document["state"] == "verified"
    shop.check_same_set()


def test_a_cluster_that_has_no_room_is_named(shop: Shop, cluster: StandaloneSpark) -> None:
    conf = {"spark.executor.memory": "50g", "spark.backlogctl.startTimeout": "3s"}
    shop.spark = use(cluster, **conf)
    shop.write_config()
    error = shop.run("plan", "rebuild", "orders", "--json", code=1).error
    assert error["code"] == "spark"
    assert error["message"] == "no executor took a task within 3 s"
    assert error["subject"] == cluster.master
    assert "spark.executor.memory" in error["hint"]
    assert error["retryable"]
    wait_until(lambda: not cluster.list_apps(), 90, "the end of the application")


def test_a_master_that_cannot_be_reached_is_named(shop: Shop) -> None:
    nowhere = f"spark://{HOST}:1"
    shop.spark = {"master": nowhere, "conf": {}}
    shop.write_config()
    error = shop.run("plan", "rebuild", "orders", "--json", code=1).error
    assert error["code"] == "spark"
    assert error["subject"] == nowhere
    # Spark itself would ask for a minute, and say that all masters are unresponsive.
    assert "Connection refused" in error["message"]
