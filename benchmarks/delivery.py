"""What outbox, look-back and idempotent consumer do and cost, on one broker and one machine.

`python -m benchmarks.delivery [--messages 20000] [--repeat 3]` prints a table and keeps
`results/delivery.json`. All ways take turns, so that ratios are those of one run; the first turn
warms up. The servers wait for no disk (`fsync` off), so that what is added weighs most.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import redis
import sqlalchemy as sa
from rich.console import Console
from rich.table import Table

from backlog.kafka.admin import create_topic
from backlog.kafka.clients import make_admin
from benchmarks import delivery_look_back, delivery_once, delivery_outbox
from benchmarks.machine import describe_machine
from sandbox.embedded import EmbeddedKafka
from tests.mariadb import EmbeddedMariaDb
from tests.redis_server import EmbeddedRedis
from tests.services import EmbeddedPostgres

RESULTS = Path(__file__).parent / "results" / "delivery.json"
# A name's figure, what it is, its unit, and the figure of which it is a multiple.
ROWS: tuple[tuple[str, str, str, str | None], ...] = (
    ("outbox_per_second", "outbox: claimed, sent and marked by one scanner", "/s", None),
    ("outbox_cpu_us", "– its CPU for a message", "µs", None),
    (
        "polling_per_second",
        'polling by "id greater than", nothing marked',
        "/s",
        "outbox_per_second",
    ),
    ("polling_missed", "– never sent, of 1,000 that commit out of order", "", None),
    ("outbox_missed", "– by the outbox", "", None),
    ("insert_ms", "business transaction: an insert", "ms", None),
    ("insert_with_message_ms", "– with a message added", "ms", "insert_ms"),
    ("look_back_per_second", "look-back: read, stored, forwarded and marked", "/s", None),
    ("look_back_ms", "– from prepare to the consumer, median", "ms", None),
    ("look_back_ms_95", "– 95 of 100", "ms", None),
    ("postgresql_bare_us", "PostgreSQL: a message's work", "µs", None),
    ("postgresql_first_us", "– with handle_once", "µs", "postgresql_bare_us"),
    ("postgresql_repeat_us", "– a repeat, skipped", "µs", "postgresql_bare_us"),
    ("postgresql_bare_batch_us", "– 100 messages a transaction", "µs", None),
    ("postgresql_first_batch_us", "– – with handle_once", "µs", "postgresql_bare_batch_us"),
    ("mariadb_bare_us", "MariaDB: a message's work", "µs", None),
    ("mariadb_first_us", "– with handle_once", "µs", "mariadb_bare_us"),
    ("mariadb_repeat_us", "– a repeat, skipped", "µs", "mariadb_bare_us"),
    ("mariadb_bare_batch_us", "– 100 messages a transaction", "µs", None),
    ("mariadb_first_batch_us", "– – with handle_once", "µs", "mariadb_bare_batch_us"),
    ("redis_first_us", "Redis: begin and end, without any work", "µs", None),
    ("redis_repeat_us", "– a repeat, skipped", "µs", "redis_first_us"),
)


def measure(messages: int, repeat: int, say: Console) -> tuple[list[dict[str, float]], Any]:
    """Each turn's figures by name, and what the servers are."""
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="delivery-")))
        kafka = stack.enter_context(EmbeddedKafka.start(scratch / "kafka"))
        postgres = stack.enter_context(EmbeddedPostgres())
        mariadb = stack.enter_context(EmbeddedMariaDb())
        client = stack.enter_context(stack.enter_context(EmbeddedRedis()).connect())
        mariadb.execute("CREATE DATABASE bench CHARACTER SET utf8mb4")
        engines = {
            "postgresql": sa.create_engine(postgres.url()),
            "mariadb": sa.create_engine(mariadb.url("bench")),
        }
        admin = make_admin({"bootstrap.servers": kafka.bootstrap})
        create_topic(admin, delivery_outbox.TOPIC, partitions=6, replication=1, config={})
        shop, bootstrap = engines["postgresql"], kafka.bootstrap
        ways: dict[str, Callable[[], float]] = {
            **delivery_outbox.make_ways(shop, bootstrap, messages),
            **delivery_look_back.make_ways(postgres.url(), bootstrap, messages // 2),
            **delivery_once.make_ways(engines, client, messages // 20),
        }
        turns = []
        for number in range(repeat + 1):
            turn: dict[str, float] = {}
            for name, way in ways.items():
                turn[name] = way()
                say.print(f"{number or 'warm-up'}: {name} {turn[name]:,.2f}")
            if number:
                turns.append(turn)
        servers = describe_servers(engines, client)
        for engine in engines.values():
            engine.dispose()
    return turns, servers


def describe_servers(engines: dict[str, sa.Engine], client: redis.Redis) -> dict[str, Any]:
    """Versions, and what they do not wait for."""
    asked = {
        "postgresql": ("server_version", "fsync", "synchronous_commit"),
        "mariadb": ("version", "innodb_flush_log_at_trx_commit", "innodb_buffer_pool_size"),
    }
    found: dict[str, Any] = {"sqlalchemy": sa.__version__}
    for name, engine in engines.items():
        show = "SHOW {}" if name == "postgresql" else "SELECT @@{}"
        with engine.connect() as connection:
            found[name] = {
                each: str(connection.execute(sa.text(show.format(each))).scalar_one())
                for each in asked[name]
            }
    info: Any = client.info("server")
    return {**found, "redis": {"version": info["redis_version"], "save": ""}}


def summarize(turns: list[dict[str, float]]) -> dict[str, dict[str, float]]:
    """Of each name the median and the range; `ratio` is the median of ratios within a turn."""
    found: dict[str, dict[str, float]] = {}
    for name, _, _, base in ROWS:
        values = [turn[name] for turn in turns]
        found[name] = {"min": min(values), "median": statistics.median(values), "max": max(values)}
        if base is not None:
            found[name]["ratio"] = statistics.median(turn[name] / turn[base] for turn in turns)
    return found


def render(document: dict[str, Any]) -> Table:
    load = document["machine"]["load_before"]
    table = Table(
        title=f"{document['messages']:,} messages; median of {document['repeat']} turns; "
        f"load before {load} on {document['machine']['cores']} cores"
    )
    for title in ("", "", "least-most", "ratio"):
        table.add_column(title, justify="right" if table.columns else "left")
    for name, title, unit, _ in ROWS:
        figure = document["figures"][name]
        digits = 2 if unit == "ms" and figure["median"] < 10 else 0
        low, median, high = (f"{figure[each]:,.{digits}f}" for each in ("min", "median", "max"))
        ratio = f"x {figure['ratio']:.2f}" if "ratio" in figure else ""
        table.add_row(title, f"{median} {unit}".strip(), f"{low}-{high}", ratio)
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    if options.messages < 2_000 or options.repeat < 1:
        sys.exit("2,000 messages and one turn are the least")
    machine, began = describe_machine(), time.monotonic()
    turns, servers = measure(options.messages, options.repeat, Console(stderr=True))
    document = {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {**machine, "load_after": describe_machine()["load_before"]},
        "servers": servers,
        "seconds": round(time.monotonic() - began),
        "messages": options.messages,
        "repeat": options.repeat,
        "keys": delivery_outbox.KEYS,
        "figures": summarize(turns),
        "turns": turns,
    }
    Console(width=110).print(render(document))
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
