"""The relay alone: a million messages from 3 partitions to 30, beside kcat piped into kcat.

`python -m benchmarks.relay [--messages 1000000] [--repeat 3]`. The relay is the product's own: its
processes, a guard in the group, transactions that also commit the group's offsets.
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
from benchmarks.harness import (
    NUMBER,
    Benchmark,
    Broker,
    Figures,
    Usage,
    make_orders,
    measured,
    open_world,
    row,
    send,
    summarize,
    tabulate,
    take_turns,
)

PARTITIONS, TARGETS = 3, 30
TITLES = {
    "kcat": "kcat | kcat",
    "key": "records, by key",
    "round_robin": "records, round robin",
    "wire_key": "wire, by key",
    "wire_round_robin": "wire, round robin",
}
ROWS = (
    ("messages/s, start-up included", "per_second", "{:,.0f}"),
    ("messages/s, after the first commit", "after_start_per_second", "{:,.0f}"),
    ("first commit, s", "first_commit_seconds", "{:.2f}"),
    ("CPU s, who copies", "copier_cpu_seconds", "{:.1f}"),
    ("CPU s, broker", "broker_cpu_seconds", "{:.1f}"),
    ("fullest : emptiest partition", "fullest_by_emptiest", "{:.3f}"),
)
PROMISES = (
    ("each message there once, this time", "yes"),
    ("… and after a crash (transactions)", "no"),
    ("commits the group's offsets with them", "no"),
    ("headers, timestamps, null values", "no"),
    ("refuses when a consumer comes back", "no"),
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
) -> Figures:
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
    first: tuple[float, int] | None = None
    with measured(broker.pid) as usage:
        began = time.monotonic()
        pool = RelayPool(task, ranges, scratch / "relay.log", engine=engine)
        pool.start()
        while not pool.is_done:
            pool.check()
            if first is None and (found := pool.positions):
                first = (time.monotonic() - began, _count(found))
            time.sleep(0.01)
        seconds = time.monotonic() - began
        pool.stop()
    guard.check()
    guard.leave()
    assert _count(pool.positions) == messages, "the relay's counters do not say all"
    usage.seconds = seconds
    return _conclude(broker, usage, target, messages, first)


def pipe(broker: Broker, source: str, messages: int) -> Figures:
    """One copy by kcat into kcat, as fast as it goes: keys and values in lines of text."""
    target = broker.make_topic("kcat", TARGETS)
    reading = ["kcat", "-C", "-b", broker.bootstrap, "-t", source, "-o", "beginning", "-e", "-q"]
    reading += ["-K", r"\t", "-X", "fetch.wait.max.ms=50"]
    writing = ["kcat", "-P", "-b", broker.bootstrap, "-t", target, "-z", "lz4", "-K", r"\t"]
    for setting in (
        "linger.ms=10",
        "queue.buffering.max.messages=500000",
        "topic.partitioner=murmur2_random",
    ):
        writing += ["-X", setting]
    with measured(broker.pid) as usage:
        reader = subprocess.Popen(reading, stdout=subprocess.PIPE)
        writer = subprocess.Popen(writing, stdin=reader.stdout)
        assert reader.stdout is not None
        reader.stdout.close()
        codes = (writer.wait(), reader.wait())
    assert codes == (0, 0), f"kcat ended with {codes}"
    return _conclude(broker, usage, target, messages, None)


def _conclude(
    broker: Broker, usage: Usage, target: str, messages: int, first: tuple[float, int] | None
) -> Figures:
    """`first`: seconds until the first messages were committed, and how many those were."""
    after = None
    if first is not None:
        after = round((messages - first[1]) / max(usage.seconds - first[0], 0.001))
    return {
        "per_second": round(messages / usage.seconds),
        "after_start_per_second": after,
        "first_commit_seconds": None if first is None else round(first[0], 2),
        "copier_cpu_seconds": round(usage.children, 2),
        "broker_cpu_seconds": round(usage.broker, 2),
        "fullest_by_emptiest": round(_check(broker, target, messages), 4),
    }


def _check(broker: Broker, target: str, messages: int) -> float:
    """Reads the copy, read committed: each number once; the fullest partition by the emptiest."""
    admin, properties = make_admin(broker.properties), broker.properties
    # The coordinator answers a commit before each partition has its marker.
    before, ends = None, list_offsets(admin, target, range(TARGETS), "latest", "read_committed")
    while sum(ends.values()) < messages or ends != before:
        time.sleep(0.5)
        before = ends
        ends = list_offsets(admin, target, range(TARGETS), "latest", "read_committed")
    consumer = make_consumer(
        properties, {"enable.partition.eof": True, "max.partition.fetch.bytes": 4 * 1024 * 1024}
    )
    seen = np.zeros(messages, np.int32)
    places = np.zeros(TARGETS, np.int64)
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
        places += np.bincount(np.array(found, np.int64), minlength=TARGETS)
    consumer.close()
    if not (seen == 1).all():
        sys.exit(f"{target}: not each message is there exactly once")
    admin.delete_topics([target])[target].result(30)
    time.sleep(1.0)  # its files go, and the broker is quiet
    return float(places.max() / max(1, places.min()))


def _count(positions: Mapping[int, Position]) -> int:
    return sum(position.relayed for position in positions.values())


def describe_tools() -> dict[str, str]:
    java = subprocess.run([find_java(), "-version"], capture_output=True, text=True, check=True)
    kcat = subprocess.run(["kcat", "-V"], capture_output=True, text=True, check=True).stdout
    version = next(line for line in kcat.splitlines() if line.startswith("Version"))
    return {"java": java.stderr.splitlines()[0], "kcat": version}


def measure(options: Namespace, say: Say) -> Figures:
    messages = options.messages
    with open_world() as (broker, scratch):
        say(f"publishing {messages:,} messages")
        source, size = publish_orders(broker, messages)
        ways: dict[str, Callable[[], Figures]] = {
            "kcat": lambda: pipe(broker, source, messages),
            "key": partial(relay, broker, source, "record", "key", messages, scratch),
            "round_robin": partial(
                relay, broker, source, "record", "round_robin", messages, scratch
            ),
            "wire_key": partial(relay, broker, source, "wire", "key", messages, scratch),
            "wire_round_robin": partial(
                relay, broker, source, "wire", "round_robin", messages, scratch
            ),
        }
        runs = take_turns(ways, options.repeat, say)
    ways_found = {way: summarize(found) for way, found in runs.items()}
    return {"tools": describe_tools(), "bytes": round(size), "ways": ways_found, "runs": runs}


def draw(document: Figures) -> Iterable[Table]:
    table = tabulate(
        f"{document['messages']:,} messages of {document['bytes']} B, lz4, "
        f"{PARTITIONS} → {TARGETS} partitions; median (least–most) of {document['repeat']}",
        *(TITLES, [row(one[0], (document["ways"][w] for w in TITLES), *one[1:]) for one in ROWS]),
        caption="CPU seconds are for all of the messages. kcat's keys and values are lines of "
        "text: no tabs or line ends in them, and an empty value is the same as none.",
    )
    table.add_section()
    for label, without in PROMISES:
        table.add_row(label, without, *("yes",) * 4)
    yield table


BENCHMARK = Benchmark(
    *("relay", __doc__, {"messages": 1_000_000, "repeat": 3}),
    *({"messages": 2_000, "repeat": 0}, measure, draw),
)

if __name__ == "__main__":
    BENCHMARK.main()
