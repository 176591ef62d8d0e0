"""The relay alone: four million messages from 3 partitions to 30, beside what else copies a topic.

`python -m benchmarks.relay [--messages 4000000] [--repeat 3] [--load 0]`. The relay is the
product's own: its processes, a guard in the group, transactions that also commit the group's
offsets. Beside it, in turns: kcat into kcat, MirrorMaker 2, Spark, Kafka's own producer test.
"""

from __future__ import annotations

import itertools
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from confluent_kafka import TopicPartition
from rich.table import Table

from backlogctl.fanout.relay.guard import GroupGuard
from backlogctl.fanout.relay.interface import Order, Position, RelayTask, SourceRange
from backlogctl.fanout.relay.pool import RelayPool
from backlogctl.formats import Say
from backlogctl.jars import find_java
from backlogctl.kafka.admin import list_offsets, set_group_offsets
from backlogctl.kafka.clients import assign_partitions, make_admin, make_consumer, make_producer
from backlogctl.sandbox.embedded import KAFKA_VERSION
from benchmarks.harness import (
    NUMBER,
    Benchmark,
    Broker,
    Figures,
    format_figure,
    make_orders,
    measured,
    open_spark,
    open_world,
    send,
    spread,
    summarize,
    tabulate,
    take_turns,
)
from benchmarks.relay_others import (
    PARTITIONS,
    TARGETS,
    Copy,
    copy_by_spark,
    mirror,
    pipe,
    run_producer_test,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Counts = np.ndarray[tuple[int], np.dtype[np.int64]]

OTHERS = {
    "kcat": "kcat | kcat",
    "mirror": "MirrorMaker 2",
    "spark": "Spark",
    "producer": "Kafka's producer test",
}
OURS = {
    "key": "records, by key",
    "round_robin": "records, round robin",
    "wire_key": "wire, by key",
    "wire_round_robin": "wire, round robin",
}
TITLES = OTHERS | OURS
COLUMNS = (
    ("thousand/s, start included", "per_second", "{:,.0f}"),
    ("thousand/s, from the first on", "after_start_per_second", "{:,.0f}"),
    ("first, s", "first_seconds", "{:.2f}"),
    ("CPU s a million", "cpu_seconds_per_million", "{:.2f}"),
    ("CPU s, broker", "broker_cpu_seconds", "{:.1f}"),
    ("fullest : emptiest", "fullest_by_emptiest", "{:.2f}"),
)
PROMISES = {
    "kcat": ("yes", "yes", "no", "no", "no", "no", "no"),
    "mirror": ("yes", "no", "yes", "yes", "an option", "no", "no"),
    "spark": ("yes", "yes", "yes", "no", "no", "no", "no"),
    "key": ("yes",) * 7,
    "round_robin": ("yes", "no", *("yes",) * 5),
    "wire_key": ("yes",) * 7,
    "wire_round_robin": ("yes", "no", *("yes",) * 5),
}
PROMISED = (
    "keys kept",
    "a key in one of the 30 partitions",
    "headers, NULL told from empty",
    "timestamps",
    "once, after a crash too",
    "the group's offsets in the same transaction",
    "refuses when a consumer comes back",
)
_NUMBERS = itertools.count()


def publish_orders(broker: Broker, messages: int) -> tuple[str, float]:
    """A topic of numbered orders, keyed by user as Java does, and bytes a message."""
    topic = broker.make_topic("orders", PARTITIONS)
    more = {"linger.ms": 20, "queue.buffering.max.messages": 500_000}
    producer = make_producer(
        broker.properties, {**more, "partitioner": "murmur2_random", "compression.type": "lz4"}
    )
    size = 0
    for key, value in make_orders(messages):
        size += len(key) + len(value)
        send(producer, topic, value, key)
    assert producer.flush(60) == 0
    return topic, size / messages


def relay(
    broker: Broker, source: str, engine: str, order: Order, messages: int, scratch: Path
) -> Copy:
    """One copy through real relay processes and a real guard, into a topic of its own."""
    target, number = broker.make_topic(f"{order}", TARGETS), next(_NUMBERS)
    group, admin = f"group-{target}", make_admin(broker.properties)
    set_group_offsets(admin, group, source, dict.fromkeys(range(PARTITIONS), 0))
    ends = list_offsets(admin, source, range(PARTITIONS), "latest")
    guard = GroupGuard(broker.properties, group, source, PARTITIONS, f"r-{number}")
    task = RelayTask(
        broker.properties,
        f"r-20261121-{number:04}",
        source,
        target,
        TARGETS,
        group,
        guard.join(lambda: None),
        order=order,
        compression="lz4",
        transactional_prefix=f"bench-{target}",
    )
    ranges = [SourceRange(each, 0, ends[each]) for each in range(PARTITIONS)]
    first = (0.0, 0)
    with measured(broker.pid) as usage:
        began = time.monotonic()
        pool = RelayPool(task, ranges, scratch / "relay.log", engine=engine)
        pool.start()
        while not pool.is_done:
            pool.check()
            if not first[1] and (found := pool.positions):
                first = (time.monotonic() - began, _count(found))
            time.sleep(0.01)
        seconds = time.monotonic() - began
        pool.stop()
    guard.check()
    guard.leave()
    assert _count(pool.positions) == messages, "the relay's counters do not say all"
    usage.seconds = seconds
    return Copy(target, usage, first)


def _conclude(broker: Broker, copy: Copy, messages: int) -> Figures:
    """What it took; of the JVMs and relays that are started for it with their start."""
    usage, (seconds, count) = copy.usage, copy.first
    return {
        "per_second": round(messages / usage.seconds),
        "after_start_per_second": round((messages - count) / max(usage.seconds - seconds, 0.001)),
        "first_seconds": round(seconds, 2),
        "cpu_seconds_per_million": round((usage.children + usage.spark) * 1e6 / messages, 3),
        "broker_cpu_seconds": round(usage.broker, 2),
        "fullest_by_emptiest": round(_check(broker, copy, messages), 4),
    }


def _check(broker: Broker, copy: Copy, messages: int) -> float:
    """Reads the copy, read committed: each number once; the fullest partition by the emptiest."""
    admin, target, partitions = make_admin(broker.properties), copy.target, range(copy.partitions)
    # The coordinator answers a commit before each partition has its marker.
    before, ends = None, list_offsets(admin, target, partitions, "latest", "read_committed")
    while sum(ends.values()) < messages or ends != before:
        time.sleep(0.5)
        before = ends
        ends = list_offsets(admin, target, partitions, "latest", "read_committed")
    places = np.array(list(ends.values()), np.int64)
    if copy.numbered:
        seen, places = _read_numbers(broker, target, ends, messages)
        if not (seen == 1).all():
            sys.exit(f"{target}: not each message is there exactly once")
    elif places.sum() != messages:
        sys.exit(f"{target}: has {places.sum():,} messages")
    admin.delete_topics([target])[target].result(30)
    time.sleep(1.0)  # its files go, and the broker is quiet
    return float(places.max() / max(1, places.min()))


def _read_numbers(
    broker: Broker, target: str, ends: Mapping[int, int], messages: int
) -> tuple[Counts, Counts]:
    """How often each number is there, and how many messages each partition has."""
    consumer = make_consumer(
        broker.properties,
        {"enable.partition.eof": True, "max.partition.fetch.bytes": 4 * 1024 * 1024},
    )
    seen = np.zeros(messages, np.int64)
    places = np.zeros(len(ends), np.int64)
    open_ones = {place for place, end in ends.items() if end}
    assign_partitions(consumer, [TopicPartition(target, place, 0) for place in open_ones])
    while open_ones:
        numbers: list[int] = []
        found: list[int] = []
        for message in consumer.consume(20_000, 1.0):
            place = message.partition()
            assert place is not None
            if message.error() is not None:
                open_ones.discard(place)
                continue
            value = message.value()
            assert value is not None
            numbers.append(int(value[NUMBER]))
            found.append(place)
        np.add.at(seen, np.array(numbers, np.int64), 1)
        places += np.bincount(np.array(found, np.int64), minlength=len(ends))
    consumer.close()
    return seen, places


def _count(positions: Mapping[int, Position]) -> int:
    return sum(position.relayed for position in positions.values())


def describe_tools(spark: SparkSession) -> dict[str, str]:
    java = subprocess.run([find_java(), "-version"], capture_output=True, text=True, check=True)
    kcat = subprocess.run(["kcat", "-V"], capture_output=True, text=True, check=True).stdout
    version = next(line for line in kcat.splitlines() if line.startswith("Version"))
    return {
        "java": java.stderr.splitlines()[0],
        "kcat": version,
        "kafka": KAFKA_VERSION,
        "spark": f"{spark.version}, {spark.sparkContext.master}",
    }


def measure(options: Namespace, say: Say) -> Figures:
    messages = options.messages
    with open_world() as (broker, scratch), open_spark() as spark:
        say(f"publishing {messages:,} messages")
        source, size = publish_orders(broker, messages)
        copies: dict[str, Callable[[], Copy]] = {
            "kcat": partial(pipe, broker, source),
            "mirror": partial(mirror, broker, source, messages, scratch),
            "spark": partial(copy_by_spark, broker, source, spark),
            "producer": partial(run_producer_test, broker, messages, scratch),
            "key": partial(relay, broker, source, "record", "key", messages, scratch),
            "round_robin": partial(
                relay, broker, source, "record", "round_robin", messages, scratch
            ),
            "wire_key": partial(relay, broker, source, "wire", "key", messages, scratch),
            "wire_round_robin": partial(
                relay, broker, source, "wire", "round_robin", messages, scratch
            ),
        }
        ways = {
            way: lambda copy=copy: _conclude(broker, copy(), messages)
            for way, copy in copies.items()
        }
        runs = take_turns(ways, options.repeat, say)
        tools = describe_tools(spark)
    summaries = {way: summarize(found) for way, found in runs.items()}
    return {
        "tools": tools,
        "bytes": round(size),
        "ways": summaries,
        "ratios": {way: _compare(runs, way) for way in OURS},
        "runs": runs,
    }


def _compare(runs: Mapping[str, list[Figures]], way: str) -> Figures:
    """Ratios within each turn: its speed by that of the others, its CPU by the record engine's."""

    def divide(name: str, other: str) -> Figures:
        pairs = zip(runs[way], runs[other], strict=True)
        return spread([ours[name] / max(theirs[name], 0.001) for ours, theirs in pairs])

    return {
        **{o: {n: divide(n, o) for _, n, _ in COLUMNS[:2]} for o in OTHERS},
        "cpu": divide("cpu_seconds_per_million", way.removeprefix("wire_")),
    }


def draw(document: Figures) -> Iterable[Table]:
    ways, sizes = document["ways"], f"{document['messages']:,} messages of {document['bytes']} B"
    load = f", beside {document['load']} busy processes" if document["load"] else ""
    yield tabulate(
        f"{sizes}, lz4, {PARTITIONS} → {TARGETS} partitions; median (least–most) of "
        f"{document['repeat']}{load}",
        {name: heading for heading, name, _ in COLUMNS},
        [
            [TITLES[way], *(format_figure(_scale(n, ways[way][n]), f) for _, n, f in COLUMNS)]
            for way in TITLES
        ],
        caption="CPU of who copies, its start included; Spark's start is left out. MirrorMaker 2 "
        "keeps the 3 partitions; the producer test reads nothing. First: of ours, committed.",
    )
    yield tabulate(
        "Ours by theirs, within a turn: start included / from the first message on",
        {**OTHERS, "cpu": "CPU by that of records"},
        [[OURS[way], *_format_ratios(document["ratios"][way])] for way in OURS],
    )
    promises = [(TITLES[way], *kept) for way, kept in PROMISES.items()]
    yield tabulate(
        "What holds",
        dict(zip(PROMISED, PROMISED, strict=True)),
        promises,
        caption="kcat's keys and values are lines of text: no tabs or line ends in them.",
    )


def _scale(name: str, figure: Figures) -> Figures:
    """Rates in thousands, which a terminal has room for."""
    return {n: each / 1e3 for n, each in figure.items()} if name.endswith("per_second") else figure


def _format_ratios(ratios: Figures) -> Iterable[str]:
    for other in OTHERS:
        yield " / ".join(f"{ratios[other][name]['median']:.2f}" for _, name, _ in COLUMNS[:2])
    yield f"{ratios['cpu']['median']:.2f}"


BENCHMARK = Benchmark(
    *("relay", __doc__, {"messages": 4_000_000, "repeat": 3}),
    *({"messages": 2_000, "repeat": 0}, measure, draw),
)

if __name__ == "__main__":
    BENCHMARK.main()
