"""One measured `plan rebuild`, in a process of its own: where its wall and CPU seconds go.

Run by `benchmarks.first_minute` in a directory with a backlog.yaml; writes JSON to stdout.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import wraps
from importlib import import_module
from pathlib import Path
from typing import Any

import psutil

# What the driver waits for: module, function or method, phase.
_WRAPPED = (
    ("pyspark.core.context", "launch_gateway", "start of the JVM"),
    ("spark_backfill.spark.session", "open_session", "session"),
    ("spark_backfill.rebuild", "check_rules", "check of the rules, by analysis"),
    ("spark_backfill.finding", "freeze_candidates", "first JDBC read: candidates"),
    ("spark_backfill.freezing", "SurvivorEvidence.freeze", "Kafka read: survivors"),
    ("spark_backfill.finding", "ConsumedEvidence.freeze", "JDBC read: consumed"),
    ("spark_backfill.finding", "check_identity_unique", "labels"),
    ("spark_backfill.rebuild", "count_labels", "labels"),
    ("spark_backfill.finding", "prove_rules", "proof"),
    ("spark_backfill.freezing", "SurvivorEvidence.measure_spans", "spans of the log"),
    ("spark_backfill.rebuild", "stage_lost", "staging, with mapInArrow"),
    ("spark_backfill.rebuild", "_finish", "manifest"),
)
_IMPORTS = "Python imports"
_REST = "what is between: topic, offsets, evidence"


@dataclass(slots=True)
class Spent:
    """Seconds while the driver was in one phase, and what Spark did in it."""

    wall: float = 0.0
    driver: float = 0.0
    jvm: float = 0.0
    workers: float = 0.0
    jobs: list[int] = field(default_factory=list)
    started: int = 0


class Phases:
    """Attributes time to the innermost phase that the driver is in; nothing is counted twice."""

    def __init__(self) -> None:
        self.spent: dict[str, Spent] = {}
        self._stack: list[str] = []
        self._pids: set[int] = set()
        self._jobs = 0
        # What Python needed before this line is a part of its imports.
        self._last = (psutil.Process().create_time(), (0.0, 0.0, 0.0))

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        self._account()
        self._stack.append(name)
        try:
            yield
        finally:
            self._account()
            self._stack.pop()

    def wrap(self, module: str, path: str, name: str) -> None:
        """Replaces a function by one that is a phase."""
        owner: Any = import_module(module)
        *inner, last = path.split(".")
        for part in inner:
            owner = getattr(owner, part)
        plain: Callable[..., Any] = getattr(owner, last)

        @wraps(plain)
        def timed(*args: Any, **named: Any) -> Any:
            with self.phase(name):
                return plain(*args, **named)

        setattr(owner, last, timed)

    def _account(self) -> None:
        now, cpu = time.time(), self._measure()
        name = self._stack[-1] if self._stack else _IMPORTS
        spent = self.spent.setdefault(name, Spent())
        at, before = self._last
        spent.wall += now - at
        spent.driver += cpu[0] - before[0]
        spent.jvm += cpu[1] - before[1]
        spent.workers += cpu[2] - before[2]
        jobs = _count_jobs()
        spent.jobs += range(self._jobs, jobs)
        self._jobs = jobs
        self._last = (now, cpu)

    def _measure(self) -> tuple[float, float, float]:
        this = psutil.Process()
        own = this.cpu_times()
        jvm = workers = 0.0
        pids: set[int] = set()
        for process in this.children(recursive=True):
            try:
                is_python = "python" in process.name()
                times = process.cpu_times()
            except psutil.Error:
                continue
            # With those of its children that have ended.
            seconds = sum(times[:4])
            workers += seconds if is_python else 0.0
            jvm += 0.0 if is_python else seconds
            if is_python:
                pids.add(process.pid)
        fresh = pids - self._pids
        self._pids |= fresh
        if fresh:
            name = self._stack[-1] if self._stack else _IMPORTS
            self.spent.setdefault(name, Spent()).started += len(fresh)
        return own.user + own.system, jvm, workers


def _count_jobs() -> int:
    module = sys.modules.get("pyspark")
    context = None if module is None else module.SparkContext._active_spark_context
    return 0 if context is None else int(context._jsc.sc().dagScheduler().numTotalJobs())


def list_jobs() -> dict[int, tuple[int, int]]:
    """Stages and tasks that were run, by job."""
    from pyspark import SparkContext

    context = SparkContext._active_spark_context
    assert context is not None
    context._jsc.sc().listenerBus().waitUntilEmpty()
    jobs = context._jsc.sc().statusStore().jobsList(None)
    found = (jobs.apply(i) for i in range(jobs.size()))
    return {job.jobId(): (job.numCompletedStages(), job.numCompletedTasks()) for job in found}


def run_plan(phases: Phases) -> dict[str, Any]:
    """Plans the stream `orders` of the configuration here."""
    with phases.phase(_IMPORTS):
        from backlog.config import load_config
        from replay.kinds.rebuild.options import RebuildOptions
        from replay.kinds.rebuild.planning import plan_rebuild
        from replay.opening import open_workspace

    with phases.phase(_REST):
        config = load_config(Path("backlog.yaml"))
        workspace = open_workspace(config)
        options = RebuildOptions()

        def say(line: str) -> None:
            if line == "starting Spark":
                with phases.phase("Python imports of PySpark"):
                    for part in _WRAPPED:
                        phases.wrap(*part)

        recovery = plan_rebuild(workspace, config.stream("orders"), options, say=say)
    jobs = list_jobs()
    return {
        "recovery": recovery.id,
        "phases": {
            name: {
                "wall": round(spent.wall, 2),
                "driver_cpu": round(spent.driver, 2),
                "jvm_cpu": round(spent.jvm, 2),
                "worker_cpu": round(spent.workers, 2),
                "workers_started": spent.started,
                "jobs": len(spent.jobs),
                "stages": sum(jobs[job][0] for job in spent.jobs if job in jobs),
                "tasks": sum(jobs[job][1] for job in spent.jobs if job in jobs),
            }
            for name, spent in phases.spent.items()
        },
    }


if __name__ == "__main__":
    print(json.dumps(run_plan(Phases())))
