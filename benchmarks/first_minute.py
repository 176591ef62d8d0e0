"""Where the time of a small plan goes: `plan rebuild` of the demo's 10,000 orders, phase by phase.

`python -m benchmarks.first_minute [--runs 3]`. Each run is a process of its own, beside one broker;
the table is of the run with the fewest CPU seconds. A phase begins with the line that the plan says
of it; jobs, stages and tasks are those that Spark's status store knows. Wall seconds hang on what
else the machine does; CPU seconds, jobs and workers less.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from argparse import Namespace
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
}


class Phases:
    """What was spent between one line of the plan and the next."""

    def __init__(self) -> None:
        self.spent: dict[str, Figures] = {}
        # What Python needed before this line is a part of its imports.
        self._phase = "Python imports"
        self._last: Figures = dict.fromkeys(COLUMNS, 0.0)
        self._last["wall"] = psutil.Process().create_time()
        self._workers: set[int] = set()

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
        return {**found, "workers": len(self._workers), **count_work()}


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


def plan(directory: Path, environment: dict[str, str]) -> dict[str, Figures]:
    """Plans the stream `orders` of the configuration there."""
    os.environ.update(environment)
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
            results.append(run_apart(plan, directory, environment))
            say(f"{run + 1} of {options.runs}: {total_cpu(results[-1]):.1f} CPU s")
    best = min(results, key=total_cpu)
    return {"cpu_seconds": [round(total_cpu(one), 2) for one in results], "phases": best}


def total_cpu(phases: dict[str, Figures]) -> float:
    """Driver, JVM and workers together."""
    names = ("driver_cpu", "jvm_cpu", "worker_cpu")
    return sum(float(spent[name]) for spent in phases.values() for name in names)


def draw(document: Figures) -> Iterable[Table]:
    phases = document["phases"]
    whole = {name: round(sum(spent[name] for spent in phases.values()), 2) for name in COLUMNS}
    rows = [
        [phase, *(f"{spent[name]:g}" for name in COLUMNS)]
        for phase, spent in {**phases, "all": whole}.items()
    ]
    yield tabulate("plan rebuild of 10,000 rows, seconds", COLUMNS, rows)


BENCHMARK = Benchmark("first_minute", __doc__, {"runs": 3}, {"runs": 1}, measure, draw)

if __name__ == "__main__":
    BENCHMARK.main()
