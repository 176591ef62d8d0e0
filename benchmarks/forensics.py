"""Reading batch headers: how fast a topic's log is profiled, with the brokers on the same cores.

`python -m benchmarks.forensics [--messages 2000000] [--size 400] [--repeat 3]` prints a table and
keeps `results/forensics.json`. Messages are published with lz4 in batches of as many messages as a
column's head says; the first round of each is a warm-up that does not count.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console
from rich.table import Table

from backlog.kafka.admin import create_topic
from backlog.kafka.clients import make_admin, make_producer
from benchmarks.machine import describe_machine
from benchmarks.relay import format_figure
from benchmarks.relay_run import make_world
from benchmarks.shop import send
from monitoring.forensics.reading import profile_topic
from sandbox.embedded import EmbeddedKafka

RESULTS = Path(__file__).parent / "results" / "forensics.json"
PARTITIONS = 6
BATCHES = (1_000, 100)
_KEEP = {"retention.ms": "-1", "retention.bytes": "-1"}
_WORDS = ("paid", "shipped", "refunded", "EUR", "street", "quantity", "price", "customer", "note")


def measure(messages: int, size: int, repeat: int, say: Console) -> dict[str, Any]:
    """Every size of batches, one after the other."""
    found: dict[str, Any] = {}
    with make_world() as (kafka, _):
        for each in BATCHES:
            topic = f"orders-{each}"
            say.print(f"publishing {messages:,} messages in batches of {each}")
            publish(kafka, topic, messages, size, each)
            runs = []
            for turn in range(repeat + 1):
                run = read(kafka, topic, messages)
                what = "warm-up" if not turn else f"{turn} of {repeat}"
                say.print(f"batches of {each}, {what}: {run['messages_per_second']:,} messages/s")
                if turn:
                    runs.append(run)
            found[str(each)] = runs
    return found


def publish(kafka: EmbeddedKafka, topic: str, messages: int, size: int, each: int) -> None:
    properties = {"bootstrap.servers": kafka.bootstrap}
    create_topic(make_admin(properties), topic, partitions=PARTITIONS, replication=1, config=_KEEP)
    producer = make_producer(
        properties,
        {
            "linger.ms": 200,
            "batch.num.messages": each,
            "queue.buffering.max.messages": 500_000,
        },
    )
    for number, value in enumerate(make_values(messages, size)):
        # As many in turn to a partition as make a batch.
        send(producer, topic, value, partition=number // each % PARTITIONS)
    assert producer.flush(60) == 0


def make_values(messages: int, size: int) -> Iterator[bytes]:
    """Texts of a shop, which lz4 makes about half as large."""
    dice = random.Random(7)
    tails = []
    for _ in range(5_000):
        parts = [f"{dice.choice(_WORDS)}:{dice.randrange(10**6)}" for _ in range(size // 10 + 1)]
        tails.append(",".join(parts).encode())
    for number in range(messages):
        head = b'{"order":%010d,' % number
        yield (head + tails[dice.randrange(5_000)])[:size]


def read(kafka: EmbeddedKafka, topic: str, messages: int) -> dict[str, Any]:
    """One profile, from connecting on."""
    reader, broker = _cpu_of_reader(), _cpu_of(kafka.pid)
    began = time.monotonic()
    profile = profile_topic({"bootstrap.servers": kafka.bootstrap}, topic)
    seconds = time.monotonic() - began
    if profile.messages != messages or profile.breaks:
        sys.exit(f"{profile.messages:,} messages, {len(profile.breaks)} breaks: that is wrong")
    return {
        "seconds": round(seconds, 3),
        "messages_per_second": round(messages / seconds),
        "batches_per_second": round(profile.batches / seconds),
        "megabytes_per_second": round(profile.bytes / seconds / 1e6),
        "messages_per_batch": round(messages / profile.batches),
        "bytes_per_message": round(profile.bytes / messages),
        "reader_cpu_seconds": round(_cpu_of_reader() - reader, 3),
        "broker_cpu_seconds": round(_cpu_of(kafka.pid) - broker, 3),
    }


def summarize(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Least, median and most of every figure."""
    return {
        name: {"min": min(values), "median": statistics.median(values), "max": max(values)}
        for name in runs[0]
        if (values := [run[name] for run in runs])
    }


def render(document: dict[str, Any]) -> Table:
    table = Table(
        title=f"{document['messages']:,} messages of {document['size']} B, lz4, {PARTITIONS} "
        f"partitions; median (least–most) of {document['repeat']}",
        caption="Connecting and asking for the offsets included. The broker runs on the same "
        f"{document['machine']['cores']} cores.",
    )
    table.add_column("")
    for each in BATCHES:
        table.add_column(f"batches of {each}", justify="right")
    for label, name, digits in (
        ("messages/s", "messages_per_second", 0),
        ("batches/s", "batches_per_second", 0),
        ("MB/s of the log", "megabytes_per_second", 0),
        ("seconds", "seconds", 2),
        ("messages in a batch", "messages_per_batch", 0),
        ("B a message in the log", "bytes_per_message", 0),
        ("CPU s, reader", "reader_cpu_seconds", 2),
        ("CPU s, broker", "broker_cpu_seconds", 2),
    ):
        figures = [document["batches"][str(each)][name] for each in BATCHES]
        table.add_row(label, *(format_figure(one, digits) for one in figures))
    return table


def _cpu_of_reader() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _cpu_of(pid: int) -> float:
    used = psutil.Process(pid).cpu_times()
    return float(used.user + used.system)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=2_000_000)
    parser.add_argument("--size", type=int, default=400)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    machine = describe_machine()
    runs = measure(options.messages, options.size, options.repeat, Console(stderr=True))
    document = {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine,
        "messages": options.messages,
        "size": options.size,
        "repeat": options.repeat,
        "batches": {each: summarize(found) for each, found in runs.items()},
        "runs": runs,
    }
    Console(width=100).print(render(document))
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
