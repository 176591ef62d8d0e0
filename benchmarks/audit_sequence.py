"""How fast a topic's sequences are audited with Spark, beside Spark only counting the messages.

`python -m benchmarks.audit_sequence [--messages 2000000] [--repeat 3]` prints a table and keeps
`results/audit_sequence.json`. The messages are of 400 B, numbered by one producer, and every
100,000th is left out: each turn must find exactly these. The ways take turns, after one warm-up;
Spark's start is not in it.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from backlog.config.sections import SparkSection
from backlog.kafka.admin import create_topic, list_offsets
from backlog.kafka.clients import make_producer
from backlog.values import OffsetRange
from backlogctl_delivery.sequenced.sequence import SEQUENCE
from sandbox.embedded import EmbeddedKafka
from spark_backfill.audits.sequence import audit_sequence
from spark_backfill.originals.reading import read_log
from spark_backfill.spark.session import open_session

RESULTS = Path(__file__).parent / "results" / "audit_sequence.json"
TOPIC, PARTITIONS, LOST_EACH = "orders", 4, 100_000
WAYS = ("count", "audit")
TITLES = {"count": "Spark reads and counts", "audit": "audit sequence"}


def publish(properties: dict[str, str], messages: int, size: int) -> int:
    """Numbered messages; returns how many were left out."""
    producer = make_producer(properties, {"linger.ms": 50, "queue.buffering.max.messages": 500_000})
    value, left_out = os.urandom(size // 2).hex().encode(), 0
    for number in range(messages):
        partition, sequence = number % PARTITIONS, number // PARTITIONS
        if number % LOST_EACH == LOST_EACH // 2:
            left_out += 1
            continue
        headers: Any = [(SEQUENCE, b"shop-7:1790000000000000:%d:%d" % (partition, sequence))]
        while True:
            try:
                producer.produce(TOPIC, value, b"%d" % (number % 997), partition, headers=headers)
                break
            except BufferError:
                producer.poll(0.1)
    assert producer.flush(120) == 0
    return left_out


def measure(messages: int, size: int, repeat: int, say: Console) -> dict[str, list[float]]:
    """Seconds of every way, in turns."""
    with (
        tempfile.TemporaryDirectory(prefix="audit-") as scratch,
        EmbeddedKafka.start(Path(scratch) / "kafka", heap="1g") as kafka,
    ):
        properties = {"bootstrap.servers": kafka.bootstrap}
        create_topic(properties, TOPIC, partitions=PARTITIONS, config={"retention.ms": "-1"})
        say.print(f"publishing {messages:,} messages")
        left_out = publish(properties, messages, size)
        ends = list_offsets(properties, TOPIC, range(PARTITIONS), "latest")
        ranges = [OffsetRange(number, 0, end) for number, end in ends.items()]
        spark = open_session(SparkSection(), "benchmark")

        def count() -> None:
            found = read_log(spark, properties, TOPIC, ranges).count()
            if found != messages - left_out:
                sys.exit(f"{found:,} messages were read, not {messages - left_out:,}")

        def audit() -> None:
            found = audit_sequence(read_log(spark, properties, TOPIC, ranges), range(PARTITIONS))
            if sum(hole.count for hole in found.holes) != left_out or not found.is_whole:
                sys.exit(f"{len(found.holes)} holes were found, not {left_out}")

        ways: dict[str, Callable[[], None]] = {"count": count, "audit": audit}
        seconds: dict[str, list[float]] = {way: [] for way in WAYS}
        for turn in range(repeat + 1):
            for way in WAYS:
                began = time.perf_counter()
                ways[way]()
                took = time.perf_counter() - began
                say.print(f"{TITLES[way]}, {turn or 'warm-up'}: {messages / took:,.0f} messages/s")
                if turn:
                    seconds[way].append(took)
        return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=2_000_000)
    parser.add_argument("--size", type=int, default=400)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    load_before = os.getloadavg()[0]
    seconds = measure(options.messages, options.size, options.repeat, Console(stderr=True))
    table = Table(title=f"{options.messages:,} messages of {options.size} B, all holes found")
    for column in ("", "messages/s", "least", "most"):
        table.add_column(column, justify="left" if not column else "right")
    for way in WAYS:
        rates = sorted(options.messages / took for took in seconds[way])
        middle = statistics.median(rates)
        table.add_row(TITLES[way], *(f"{rate:,.0f}" for rate in (middle, rates[0], rates[-1])))
    Console(width=100).print(table)
    document = {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {
            "cores": os.cpu_count(),
            "load_before": load_before,
            "system": platform.platform(),
            "python": platform.python_version(),
        },
        "messages": options.messages,
        "size": options.size,
        "seconds": seconds,
    }
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
