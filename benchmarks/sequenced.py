"""What numbering costs: a bare confluent_kafka producer beside a SequencedProducer around one.

`python -m benchmarks.sequenced [--messages 1000000] [--repeat 3]` prints a table and keeps
`results/sequenced.json`. Same settings, same messages, same placement; each run has a new topic on
one broker. The ways take turns, so that all of them meet the same machine, and each overhead is a
ratio within one turn; the first turn is a warm-up that does not count. `headed` is a bare producer
that sends a header as long as the stamp, always the same: what the client itself takes for headers.
`quiet` hears of failures only (`delivery.report.only.error`), as `bare` hears of nothing.

Two loads: `ready` sends values made before, as fast as one thread can call; `json` makes each value
with `json.dumps` as it goes, which is the least an application does.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import confluent_kafka
from confluent_kafka import Producer
from rich.console import Console
from rich.table import Table

from backlog.clock import Deadline
from backlog.kafka.admin import create_topic, list_offsets
from backlog.kafka.clients import Admin, make_admin
from backlogctl_delivery.sequenced.producer import SequencedProducer
from backlogctl_delivery.sequenced.sequence import SEQUENCE
from sandbox.embedded import EmbeddedKafka

RESULTS = Path(__file__).parent / "results" / "sequenced.json"
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
_HEADERS = [(SEQUENCE, b"shop-1:1790000000000000:7:12345")]
_POLL_EVERY = 100

Figures = dict[str, float]


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


def send(
    producer: Any,
    topic: str,
    keys: list[bytes],
    make: Callable[[int], bytes],
    is_headed: bool,
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
    left = producer.flush(120)
    if left:
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


def run(admin: Admin, bootstrap: str, way: str, load: str, keys: list[bytes]) -> Figures:
    """Sends all messages into a new topic, and sees that they are there."""
    topic = f"orders-{way}-{load}-{time.monotonic_ns()}"
    create_topic(
        admin, topic, partitions=PARTITIONS, replication=1, config={}, deadline=Deadline(60)
    )
    failed: list[Any] = []
    producer = open_producer(way, bootstrap, failed)
    # The connection and the producer's own id are not what is measured.
    producer.produce(topic, b"first", b"first")
    producer.flush(60)
    ready = [make_value(number) for number in range(1_000)]
    make = make_value if load == "json" else lambda number: ready[number % 1_000]
    cpu = _read_cpu()
    began = time.perf_counter()
    send(producer, topic, keys, make, way == "headed")
    seconds = time.perf_counter() - began
    cpu = _read_cpu() - cpu
    ends = list_offsets({"bootstrap.servers": bootstrap}, topic, range(PARTITIONS), "latest")
    if failed or sum(ends.values()) != len(keys) + 1:
        sys.exit(f"{TITLES[way]}: {sum(ends.values()) - 1:,} of {len(keys):,} messages are there")
    admin.delete_topics([topic])[topic].result(60)
    return {"per_second": len(keys) / seconds, "cpu_us": cpu / len(keys) * 1e6}


def measure(messages: int, repeat: int, say: Console) -> dict[str, Any]:
    """Every way under every load `repeat` times, in turns."""
    keys = [b"order-%d" % (number * 7919 % USERS) for number in range(messages)]
    turns: dict[str, list[dict[str, Figures]]] = {load: [] for load in LOADS}
    with (
        tempfile.TemporaryDirectory(prefix="sequenced-") as scratch,
        EmbeddedKafka.start(Path(scratch) / "kafka", heap="1g") as kafka,
    ):
        admin = make_admin({"bootstrap.servers": kafka.bootstrap})
        for number in range(repeat + 1):
            for load in LOADS:
                turn = {way: run(admin, kafka.bootstrap, way, load, keys) for way in WAYS}
                what = "warm-up" if not number else f"{number} of {repeat}"
                figures = ", ".join(f"{way} {turn[way]['per_second']:,.0f}" for way in WAYS)
                say.print(f"{load}, {what}: {figures} messages/s")
                if number:
                    turns[load].append(turn)
    return turns


def summarize(turns: Sequence[dict[str, Figures]]) -> dict[str, Any]:
    """Least, median and most of every figure; overheads within each turn."""
    found: dict[str, Any] = {
        way: {
            name: _spread([turn[way][name] for turn in turns]) for name in ("per_second", "cpu_us")
        }
        for way in WAYS
    }
    for way, base in OVERHEADS:
        found[f"overhead_of_{way}_over_{base}"] = {
            "time": _spread(
                [turn[base]["per_second"] / turn[way]["per_second"] - 1 for turn in turns]
            ),
            "cpu": _spread([turn[way]["cpu_us"] / turn[base]["cpu_us"] - 1 for turn in turns]),
        }
    return found


def render(document: dict[str, Any]) -> Table:
    table = Table(
        title=f"{document['messages']:,} messages, {PARTITIONS} partitions, one thread; median "
        f"(least–most) of {document['repeat']}",
        caption="CPU is the process's: Python and librdkafka. Overhead is time over the bare "
        "producer's, within a turn.",
    )
    table.add_column("")
    for load in LOADS:
        table.add_column(f"{load}: messages/s", justify="right")
        table.add_column("CPU µs/message", justify="right")
    loads = document["loads"]
    for way in WAYS:
        cells = []
        for load in LOADS:
            cells += [
                format_spread(loads[load][way]["per_second"], "{:,.0f}"),
                format_spread(loads[load][way]["cpu_us"], "{:.2f}"),
            ]
        table.add_row(TITLES[way], *cells)
    table.add_section()
    for way, base in OVERHEADS:
        cells = []
        for load in LOADS:
            more = loads[load][f"overhead_of_{way}_over_{base}"]
            cells += [format_spread(more[figure], "{:+.0%}") for figure in ("time", "cpu")]
        table.add_row(f"{way} over {base}", *cells)
    return table


def format_spread(figure: Figures, form: str) -> str:
    least, middle, most = (form.format(figure[name]) for name in ("min", "median", "max"))
    return f"{middle}\n({least}–{most})" if least != most else middle


def _spread(values: list[float]) -> Figures:
    return {"min": min(values), "median": statistics.median(values), "max": max(values)}


def _read_cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    load_before = os.getloadavg()[0]
    turns = measure(options.messages, options.repeat, Console(stderr=True))
    document = {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {
            "cores": os.cpu_count(),
            "load_before": load_before,
            "system": platform.platform(),
            "python": platform.python_version(),
            "confluent_kafka": confluent_kafka.version(),
            "librdkafka": confluent_kafka.libversion()[0],
        },
        "messages": options.messages,
        "repeat": options.repeat,
        "settings": SETTINGS,
        "loads": {load: summarize(turns[load]) for load in LOADS},
        "turns": turns,
    }
    Console(width=120).print(render(document))
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
