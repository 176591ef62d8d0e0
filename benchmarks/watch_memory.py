"""Whether the memory of `backlogctl watch` levels off.

`python -m benchmarks.watch_memory [--rounds 2000]` watches a real broker at an interval of 100 ms,
so that 2,000 rounds take minutes and not most of a day: streams that are read, that stand and that
are one control record behind, 60 other groups, /metrics and the page read all the time. Resident
memory is noted every 20 rounds. Prints a table, keeps `results/watch_memory.json`, draws
`docs/img/watch-memory.svg`, and fails where memory grows by more than 3 % over the second half.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
from rich.console import Console
from rich.table import Table

from backlog.kafka.admin import create_topic
from backlog.kafka.clients import make_admin, make_producer
from benchmarks.watch_world import make_groups
from sandbox.embedded import EmbeddedKafka

RESULTS = Path(__file__).parent / "results" / "watch_memory.json"
PICTURE = Path(__file__).parents[1] / "docs" / "img" / "watch-memory.svg"
MIB = 1024 * 1024
STEP = 20  # rounds between two samples
INK, GRID, LINE = "#3d4650", "#d9dee3", "#0d7f6f"
BOUND = 0.03  # of the memory at the half
GROUPS, TOPICS, PARTITIONS = 60, 6, 10
# What is remembered by design is full after a minute: the window, and samples of the horizon.
WATCH = {"interval": "100ms", "window": "10s", "horizon": "30s"}


class World:
    """A broker with groups, and what happens on it."""

    def __init__(self, kafka: EmbeddedKafka) -> None:
        self.properties = {"bootstrap.servers": kafka.bootstrap}
        make_groups(kafka.bootstrap, GROUPS, PARTITIONS, TOPICS)
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
        from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition

        places = [TopicPartition(topic, partition, offset) for partition in range(3)]
        request = [ConsumerGroupTopicPartitions(group, places)]
        self._admin.alter_consumer_group_offsets(request)[group].result(30)


def measure(rounds: int, *, trace: bool) -> list[dict[str, Any]]:
    """Samples: seconds since the start, rounds, passes, resident bytes."""
    with tempfile.TemporaryDirectory() as scratch, EmbeddedKafka.start(f"{scratch}/kafka") as kafka:
        world = World(kafka)
        world.move()
        path = Path(scratch) / "backlog.yaml"
        path.write_text(json.dumps(_configure(scratch, world.properties)))  # JSON is YAML
        command = [sys.executable, "-m", "benchmarks.watch_memory_run"]
        command += [str(path), str(rounds), str(STEP), *(["--trace"] if trace else [])]
        began, url = time.monotonic(), ""
        samples: list[dict[str, Any]] = []
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            for line in process.stdout:
                told = json.loads(line)
                url = told.pop("url", url)
                if told:
                    samples.append({"seconds": round(time.monotonic() - began, 1), **told})
                if told.get("rounds") == rounds:
                    continue
                world.move()
                for place in ("/metrics", "/", "/streams/standing"):
                    httpx.get(f"{url}{place}", timeout=60).raise_for_status()
        if process.returncode:
            raise SystemExit(f"the watcher ended with {process.returncode}")
        return samples


def summarize(samples: list[dict[str, Any]]) -> dict[str, Any]:
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


def draw_table(found: dict[str, Any]) -> Table:
    table = Table("", "", title="memory of backlogctl watch")
    for title, name in (
        ("rounds over the streams", "rounds"),
        ("passes over all groups", "passes"),
        ("seconds", "seconds"),
        (f"memory after {STEP} rounds, MiB", "first_mib"),
        ("  at the half, MiB", "half_mib"),
        ("  at the end, MiB", "end_mib"),
        ("  at most, MiB", "most_mib"),
    ):
        table.add_row(title, f"{found[name]:,}")
    table.add_row("growth over the second half", f"{found['growth_of_second_half']:+.1%}")
    table.add_row("  may be at most", f"{BOUND:.0%}")
    return table


def draw_picture(samples: list[dict[str, Any]], path: Path) -> None:
    """Resident memory by round, from zero."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context({"svg.hashsalt": "backlogctl", "font.size": 10.0}):
        figure = Figure(figsize=(7.2, 2.8), layout="constrained")
        axes = figure.add_subplot()
        sizes = [one["rss"] / MIB for one in samples]
        axes.plot([one["rounds"] for one in samples], sizes, color=LINE, linewidth=1.6)
        axes.set_ylim(0, max(sizes) * 1.25)
        axes.set_xlim(0, samples[-1]["rounds"])
        axes.set_xlabel("rounds over the streams", color=INK)
        axes.set_ylabel("resident memory, MiB", color=INK)
        axes.grid(color=GRID, linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
        figure.savefig(path, metadata={"Date": None}, facecolor="white")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=2000)
    parser.add_argument("--trace", action="store_true", help="say where memory was allocated")
    given = parser.parse_args()
    samples = measure(given.rounds, trace=given.trace)
    found = summarize(samples)
    Console(file=sys.stdout).print(draw_table(found))
    if not given.trace:
        document = {
            "at": datetime.now(UTC).isoformat(timespec="seconds"),
            "machine": {"cpus": os.cpu_count(), "python": platform.python_version()},
            "watch": WATCH,
            "groups": GROUPS + 3,
            "figures": found,
            "samples": samples,
        }
        RESULTS.write_text(json.dumps(document, indent=2) + "\n")
        draw_picture(samples, PICTURE)
    if found["growth_of_second_half"] > BOUND:
        raise SystemExit("memory grows")


def _configure(scratch: str, properties: dict[str, str]) -> dict[str, Any]:
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


if __name__ == "__main__":
    main()
