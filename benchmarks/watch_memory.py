"""Whether the memory of `backlogctl watch` levels off.

`python -m benchmarks.watch_memory [--rounds 2000]` watches a real broker at an interval of 100 ms,
so that 2,000 rounds take minutes and not most of a day: streams that are read, that stand and that
are one control record behind, 60 other groups, /metrics and the page read all the time. Resident
memory is noted every 20 rounds. It fails where memory grows by more than 3 % over the second half.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import threading
import time
from argparse import Namespace
from collections.abc import Iterable
from pathlib import Path

import httpx
import psutil
from rich.table import Table

from backlogctl.config import load_config
from backlogctl.errors import BacklogError
from backlogctl.formats import Say
from backlogctl.kafka.admin import create_topic, set_group_offsets
from backlogctl.kafka.clients import make_admin, make_producer
from backlogctl.monitoring.watch.loop import watch_streams
from backlogctl.replay.opening import open_workspace
from backlogctl.replay.web.exporter import open_exporter
from benchmarks.harness import Benchmark, Figures, open_world, tabulate
from benchmarks.watch_world import make_groups

MIB = 1024 * 1024
STEP = 20  # rounds between two samples
BOUND = 0.03  # of the memory at the half
GROUPS, TOPICS, PARTITIONS = 60, 6, 10
# What is remembered by design is full after a minute: the window, and samples of the horizon.
WATCH = {"interval": "100ms", "window": "10s", "horizon": "30s"}


class World:
    """A broker with groups, and what happens on it."""

    def __init__(self, properties: dict[str, str]) -> None:
        self.properties = properties
        make_groups(properties["bootstrap.servers"], "memory", GROUPS, PARTITIONS, TOPICS)
        self._producer = make_producer(self.properties)
        self._admin = make_admin(self.properties)
        self._read = 0
        for name in ("read", "standing", "behind"):
            create_topic(self._admin, name, partitions=3)
        self._leave_a_control_record()

    def move(self) -> None:
        """Messages on every stream's topic; one group reads all of them, one nothing."""
        for name in ("read", "standing"):
            for partition in range(3):
                self._producer.produce(name, b"value", partition=partition)
        self._producer.flush(30)
        self._read += 1
        self._commit("read", "reader", self._read)
        if self._read == 1:
            self._commit("standing", "stander", 0)

    def _leave_a_control_record(self) -> None:
        producer = make_producer(self.properties, {"transactional.id": "benchmark"})
        producer.init_transactions(60)
        producer.begin_transaction()
        for partition in range(3):
            producer.produce("behind", b"value", partition=partition)
        producer.commit_transaction(60)
        self._commit("behind", "committer", 1)

    def _commit(self, topic: str, group: str, offset: int) -> None:
        set_group_offsets(self._admin, group, topic, dict.fromkeys(range(3), offset))


def watch_rounds(path: Path, rounds: int) -> None:
    """The process whose memory is measured: `backlogctl watch` with everything on.

    It prints the page's address, and after each STEP rounds a line of JSON: rounds over the
    streams, passes over all groups, resident bytes.
    """
    workspace = open_workspace(load_config(path))
    config, this = workspace.config, psutil.Process()
    done = 0

    def say(**values: object) -> None:
        print(json.dumps(values), flush=True)

    def say_outage(what: str, error: BacklogError | None) -> None:
        print(f"{what}: {error}", file=sys.stderr)

    def end_round() -> None:
        nonlocal done
        done += 1
        exporter.board.note_round()
        if done % STEP == 0:
            passes = exporter.board.seen.version - done * len(config.streams)
            say(rounds=done, passes=passes, rss=this.memory_info().rss)

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


def sample(rounds: int) -> list[Figures]:
    """Seconds since the start, rounds, passes, resident bytes, at every STEP."""
    with open_world() as (broker, scratch):
        world = World(broker.properties)
        world.move()
        path = scratch / "backlog.yaml"
        path.write_text(json.dumps(_configure(str(scratch), world.properties)))  # JSON is YAML
        command = [sys.executable, "-m", "benchmarks.watch_memory", "watch", str(path), str(rounds)]
        began, url = time.monotonic(), ""
        samples: list[Figures] = []
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            for line in process.stdout:
                values = json.loads(line)
                url = values.pop("url", url)
                if values:
                    samples.append({"seconds": round(time.monotonic() - began, 1), **values})
                if values.get("rounds") == rounds:
                    continue
                world.move()
                for place in ("/metrics", "/", "/streams/standing"):
                    httpx.get(f"{url}{place}", timeout=60).raise_for_status()
        if process.returncode:
            raise SystemExit(f"the watcher ended with {process.returncode}")
        return samples


def summarize(samples: list[Figures]) -> Figures:
    """MiB at some moments, each the median of the tenth of the run around it, and the growth."""
    sizes = [one["rss"] / MIB for one in samples]
    tenth = max(1, len(sizes) // 10)
    half = statistics.median(sizes[len(sizes) // 2 : len(sizes) // 2 + tenth])
    end = statistics.median(sizes[-tenth:])
    return {
        "rounds": samples[-1]["rounds"],
        "passes": samples[-1]["passes"],
        "seconds": samples[-1]["seconds"],
        "first_mib": round(sizes[0], 1),
        "half_mib": round(half, 1),
        "end_mib": round(end, 1),
        "most_mib": round(max(sizes), 1),
        "growth_of_second_half": round(end / half - 1, 4),
        "bound": BOUND,
    }


def draw(document: Figures) -> Iterable[Table]:
    found = document["figures"]
    lines = (
        ("rounds over the streams", "rounds", "{:,}"),
        ("passes over all groups", "passes", "{:,}"),
        ("seconds", "seconds", "{:,}"),
        (f"memory after {STEP} rounds, MiB", "first_mib", "{:,}"),
        ("  at the half, MiB", "half_mib", "{:,}"),
        ("  at the end, MiB", "end_mib", "{:,}"),
        ("  at most, MiB", "most_mib", "{:,}"),
        ("growth over the second half", "growth_of_second_half", "{:+.1%}"),
        ("  may be at most", "bound", "{:.0%}"),
    )
    rows = [[label, form.format(found[name])] for label, name, form in lines]
    yield tabulate("memory of backlogctl watch", {"": ""}, rows)


def measure(options: Namespace, _: Say) -> Figures:
    samples = sample(options.rounds)
    found = summarize(samples)
    return {"watch": WATCH, "groups": GROUPS + 3, "figures": found, "samples": samples}


def _configure(scratch: str, properties: dict[str, str]) -> Figures:
    streams = {"read": "reader", "standing": "stander", "behind": "committer"}
    return {
        "ledger": f"sqlite:///{scratch}/ledger.db",
        "clusters": {"main": properties},
        "watch": WATCH,
        "streams": {
            topic: {"cluster": "main", "topic": topic, "group": group}
            for topic, group in streams.items()
        },
    }


BENCHMARK = Benchmark(
    "watch_memory", __doc__, {"rounds": 2000}, {"rounds": 2 * STEP}, measure, draw
)


def main() -> None:
    if sys.argv[1:2] == ["watch"]:
        watch_rounds(Path(sys.argv[2]), int(sys.argv[3]))
        return
    document = BENCHMARK.main()
    if document["rounds"] > 2 * STEP and document["figures"]["growth_of_second_half"] > BOUND:
        raise SystemExit("memory grows")


if __name__ == "__main__":
    main()
