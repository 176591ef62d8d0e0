"""Reading batch headers: how fast a topic's log is profiled, with the brokers on the same cores.

`python -m benchmarks.forensics [--messages 2000000] [--repeat 3]`. Messages of about 400 B are
published with lz4 in batches of as many messages as a column's head says.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Iterable

from rich.table import Table

from backlogctl.formats import Say
from backlogctl.kafka.clients import make_producer
from backlogctl.monitoring.producers.reader import profile_topic
from benchmarks.harness import (
    Benchmark,
    Broker,
    Figures,
    make_orders,
    measured,
    open_world,
    row,
    send,
    summarize,
    tabulate,
    take_turns,
)

PARTITIONS = 6
BATCHES = {"1000": "batches of 1,000", "100": "batches of 100"}
ROWS = (
    ("messages/s", "messages_per_second", "{:,.0f}"),
    ("batches/s", "batches_per_second", "{:,.0f}"),
    ("MB/s of the log", "megabytes_per_second", "{:,.0f}"),
    ("messages in a batch", "messages_per_batch", "{:,.0f}"),
    ("B a message in the log", "bytes_per_message", "{:,.0f}"),
    ("CPU s, reader", "reader_cpu_seconds", "{:.2f}"),
    ("CPU s, broker", "broker_cpu_seconds", "{:.2f}"),
)


def publish(broker: Broker, messages: int, each: int) -> str:
    topic = broker.make_topic("orders", PARTITIONS)
    more = {"linger.ms": 200, "batch.num.messages": each, "queue.buffering.max.messages": 500_000}
    producer = make_producer(broker.properties, {**more, "compression.type": "lz4"})
    for number, (_, value) in enumerate(make_orders(messages)):
        # As many in turn to a partition as make a batch.
        send(producer, topic, value, partition=number // each % PARTITIONS)
    assert producer.flush(60) == 0
    return topic


def read(broker: Broker, topic: str, messages: int) -> Figures:
    """One profile, from connecting on."""
    with measured(broker.pid) as usage:
        profile = profile_topic(broker.properties, topic)
    if profile.messages != messages or profile.breaks:
        sys.exit(f"{profile.messages:,} messages, {len(profile.breaks)} breaks: that is wrong")
    return {
        "messages_per_second": round(messages / usage.seconds),
        "batches_per_second": round(profile.batches / usage.seconds),
        "megabytes_per_second": round(profile.bytes / usage.seconds / 1e6),
        "messages_per_batch": round(messages / profile.batches),
        "bytes_per_message": round(profile.bytes / messages),
        "reader_cpu_seconds": round(usage.own, 3),
        "broker_cpu_seconds": round(usage.broker, 3),
    }


def measure(options: Namespace, say: Say) -> Figures:
    with open_world() as (broker, _):
        say(f"publishing {options.messages:,} messages, twice")
        topics = {each: publish(broker, options.messages, int(each)) for each in BATCHES}
        ways = {
            each: lambda topic=topic: read(broker, topic, options.messages)
            for each, topic in topics.items()
        }
        runs = take_turns(ways, options.repeat, say)
    return {"batches": {each: summarize(found) for each, found in runs.items()}, "runs": runs}


def draw(document: Figures) -> Iterable[Table]:
    title = f"{document['messages']:,} messages, lz4, {PARTITIONS} partitions; connecting included"
    found = [document["batches"][each] for each in BATCHES]
    yield tabulate(title, BATCHES, [row(one[0], found, *one[1:]) for one in ROWS])


BENCHMARK = Benchmark(
    *("forensics", __doc__, {"messages": 2_000_000, "repeat": 3}),
    *({"messages": 3_000, "repeat": 0}, measure, draw),
)

if __name__ == "__main__":
    BENCHMARK.main()
