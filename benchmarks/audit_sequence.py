"""How fast a topic's sequences are audited with Spark, beside Spark only counting the messages.

`python -m benchmarks.audit_sequence [--messages 2000000] [--repeat 3]`. The messages are of about
400 B, numbered by one producer, and a few are left out: each turn must find exactly these. Spark's
start is not in it.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Iterable
from typing import Any

from rich.table import Table

from backlogctl.formats import Say
from backlogctl.kafka.admin import list_offsets
from backlogctl.kafka.clients import make_producer
from backlogctl.spark_backfill.audits.sequence import audit_sequence
from backlogctl.spark_backfill.existing.messages import read_log
from backlogctl.values import OffsetRange
from backlogctl_delivery.sequenced.sequence import Stamp, hash_topic, write_stamp
from benchmarks.harness import (
    Benchmark,
    Broker,
    Figures,
    make_orders,
    measured,
    open_spark,
    open_world,
    row,
    send,
    summarize,
    tabulate,
    take_turns,
)

PARTITIONS = 4
LEFT_OUT = 20
TITLES = {"count": "Spark reads and counts", "audit": "audit sequence"}


def publish(broker: Broker, topic: str, messages: int) -> int:
    """Numbered messages; returns how many were left out."""
    producer = make_producer(
        broker.properties, {"linger.ms": 50, "queue.buffering.max.messages": 500_000}
    )
    each = max(PARTITIONS + 1, messages // LEFT_OUT)
    here, left_out = hash_topic(topic), 0
    for number, (key, value) in enumerate(make_orders(messages)):
        partition, sequence = number % PARTITIONS, number // PARTITIONS
        if number % each == each // 2:
            left_out += 1
            continue
        headers: Any = write_stamp(Stamp("shop-7", 1790000000000000, here, partition, sequence))
        send(producer, topic, value, key, partition, headers=headers)
    assert producer.flush(120) == 0
    return left_out


def measure(options: Namespace, say: Say) -> Figures:
    messages = options.messages
    with open_world() as (broker, _):
        topic = broker.make_topic("orders", PARTITIONS)
        say(f"publishing {messages:,} messages")
        left_out = publish(broker, topic, messages)
        ends = list_offsets(broker.properties, topic, range(PARTITIONS), "latest")
        ranges = [OffsetRange(number, 0, end) for number, end in ends.items()]

        def count() -> Figures:
            with measured() as usage:
                found = read_log(spark, broker.properties, topic, ranges).count()
            if found != messages - left_out:
                sys.exit(f"{found:,} messages were read, not {messages - left_out:,}")
            return {"per_second": round(messages / usage.seconds)}

        def audit() -> Figures:
            with measured() as usage:
                log = read_log(spark, broker.properties, topic, ranges)
                found = audit_sequence(log, topic, range(PARTITIONS))
            if sum(hole.count for hole in found.holes) != left_out or not found.is_whole:
                sys.exit(f"{len(found.holes)} holes were found, not {left_out}")
            return {"per_second": round(messages / usage.seconds)}

        with open_spark() as spark:
            runs = take_turns({"count": count, "audit": audit}, options.repeat, say)
    return {"ways": {way: summarize(found) for way, found in runs.items()}, "runs": runs}


def draw(document: Figures) -> Iterable[Table]:
    title = f"{document['messages']:,} messages, all holes found"
    rows = [row("messages/s", (document["ways"][way] for way in TITLES), "per_second")]
    yield tabulate(title, TITLES, rows)


BENCHMARK = Benchmark(
    *("audit_sequence", __doc__, {"messages": 2_000_000, "repeat": 3}),
    *({"messages": 2_000, "repeat": 0}, measure, draw),
)

if __name__ == "__main__":
    BENCHMARK.main()
