"""What 500 streams of one cluster cost: a pass of `watch`, `status`, `doctor`.

`python -m benchmarks.streams [--streams 500]`. A real broker, SQLite as ledger. Every group lags on
one of three partitions, of every fiftieth some messages are gone unread. A pass is that of
`backlogctl watch`, after the first; the commands run as a person runs them, as processes. The
ledger has the samples that six hours of watching leave.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Iterable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from threading import Event

from rich.table import Table

from backlogctl.config import load_config
from backlogctl.formats import Say
from backlogctl.monitoring.watch.loop import watch_streams
from backlogctl.replay.opening import open_workspace
from benchmarks.harness import Benchmark, Figures, open_world, tabulate
from benchmarks.watch_world import make_groups
from tests.kit.kafka import move_log_start

PARTITIONS = 3


def write_config(directory: Path, bootstrap: str, streams: int) -> Path:
    document = {
        "ledger": f"sqlite:///{directory}/ledger.db",
        "staging": {"dir": str(directory / "staging")},
        "clusters": {"main": {"bootstrap.servers": bootstrap}},
        "streams": {
            f"stream-{number:04}": {
                "cluster": "main",
                "topic": f"stream-{number:04}",
                "group": f"stream-{number:04}",
            }
            for number in range(streams)
        },
    }
    path = directory / "backlog.yaml"
    path.write_text(json.dumps(document))
    return path


def lose_some(bootstrap: str, streams: int) -> None:
    for number in range(0, streams, 50):
        move_log_start({"bootstrap.servers": bootstrap}, f"stream-{number:04}", {0: 7})


def measure_passes(config_path: Path, rounds: int) -> Figures:
    """Seconds and CPU seconds of ours, the median of the passes after the first, if there are."""
    workspace = open_workspace(load_config(config_path))
    took: list[tuple[float, float]] = []
    began = time.monotonic(), time.process_time()

    def note() -> None:
        nonlocal began
        now = time.monotonic(), time.process_time()
        took.append((now[0] - began[0], now[1] - began[1]))
        began = now

    watch_streams(
        *(workspace.config, workspace.ledger, timedelta(milliseconds=10), Event()),
        on_status=lambda status: None,
        on_round=note,
        rounds=rounds + 1,
    )
    workspace.ledger.close()
    return {
        "first_pass_seconds": round(took[0][0], 2),
        "pass_seconds": round(statistics.median(one for one, _ in took[1:] or took), 2),
        "pass_cpu_seconds": round(statistics.median(cpu for _, cpu in took[1:] or took), 2),
    }


def add_past(config_path: Path) -> None:
    """Samples of an hour, each half minute, and of five hours before, each five minutes."""
    workspace = open_workspace(load_config(config_path))
    ages = [*range(30, 3_600, 30), *range(3_600, 6 * 3_600, 300)]
    for name in workspace.config.streams:
        latest = workspace.ledger.samples.latest(name)
        assert latest is not None
        past = [replace(latest, taken_at=latest.taken_at - timedelta(seconds=age)) for age in ages]
        workspace.ledger.samples.add_all([(one, False) for one in past])
    workspace.ledger.close()


def measure_command(config_path: Path, *words: str) -> Figures:
    command = [sys.executable, "-m", "backlogctl.replay.cli", *words, "--config", str(config_path)]
    began = time.monotonic()
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    seconds = time.monotonic() - began
    if done.returncode not in (0, 1):
        raise RuntimeError(f"{words}: {done.stderr[-2000:]}")
    return {"seconds": round(seconds, 2), "lines": done.stdout.count("\n")}


def measure(options: Namespace, say: Say) -> Figures:
    with open_world() as (broker, directory):
        make_groups(broker.bootstrap, "stream", options.streams, PARTITIONS, options.streams)
        lose_some(broker.bootstrap, options.streams)
        path = write_config(directory, broker.bootstrap, options.streams)
        measure_passes(path, 0)
        add_past(path)
        found: Figures = {"watch": measure_passes(path, options.rounds)}
        say(f"watch: {found['watch']}")
        for name in ("status", "doctor"):
            found[name] = measure_command(path, name)
            say(f"{name}: {found[name]}")
        return found


def draw(document: Figures) -> Iterable[Table]:
    watch = document["watch"]
    rows = [
        ["the first pass of watch, s", f"{watch['first_pass_seconds']:,}"],
        ["a later pass, s", f"{watch['pass_seconds']:,}"],
        ["  of that CPU of ours, s", f"{watch['pass_cpu_seconds']:,}"],
        *(
            [f"{name}, {what}", f"{document[name][what]:,}"]
            for name in ("status", "doctor")
            for what in ("seconds", "lines")
        ),
    ]
    yield tabulate(f"{document['streams']:,} streams of one cluster", {"": ""}, rows)


BENCHMARK = Benchmark(
    name="streams",
    text=__doc__,
    sizes={"streams": 500, "rounds": 5},
    smoke={"streams": 12, "rounds": 2},
    measure=measure,
    draw=draw,
)

if __name__ == "__main__":
    BENCHMARK.main()
