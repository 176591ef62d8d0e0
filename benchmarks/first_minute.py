"""Where the time of a small plan goes: `plan rebuild` of the demo's 10,000 orders, phase by phase.

`python -m benchmarks.first_minute [--runs 3]`. Each run is a process of its own, beside one broker;
the table is of the run with the fewest CPU seconds. A phase begins with the line that the plan says
of it; jobs, stages and tasks are those that Spark's status store knows, calls those from Python to
Spark's JVM. Wall seconds hang on what else the machine does; CPU seconds, jobs and calls less. Each
process plans twice: the second time Spark is there, and warm.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console
from rich.table import Table

from backlogctl.clock import utc_now
from backlogctl.formats import Say
from backlogctl.sandbox.embedded import EmbeddedKafka
from benchmarks.harness import Benchmark, Figures, run_apart, tabulate
from examples.lost_orders import lose_orders, render_configuration
from examples.stage import SHORT_LIVED_JVM, Stage

COLUMNS = {
    "wall": "wall",
    "driver_cpu": "driver CPU",
    "jvm_cpu": "JVM CPU",
    "worker_cpu": "worker CPU",
    "workers": "workers",
    "jobs": "jobs",
    "stages": "stages",
    "tasks": "tasks",
    "calls": "calls",
}
# py4j's word for an object that Python has let go; Python's collector sends it, some time.
_LET_GO = "m\n"


class Phases:
    """What was spent between one line of the plan and the next."""

    def __init__(self) -> None:
        self.spent: dict[str, Figures] = {}
        self._workers: set[int] = set()
        if CALLS["all"]:
            self._phase, self._last = "opening", self._measure()
            return
        # What Python needed before this line is a part of its imports.
        self._phase, self._last = "Python imports", dict.fromkeys(COLUMNS, 0.0)
        self._last["wall"] = psutil.Process().create_time()

    def begin(self, line: str) -> None:
        """A line of the plan; one that only says how far its phase is does not begin another."""
        if not line.startswith(f"{self._phase}:"):
            self.account()
            self._phase = line

    def account(self) -> None:
        now = self._measure()
        spent = self.spent.setdefault(self._phase, dict.fromkeys(COLUMNS, 0.0))
        for name, value in now.items():
            spent[name] = round(spent[name] + value - self._last[name], 2)
        self._last = now

    def _measure(self) -> Figures:
        own = psutil.Process().cpu_times()
        found: Figures = {"wall": time.time(), "driver_cpu": own.user + own.system}
        found |= {"jvm_cpu": 0.0, "worker_cpu": 0.0}
        for process in psutil.Process().children(recursive=True):
            try:
                is_python, times = "python" in process.name(), process.cpu_times()
            except psutil.Error:
                continue
            # With those of its children that have ended.
            found["worker_cpu" if is_python else "jvm_cpu"] += sum(times[:4])
            if is_python:
                self._workers.add(process.pid)
        calls = CALLS["all"]
        found |= {"workers": len(self._workers), "calls": calls, **count_work()}
        CALLS["all"] = calls  # those of the counting are not the plan's
        return found


CALLS: Counter[str] = Counter()


def watch_calls() -> None:
    """Counts the calls to Spark's JVM from here on."""
    from py4j.java_gateway import GatewayClient  # type: ignore[import-untyped]

    send = GatewayClient.send_command

    def count(self: Any, command: str, *arguments: Any, **named: Any) -> Any:
        CALLS["all"] += not command.startswith(_LET_GO)
        return send(self, command, *arguments, **named)

    GatewayClient.send_command = count


def count_work() -> dict[str, int]:
    """Jobs that Spark's status store knows, and what of them is complete."""
    if "pyspark" not in sys.modules:
        return {"jobs": 0, "stages": 0, "tasks": 0}
    from pyspark.sql import SparkSession

    session = SparkSession.getActiveSession()
    if session is None:
        return {"jobs": 0, "stages": 0, "tasks": 0}
    context: Any = session.sparkContext._jsc.sc()
    context.listenerBus().waitUntilEmpty()
    found = context.statusStore().jobsList(None)
    jobs = [found.apply(number) for number in range(found.size())]
    return {
        "jobs": len(jobs),
        "stages": sum(job.numCompletedStages() for job in jobs),
        "tasks": sum(job.numCompletedTasks() for job in jobs),
    }


def plan_twice(
    directory: Path, environment: dict[str, str]
) -> tuple[dict[str, Figures], dict[str, Figures]]:
    """Plans the stream `orders` of the configuration there, cold and warm."""
    os.environ.update(environment)
    watch_calls()
    warm = directory.with_name(f"{directory.name}-warm")
    shutil.copytree(directory, warm)
    return plan(directory), plan(warm)


def plan(directory: Path) -> dict[str, Figures]:
    """Each phase of it."""
    os.chdir(directory)
    phases = Phases()
    from backlogctl.config import load_config
    from backlogctl.replay.kinds.rebuild.plan import RebuildOptions
    from backlogctl.replay.kinds.rebuild.planning import plan_rebuild
    from backlogctl.replay.opening import open_workspace

    config = load_config(Path("backlog.yaml"))
    workspace = open_workspace(config)
    plan_rebuild(workspace, config.stream("orders"), RebuildOptions(), say=phases.begin)
    phases.account()
    return phases.spent


def measure(options: Namespace, say: Say) -> Figures:
    """Loses the demo's orders once, and plans them `runs` times, each from the same files."""
    with (
        tempfile.TemporaryDirectory() as scratch,
        EmbeddedKafka.start(Path(scratch) / "kafka") as kafka,
    ):
        shop, results = Path(scratch) / "shop", []
        shop.mkdir()
        # As the demo starts Java.
        environment = {"SHOP_KAFKA": kafka.bootstrap, "JDK_JAVA_OPTIONS": SHORT_LIVED_JVM}
        (shop / "backlog.yaml").write_text(render_configuration(utc_now()))
        stage = Stage(Console(quiet=True), shop, environment)
        lose_orders(shop, kafka.client_properties, lambda: stage.run("status", quiet=True))
        for run in range(options.runs):
            directory = shop.parent / f"run-{run}"
            shutil.copytree(shop, directory)
            results.append(run_apart(plan_twice, directory, environment))
            say(f"{run + 1} of {options.runs}: {total_cpu(results[-1][0]):.1f} CPU s")
    cold, warm = (min(some, key=total_cpu) for some in zip(*results, strict=True))
    spent = [round(total_cpu(one), 2) for one, _ in results]
    return {"cpu_seconds": spent, "phases": cold, "warm": warm}


def total_cpu(phases: dict[str, Figures]) -> float:
    """Driver, JVM and workers together."""
    names = ("driver_cpu", "jvm_cpu", "worker_cpu")
    return sum(float(spent[name]) for spent in phases.values() for name in names)


def draw(document: Figures) -> Iterable[Table]:
    for words, phases in (("cold", document["phases"]), ("warm", document["warm"])):
        whole = {name: round(sum(spent[name] for spent in phases.values()), 2) for name in COLUMNS}
        rows = [
            [phase, *(f"{spent[name]:g}" for name in COLUMNS)]
            for phase, spent in {**phases, "all": whole}.items()
        ]
        yield tabulate(f"plan rebuild of 10,000 rows, {words}, seconds", COLUMNS, rows)


BENCHMARK = Benchmark("first_minute", __doc__, {"runs": 3}, {"runs": 1}, measure, draw)

if __name__ == "__main__":
    BENCHMARK.main()
