"""What is told of groups that lose messages all the time, beside what their clients handled.

`python -m benchmarks.live_loss [--minutes 30]`. 200 messages a second of 1 KB are written; each
client of the zoo handles 60 a second, in a group of its own, and retention (by time on one topic,
by size on another) takes the rest. Four watchers look on: with the commit log and by samples alone,
each 30 s and each 5 s. What a client never handled below its last message is the truth.
"""

from __future__ import annotations

import threading
import time
from argparse import Namespace
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from confluent_kafka import Producer
from rich.table import Table

from backlogctl.config import Config
from backlogctl.formats import Say
from backlogctl.kafka.admin import alter_topic_config, create_topic
from backlogctl.ledger import Ledger, open_ledger
from backlogctl.monitoring.offsets.lag import count_lost
from backlogctl.monitoring.verdict.status import GroupStatus
from backlogctl.monitoring.watch.loop import watch_streams
from backlogctl.values import Certainty
from benchmarks.harness import KEEP, Benchmark, Figures, open_world, tabulate
from tests.clients.zoo import Client
from tests.kit.kafka import repeating

WRITTEN, READ, MESSAGE_BYTES = 200, 60, 1024
CLIENTS = ("java-range", "java-map", "java-assign", "franz", "kafkajs", "librdkafka")
# 3 minutes of messages, in segments of 5 s.
KEPT_SECONDS, SEGMENT_BYTES = 180, 1024 * 1024
RETENTION = {
    "time": {"retention.ms": str(KEPT_SECONDS * 1000)},
    "size": {
        "retention.ms": "-1",
        "retention.bytes": str(KEPT_SECONDS * WRITTEN * MESSAGE_BYTES),
    },
}
WATCHERS = (("log", 30), ("log", 5), ("samples", 30), ("samples", 5))


@dataclass
class Watcher:
    """One `watch`, and what it said over time: (second, verdict) of each stream."""

    config: Config
    ledger: Ledger
    interval: int
    verdicts: dict[str, list[tuple[float, str]]] = field(default_factory=dict)

    def run(self, stop: threading.Event) -> None:
        began = time.monotonic()

        def note(status: GroupStatus) -> None:
            said = self.verdicts.setdefault(status.stream, [])
            if not said or said[-1][1] != status.verdict:
                said.append((round(time.monotonic() - began, 1), str(status.verdict)))

        every = timedelta(seconds=self.interval)
        watch_streams(self.config, self.ledger, every, stop, on_status=note)

    def count(self, stream: str) -> Figures:
        """What is on record at the newest sample: at most, likely, certain."""
        sample = self.ledger.samples.latest(stream)
        assert sample is not None
        gaps = self.ledger.gaps.list(stream)
        (part,) = sample.partitions
        now = count_lost(part, sample, gaps)
        likely = [gap.count if gap.likely is None else gap.likely for gap in gaps]
        bounded = [gap for gap in gaps if gap.certainty is not Certainty.POSSIBLE]
        return {
            "at_most": sum(gap.count or 0 for gap in gaps) + now.undecided,
            "likely": sum(count or 0 for count in likely),
            "certain": sum(gap.count or 0 for gap in bounded),
            "undecided": now.undecided,
            "changes": len(self.verdicts.get(stream, ())),
        }


def measure(options: Namespace, say: Say) -> Figures:
    clients = CLIENTS[: options.clients]
    with open_world() as (broker, folder), ExitStack() as stack:
        bootstrap = broker.bootstrap
        topics = {by: f"loss-{by}" for by in RETENTION}
        for by, topic in topics.items():
            settings = {"segment.bytes": str(SEGMENT_BYTES), **RETENTION[by]}
            create_topic(broker.properties, topic, partitions=1, config=settings)
        stack.enter_context(write(bootstrap, list(topics.values())))
        running = {}
        for by, topic in topics.items():
            for kind in clients:
                name = f"{kind}-{by}"
                client = Client(
                    *(kind, bootstrap, topic, name),
                    record=folder / name,
                    delay_ms=1000 // READ,
                    commit_ms=5000,
                )
                running[name] = stack.enter_context(client)
        watchers = {}
        for by, interval in WATCHERS:
            ledger = f"sqlite:///{folder}/{by}-{interval}.db"
            config = configure(bootstrap, topics, clients, ledger, by == "log")
            opened = stack.enter_context(open_ledger(ledger))
            watchers[f"{by} {interval} s"] = Watcher(config, opened, interval)
        stop = threading.Event()
        threads = [threading.Thread(target=one.run, args=(stop,)) for one in watchers.values()]
        for thread in threads:
            thread.start()
        try:
            for minute in range(options.minutes):
                time.sleep(60)
                say(f"{minute + 1} of {options.minutes} minutes")
            # The losses end, so that the last of them is decided.
            for topic in topics.values():
                alter_topic_config(broker.properties, topic, dict.fromkeys(KEEP, "-1"))
            time.sleep(options.rest)
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        truth = {name: count_unhandled(client) for name, client in running.items()}
        told = {name: {who: one.count(name) for who, one in watchers.items()} for name in running}
        verdicts = {
            name: {who: one.verdicts.get(name, []) for who, one in watchers.items()}
            for name in running
        }
    return {"truth": truth, "told": told, "verdicts": verdicts}


def configure(
    bootstrap: str, topics: Mapping[str, str], clients: Sequence[str], ledger: str, by_log: bool
) -> Config:
    return Config.model_validate(
        {
            "ledger": ledger,
            "clusters": {"main": {"bootstrap.servers": bootstrap}},
            "streams": {
                f"{kind}-{way}": {"cluster": "main", "topic": topic, "group": f"{kind}-{way}"}
                for way, topic in topics.items()
                for kind in clients
            },
            "watch": {"commit_log": by_log},
        }
    )


@contextmanager
def write(bootstrap: str, topics: Sequence[str], rate: int = WRITTEN) -> Iterator[None]:
    """An even stream of messages while the block runs, so many a second."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 20})
    began, sent = time.monotonic(), 0

    def catch_up() -> None:
        nonlocal sent
        for number in range(sent, int((time.monotonic() - began) * rate)):
            for topic in topics:
                producer.produce(topic, str(number).zfill(MESSAGE_BYTES).encode())
            sent = number + 1
        producer.poll(0)

    with repeating(catch_up, 0.02):
        yield
    producer.flush(10)


def count_unhandled(client: Client) -> Figures:
    """Offsets below the last one handled that were never handled."""
    handled = {offset for _, offset in client.handled()}
    last = max(handled, default=-1)
    return {"lost": last + 1 - len(handled), "of": last + 1}


def draw(document: Figures) -> Iterable[Table]:
    columns = {"truth": "lost", **{f"{by} {each} s": f"{by}, {each} s" for by, each in WATCHERS}}
    rows = []
    for name, truth in document["truth"].items():
        cells = [f"{truth['lost']:,} of {truth['of']:,}"]
        cells += [describe(document["told"][name][who], truth["lost"]) for who in [*columns][1:]]
        rows.append([name, *cells])
    yield tabulate("what was lost, and what was told: likely (at most), changes", columns, rows)


def describe(told: dict[str, Any], lost: int) -> str:
    share = f" {100 * (told['likely'] / lost - 1):+.1f} %" if lost else ""
    return f"{told['likely']:,}{share}\n(≤ {told['at_most']:,}), {told['changes']}"


COLOURS = {"ok": "#cfe8d5", "lagging": "#dfe7f2", "warn": "#f6e3b4", "losing": "#e59a3c"}
OTHER, LOST = "#b9b2c9", "#a61c28"
LEFT, WIDTH, ROW, TOP = 230, 760, 18, 46


def plot(document: Figures) -> str:
    """What each watcher said of each client over time: one bar each."""
    bars = [
        (f"{name}, {who}", said)
        for name, by in document["verdicts"].items()
        for who, said in by.items()
    ]
    end = document["minutes"] * 60 + document["rest"]
    words = list(dict.fromkeys(word for _, said in bars for _, word in said))
    height = TOP + ROW * len(bars) + 30
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {LEFT + WIDTH + 20} {height}" '
        'font-family="sans-serif" font-size="11" fill="#333">',
        '<rect width="100%" height="100%" fill="#fff"/>',
    ]
    for number, word in enumerate(words):
        at = LEFT + 110 * number
        parts.append(f'<rect x="{at}" y="14" width="12" height="12" fill="{find_colour(word)}"/>')
        parts.append(f'<text x="{at + 18}" y="24">{word}</text>')
    for number, (label, said) in enumerate(bars):
        y = TOP + ROW * number
        parts.append(f'<text x="{LEFT - 8}" y="{y + 12}" text-anchor="end">{label}</text>')
        ends = [*(at for at, _ in said[1:]), end]
        for (at, word), until in zip(said, ends, strict=False):
            left, right = (LEFT + WIDTH * min(moment, end) / end for moment in (at, until))
            parts.append(
                f'<rect x="{left:.1f}" y="{y}" width="{max(right - left, 0.5):.1f}" '
                f'height="{ROW - 4}" fill="{find_colour(word)}"/>'
            )
    for minute in range(0, end // 60 + 1, max(1, end // 600)):
        x = LEFT + WIDTH * minute * 60 / end
        parts.append(f'<text x="{x:.1f}" y="{height - 10}">{minute} min</text>')
    return "\n".join([*parts, "</svg>"])


def find_colour(word: str) -> str:
    return LOST if word == "lost" else COLOURS.get(word, OTHER)


BENCHMARK = Benchmark(
    name="live_loss",
    text=__doc__,
    sizes={"minutes": 30, "clients": len(CLIENTS), "rest": 90},
    smoke={"minutes": 1, "clients": 2, "rest": 1},
    measure=measure,
    draw=draw,
    plot=plot,
)

if __name__ == "__main__":
    BENCHMARK.main()
