"""Where the time of a small plan goes: `plan rebuild` of the demo's 10,000 orders, phase by phase.

`python -m benchmarks.first_minute [--runs 3]` prints a table and keeps `results/first_minute.json`.
Each run is a process of its own, beside one broker; the table is of the run with the fewest CPU
seconds. Wall seconds hang on what else the machine does; CPU seconds, jobs and workers less.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from backlog.clock import utc_now
from replay.demo.rebuild import story
from replay.demo.rebuild.configuration import render_configuration
from replay.demo.rebuild.topic import make_topic
from replay.demo.stage import SHORT_LIVED_JVM, Stage
from sandbox.embedded import EmbeddedKafka
from spark_backfill.spark.class_archive import find_archive

RESULTS = Path(__file__).parent / "results" / "first_minute.json"
_COLUMNS = (
    "wall",
    "driver_cpu",
    "jvm_cpu",
    "worker_cpu",
    "workers_started",
    "jobs",
    "stages",
    "tasks",
)


def measure(runs: int) -> list[dict[str, Any]]:
    """Loses the demo's orders once, and plans them `runs` times, each from the same files."""
    with (
        tempfile.TemporaryDirectory() as scratch,
        EmbeddedKafka.start(Path(scratch) / "kafka") as kafka,
    ):
        shop = Path(scratch) / "shop"
        shop.mkdir()
        environment = {"SHOP_KAFKA": kafka.bootstrap}
        (shop / "backlog.yaml").write_text(render_configuration(utc_now()))
        make_topic(kafka.client_properties)
        stage = Stage(Console(quiet=True), shop, environment)
        story._lose_orders(stage, shop, kafka.client_properties)
        return [_plan(shop, Path(scratch) / f"run-{run}", environment) for run in range(runs)]


def _plan(shop: Path, directory: Path, environment: dict[str, str]) -> dict[str, Any]:
    shutil.copytree(shop, directory)
    root = str(Path(__file__).resolve().parents[1])
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.first_minute_run"],
        cwd=directory,
        # As the demo starts Java.
        env={
            **os.environ,
            **environment,
            "PYTHONPATH": root,
            "JDK_JAVA_OPTIONS": SHORT_LIVED_JVM,
        },
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return dict(json.loads(done.stdout.splitlines()[-1])["phases"])


def total(phases: dict[str, Any], column: str) -> float:
    """Over all phases."""
    return round(sum(float(spent[column]) for spent in phases.values()), 2)


def total_cpu(phases: dict[str, Any]) -> float:
    """Driver, JVM and workers together."""
    return sum(total(phases, name) for name in ("driver_cpu", "jvm_cpu", "worker_cpu"))


def render(phases: dict[str, Any]) -> Table:
    """A line for each phase, in the order in which they came, and their sum."""
    table = Table(title="plan rebuild of 10,000 rows, seconds")
    table.add_column("")
    for name in _COLUMNS:
        table.add_column(name.replace("_", " ").replace("jvm", "JVM").replace("cpu", "CPU"))
    for phase, spent in phases.items():
        table.add_row(phase, *(f"{spent[name]:g}" for name in _COLUMNS))
    table.add_row("all", *(f"{total(phases, name):g}" for name in _COLUMNS))
    return table


def main() -> None:
    """Measures, prints the table, keeps the JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    results = measure(options.runs)
    best = min(results, key=total_cpu)
    Console(width=140).print(render(best))
    document = {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "cores": os.cpu_count(),
        "class_archive": find_archive().is_file(),
        "cpu_seconds": [round(total_cpu(phases), 2) for phases in results],
        "phases": best,
    }
    options.output.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
