"""The process whose memory is measured: `backlogctl watch` with everything on, round by round.

`python -m benchmarks.watch_memory_run CONFIG ROUNDS STEP` prints the page's address, and after each
STEP rounds a line of JSON: rounds over the streams, passes over all groups, resident bytes. With
`--trace` it prints at its end where memory was allocated since the half.
"""

from __future__ import annotations

import json
import sys
import threading
import tracemalloc
from pathlib import Path

import psutil

from backlog.config import load_config
from backlog.errors import BacklogError
from monitoring.watcher import watch_streams
from replay.console.exporting import open_exporter
from replay.opening import open_workspace


def watch(path: Path, rounds: int, step: int, *, trace: bool) -> None:
    workspace = open_workspace(load_config(path))
    config, this = workspace.config, psutil.Process()
    done = 0
    half: tracemalloc.Snapshot | None = None

    def say(**values: object) -> None:
        print(json.dumps(values), flush=True)

    def say_outage(what: str, error: BacklogError | None) -> None:
        print(f"{what}: {error}", file=sys.stderr)

    def end_round() -> None:
        nonlocal done, half
        done += 1
        exporter.board.note_round()
        if done % step == 0:
            passes = exporter.board.seen.version - done * len(config.streams)
            say(rounds=done, passes=passes, rss=this.memory_info().rss)
        if trace and done == rounds // 2:
            half = tracemalloc.take_snapshot()

    if trace:
        tracemalloc.start(12)
    with open_exporter(workspace, "127.0.0.1:0", "the benchmark", say_outage) as exporter:
        say(url=exporter.url)
        watch_streams(
            *(config, workspace.ledger, config.watch.interval, threading.Event()),
            horizon=config.watch.horizon,
            window=config.watch.window,
            on_status=exporter.note,
            on_error=exporter.note_failure,
            on_outage=say_outage,
            on_round=end_round,
            rounds=rounds,
        )
        if half is not None:
            for line in tracemalloc.take_snapshot().compare_to(half, "lineno")[:25]:
                print(line, file=sys.stderr)


if __name__ == "__main__":
    watch(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), trace="--trace" in sys.argv)
