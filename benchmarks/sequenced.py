"""What numbering costs: a bare confluent_kafka producer beside a SequencedProducer around one.

`python -m benchmarks.sequenced [--messages 1000000] [--repeat 3]`. Same settings, same messages,
same placement; each run has a new topic on one broker. Each overhead is a ratio within one turn.
`headed` is a bare producer that sends a header as long as the stamp, always the same: what the
client itself takes for headers. `quiet` hears of failures only (`delivery.report.only.error`), as
`bare` hears of nothing.

Two loads: `ready` sends values made before, as fast as one thread can call; `json` makes each value
with `json.dumps` as it goes, which is the least an application does.
"""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from collections.abc import Callable, Iterable
from typing import Any

from confluent_kafka import Producer
from rich.table import Table

from backlogctl.formats import Say
from backlogctl.kafka.admin import list_offsets
from backlogctl.kafka.clients import make_admin
from backlogctl_delivery.sequenced.producer import SequencedProducer
from backlogctl_delivery.sequenced.sequence import SEQUENCE
from benchmarks.harness import (
    Benchmark,
    Broker,
    Figures,
    format_figure,
    measured,
    open_world,
    spread,
    summarize,
    tabulate,
    take_turns,
)

PARTITIONS = 12
USERS = 50_000
SETTINGS = {
    "enable.idempotence": True,
    "linger.ms": 5,
    "compression.type": "lz4",
    "queue.buffering.max.messages": 200_000,
}
LOADS = ("ready", "json")
WAYS = ("bare", "reported", "headed", "sequenced", "quiet")
TITLES = {
    "bare": "bare, no reports",
    "reported": "bare, with on_delivery",
    "headed": "bare, with on_delivery and a header",
    "sequenced": "SequencedProducer, with on_delivery",
    "quiet": "SequencedProducer, only failures reported",
}
# Each overhead: of which, over which.
OVERHEADS = (
    ("sequenced", "bare"),
    ("sequenced", "reported"),
    ("sequenced", "headed"),
    ("headed", "reported"),
    ("quiet", "bare"),
)
_HEADERS = [(SEQUENCE, b"shop-1:1790000000000000:0a1b2c3d:7:12345")]
_POLL_EVERY = 100


def make_value(number: int) -> bytes:
    order = {
        "order_id": number,
        "user_id": number % USERS,
        "status": "PAID",
        "amount": f"{number % 9973}.50",
        "currency": "EUR",
        "items": [{"sku": f"sku-{number % 31}", "count": 1 + number % 3}],
        "note": "left at the door of the neighbour",
    }
    return json.dumps(order).encode()


def publish(
    producer: Any, topic: str, keys: list[bytes], make: Callable[[int], bytes], is_headed: bool
) -> None:
    """One thread's loop, the same for all. `bare` has no report to ask for."""
    produce, poll = producer.produce, producer.poll
    more: dict[str, Any] = {"headers": _HEADERS} if is_headed else {}
    for number, key in enumerate(keys):
        while True:
            try:
                produce(topic, make(number), key, **more)
                break
            except BufferError:
                poll(0.01)
        if number % _POLL_EVERY == 0:
            poll(0)
    if left := producer.flush(120):
        sys.exit(f"{left} messages were not delivered within 120 s")


def open_producer(way: str, bootstrap: str, failed: list[Any]) -> Any:
    def report(error: Any, _: Any) -> None:
        if error is not None:
            failed.append(error)

    settings: dict[str, Any] = {"bootstrap.servers": bootstrap, "log_level": 0, **SETTINGS}
    if way in ("reported", "headed"):
        settings["on_delivery"] = report
    if way == "quiet":
        settings["delivery.report.only.error"] = True
    bare = Producer(settings)
    is_sequenced = way in ("sequenced", "quiet")
    return SequencedProducer(bare, "shop-1", on_delivery=report) if is_sequenced else bare


def run(broker: Broker, way: str, load: str, keys: list[bytes]) -> Figures:
    """Sends all messages into a new topic, and sees that they are there."""
    topic = broker.make_topic(f"orders-{way}-{load}", PARTITIONS)
    failed: list[Any] = []
    producer = open_producer(way, broker.bootstrap, failed)
    # The connection and the producer's own id are not what is measured.
    producer.produce(topic, b"first", b"first")
    producer.flush(60)
    ready = [make_value(number) for number in range(1_000)]
    make = make_value if load == "json" else lambda number: ready[number % 1_000]
    with measured() as usage:
        publish(producer, topic, keys, make, way == "headed")
    ends = list_offsets(broker.properties, topic, range(PARTITIONS), "latest")
    if failed or sum(ends.values()) != len(keys) + 1:
        sys.exit(f"{TITLES[way]}: {sum(ends.values()) - 1:,} of {len(keys):,} messages are there")
    admin = make_admin(broker.properties)  # its futures end with it
    admin.delete_topics([topic])[topic].result(60)
    return {"per_second": len(keys) / usage.seconds, "cpu_us": usage.own / len(keys) * 1e6}


def measure(options: Namespace, say: Say) -> Figures:
    keys = [b"order-%d" % (number * 7919 % USERS) for number in range(options.messages)]
    with open_world() as (broker, _):
        ways = {
            f"{load} {way}": lambda way=way, load=load: run(broker, way, load, keys)
            for load in LOADS
            for way in WAYS
        }
        runs = take_turns(ways, options.repeat, say)
    found: Figures = {name: summarize(turns) for name, turns in runs.items()}
    for load in LOADS:
        for way, base in OVERHEADS:
            turns = list(zip(runs[f"{load} {way}"], runs[f"{load} {base}"], strict=True))
            found[f"{load} {way} over {base}"] = {
                "per_second": spread([b["per_second"] / w["per_second"] - 1 for w, b in turns]),
                "cpu_us": spread([w["cpu_us"] / max(b["cpu_us"], 1e-9) - 1 for w, b in turns]),
            }
    return {"settings": SETTINGS, "ways": found, "runs": runs}


def draw(document: Figures) -> Iterable[Table]:
    columns: dict[str, str] = {}
    for load in LOADS:
        columns |= {load: f"{load}: messages/s", f"{load} cpu": "CPU µs/message"}
    rows = []
    lines = [(TITLES[way], way, ("{:,.0f}", "{:.2f}")) for way in WAYS]
    lines += [(name := f"{way} over {base}", name, ("{:+.0%}",) * 2) for way, base in OVERHEADS]
    for title, name, forms in lines:
        found = [document["ways"][f"{load} {name}"] for load in LOADS]
        cells = [
            format_figure(one[figure], form)
            for one in found
            for figure, form in zip(("per_second", "cpu_us"), forms, strict=True)
        ]
        rows.append([title, *cells])
    yield tabulate(
        f"{document['messages']:,} messages, {PARTITIONS} partitions, one thread",
        *(columns, rows),
        caption="CPU is the process's: Python and librdkafka. Overhead is time over the bare "
        "producer's, within a turn.",
    )


BENCHMARK = Benchmark(
    *("sequenced", __doc__, {"messages": 1_000_000, "repeat": 3}),
    *({"messages": 500, "repeat": 0}, measure, draw),
)

if __name__ == "__main__":
    BENCHMARK.main()
