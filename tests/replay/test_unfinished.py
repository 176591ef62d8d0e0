"""Fault 113: a plan, or Spark under a run, is killed; what a plan has staged till then goes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import psutil
import pytest
from py4j.protocol import Py4JNetworkError  # type: ignore[import-untyped]
from pydantic import SecretStr
from pyspark import SparkContext

from backlogctl.errors import KafkaFailure, LedgerError
from backlogctl.ledger.events import Owner
from backlogctl.replay.engine.kind import Workspace
from backlogctl.replay.injection.storing import _undoing as undoing
from backlogctl.replay.injection.storing import clear_unfinished
from backlogctl.spark_backfill.failures import SparkEnded, planning_into, translating
from tests.conftest import await_tasks
from tests.kit.kafka import wait_until
from tests.kit.processes import ROOT
from tests.kit.shop import LOST, Shop

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ID = "r-20261121-0001-abcdef"
KILLED = """
import os, signal, sys
from pathlib import Path
from backlogctl.config import load_config
from backlogctl.replay.injection.storing import _undoing
from backlogctl.replay.opening import open_workspace
desk = open_workspace(load_config(Path("backlog.yaml")))
with _undoing(desk, sys.argv[1]):
    (desk.staging_of(sys.argv[1]) / "rows").write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_fault_113_what_a_killed_plan_has_staged_is_removed_by_the_next(
    desk: Workspace, tmp_path: Path
) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    words = [sys.executable, "-c", KILLED, ID]
    killed = subprocess.run(words, cwd=tmp_path, env=environment, check=False)
    assert killed.returncode == -signal.SIGKILL
    directory = desk.staging_of(ID)
    assert (directory / "rows").exists()
    said: list[str] = []
    # One that is being made stays.
    with undoing(desk, "r-20261121-0002-abcdef"):
        clear_unfinished(desk, said.append)
        assert [path.name for path in directory.parent.glob("r-*")] == ["r-20261121-0002-abcdef"]
    assert said == [f"removed {directory}: its process ended before the plan was on record"]


def test_fault_113_one_of_another_machine_is_named_after_a_day(desk: Workspace) -> None:
    directory, said = desk.staging_of(ID), list[str]()
    directory.mkdir(parents=True)
    mark = directory.with_name(f".planning-{ID}")
    owner = asdict(Owner("elsewhere", 7, "boot/namespace/1"))
    mark.write_text(json.dumps({"ledger": "another", "owner": owner}))
    clear_unfinished(desk, said.append)
    assert said == []
    os.utime(mark, (0, 0))
    clear_unfinished(desk, said.append)
    assert "process elsewhere:7 began it, and has not planned it yet" in said[0]
    assert directory.is_dir()


def test_fault_113_of_a_plan_on_record_only_the_mark_goes(
    desk: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a loss of power the mark may be there again, and its process is gone."""
    monkeypatch.setattr(desk.ledger.recoveries, "get", lambda recovery_id: recovery_id)
    with undoing(desk, ID):
        mark = next(desk.config.staging.dir.glob(".planning-*"))
        gone = mark.read_text().replace(f'"pid": {os.getpid()}', '"pid": 4194305')
    mark.write_text(gone)
    clear_unfinished(desk, pytest.fail)
    assert [path.name for path in desk.config.staging.dir.iterdir()] == [ID]


def test_fault_113_another_ledgers_plan_stays(
    desk: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two directories with a `ledger.db` each share the staging directory."""
    config = desk.config.model_copy(update={"ledger": SecretStr("sqlite:///ledger.db")})
    desk = replace(desk, config=config)
    monkeypatch.chdir(tmp_path)
    with undoing(desk, ID):
        mark = next(desk.config.staging.dir.glob(".planning-*"))
        gone = mark.read_text().replace(f'"pid": {os.getpid()}', '"pid": 4194305')
    mark.write_text(gone)
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    clear_unfinished(desk, pytest.fail)
    assert desk.staging_of(ID).is_dir()
    monkeypatch.chdir(tmp_path)
    clear_unfinished(desk, lambda said: None)
    assert not desk.staging_of(ID).exists()


def test_fault_113_a_plan_whose_ledger_goes_away_leaves_nothing(
    desk: Workspace, tmp_path: Path
) -> None:
    """It was not put on record yet, so nobody has to ask the ledger."""

    def damage() -> None:
        for path in tmp_path.glob("ledger.db*"):
            path.write_bytes(b"damaged" * 1000)
        desk.ledger.recoveries.get(ID)

    with pytest.raises(LedgerError), undoing(desk, ID):
        damage()
    assert list(desk.config.staging.dir.iterdir()) == []


@pytest.mark.spark
def test_fault_113_tasks_that_still_write_are_ended_first(
    spark: SparkSession, desk: Workspace
) -> None:
    """One task has failed, another one is at work: its folder would be there again.

    Who ends the workers for Spark is busy elsewhere for some seconds."""
    target = str(desk.staging_of(ID))
    spark.sparkContext.parallelize([0]).foreach(print)
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    daemons = psutil.Process(jvm.java.lang.ProcessHandle.current().pid()).children()

    def write(number: int) -> None:
        import pathlib
        import time

        path = pathlib.Path(target, "rows", str(number))
        if number == 0:
            while not path.with_name("1").exists():
                time.sleep(0.01)
            raise RuntimeError
        for _ in range(3000):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("a row")
            time.sleep(0.01)

    def resume() -> None:
        for daemon in daemons:
            daemon.resume()

    def fail() -> None:
        try:
            spark.sparkContext.parallelize([0, 1], 2).foreach(write)
        finally:
            for daemon in daemons:
                daemon.suspend()
            threading.Timer(4, resume).start()

    with pytest.raises(Exception, match="RuntimeError"), undoing(desk, ID):
        fail()
    await_tasks()
    assert list(desk.config.staging.dir.iterdir()) == []


def test_fault_113_the_end_of_the_jvm_is_said_as_that(monkeypatch: pytest.MonkeyPatch) -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        process.kill()
    monkeypatch.setattr(SparkContext, "_gateway", SimpleNamespace(proc=process))
    for error in (Py4JNetworkError("Error while sending or receiving"), ConnectionRefusedError()):
        with (
            pytest.raises(SparkEnded, match="Spark's JVM ended by SIGKILL, as the system does"),
            translating("read", subject="topic orders", hint="hold it", kind=KafkaFailure),
        ):
            raise error
        with pytest.raises(SparkEnded, match="could not make the plan"), planning_into("/s/r-1"):
            raise error


@pytest.mark.spark
@pytest.mark.timeout(900)
def test_fault_113_the_jvm_is_killed_in_mid_run(shop: Shop) -> None:
    """As the system does where memory is short: said in one line, and the next run goes on."""
    shop.write_config(limits={"messages_per_second": 15})
    recovery = shop.plan_approved().id
    ledger = shop.open().ledger
    runner = shop.start("run", recovery, "--json")
    wait_until(lambda: ledger.recoveries.get(recovery).injected > 0, 400, "the first chunk")
    (java,) = psutil.Process(runner.pid).children()
    java.kill()
    out, err = runner.communicate(timeout=400)
    assert (runner.returncode, json.loads(out)["error"]["code"]) == (1, "spark_ended")
    assert "Traceback" not in err
    counts = shop.call("run", recovery, "--json").document["counts"]
    assert counts["injected"] + counts["skipped"] == LOST
    shop.check_same_set()
