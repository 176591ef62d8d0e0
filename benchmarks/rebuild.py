"""A million rows in PostgreSQL, a tenth of their messages left in the topic: rebuild the others.

`python -m benchmarks.rebuild [--rows 1000000]` prints tables and keeps `results/rebuild.json`.
Each size runs in a process of its own with a broker and a database of its own: first for speed in
one JVM, then with the executor in a JVM of its own, for memory. Beside the injection, in the same
run and on the same staged files, stands Spark's own Kafka sink, which is at-least-once.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from backlog.kafka.admin import create_topic
from backlog.kafka.clients import make_admin
from benchmarks.shop import COLUMNS, count_lost, expire_messages, fill_table, publish_survivors
from sandbox.embedded import EmbeddedKafka
from tests.services import EmbeddedPostgres

RESULTS = Path(__file__).parent / "results" / "rebuild.json"
PARTITIONS = 4
# One executor of two cores beside the driver: with local[*] both are one JVM.
APART = "local-cluster[1,2,1536]"
CONFIG = """
ledger: sqlite:///backlog.db
staging: {{dir: ./staging}}
spark: {{master: "{master}"}}
clusters:
  main: {{bootstrap.servers: "{bootstrap}"}}
sources:
  shop: {{url: "${{env:SHOP}}", limits: {{connections: 4, fetch_size: 10000}}}}
streams:
  orders:
    cluster: main
    topic: orders
    group: order-service
    source:
      database: shop
      table: orders
      primary_key: [order_id]
      time_column: updated_at
      mutable: true
      message:
        key: order_id
        value: {{json: [{columns}]}}
        headers: {{type: "'OrderPaid'"}}
      identity: {{row: order_id, message: key}}
      stale: restate
"""


def measure(rows: int, *, master: str, sink: bool) -> dict[str, Any]:
    survivors = rows // 10
    with tempfile.TemporaryDirectory() as scratch, EmbeddedPostgres() as postgres:
        # psycopg takes the plain URL, SQLAlchemy the one with the driver's name.
        plain = postgres.url().replace("+psycopg", "")
        fill_table(plain, rows)
        with EmbeddedKafka.start(Path(scratch) / "kafka", heap="1g") as kafka:
            admin = make_admin({"bootstrap.servers": kafka.bootstrap})
            create_topic(admin, "orders", partitions=PARTITIONS, replication=1, config={})
            after = rows - survivors
            lost = count_lost(after, PARTITIONS)
            expire_messages(kafka.bootstrap, "orders", lost)
            published = publish_survivors(
                plain, kafka.bootstrap, "orders", after=after, partitions=PARTITIONS
            )
            assert published == survivors
            config = CONFIG.format(
                bootstrap=kafka.bootstrap, columns=", ".join(COLUMNS), master=master
            )
            order = {
                "config": config,
                "directory": scratch,
                "url": postgres.url(),
                "lost": lost,
                "sink": sink,
            }
            done = subprocess.run(
                [sys.executable, "-m", "benchmarks.rebuild_run"],
                input=json.dumps(order),
                stdout=subprocess.PIPE,
                text=True,
                check=True,
            )
    return dict(json.loads(done.stdout.splitlines()[-1]))


def render(results: list[dict[str, Any]]) -> Table:
    table = Table(title="Rebuild from PostgreSQL", show_lines=False)
    table.add_column("")
    for result in results:
        table.add_column(f"{result['rows']:,} rows", justify="right")
    lines = [
        ("plan: read, compare, prove, stage, s", "plan_seconds"),
        ("  rows/s, all of it", "rows_per_second"),
        ("  rows/s, reading the table", "read_per_second"),
        ("  rows/s, staging the lost ones", "staged_per_second"),
        ("injection, s", "inject_seconds"),
        ("  messages/s, canary included", "messages_per_second"),
        ("  messages/s, after the canary", "after_canary_per_second"),
        ("  bytes a message", "bytes_per_message"),
        ("verification, s", "verify_seconds"),
    ]
    for label, key in lines:
        table.add_row(label, *(f"{result[key]:,}" for result in results))
    table.add_row(
        "Spark's own sink (at-least-once), messages/s",
        *(
            f"{result['sink']['messages_per_second']:,}" if result["sink"] else "–"
            for result in results
        ),
    )
    table.add_row(
        "injection after the canary : Spark's sink",
        *(
            f"{result['after_canary_per_second'] / result['sink']['messages_per_second']:.2f}"
            if result["sink"]
            else "–"
            for result in results
        ),
    )
    return table


def render_memory(results: list[dict[str, Any]]) -> Table:
    """Peak memory; driver and executors are JVMs of their own here."""
    table = Table(title="Peak memory, Spark's executors apart from the driver, MiB")
    table.add_column("")
    for result in results:
        table.add_column(f"{result['rows']:,} rows", justify="right")
    for kind in sorted({kind for result in results for kind in result["peak_mib"]}):
        peaks = (f"{result['peak_mib'].get(kind, 0):,.0f}" for result in results)
        table.add_row(kind.replace("_", " ").replace("jvm", "JVM"), *peaks)
    return table


def main() -> None:
    """Measures a tenth and the whole, for speed and for memory; prints tables, keeps the JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    sizes = (options.rows // 10, options.rows)
    results = [measure(rows, master="local[*]", sink=True) for rows in sizes]
    apart = [measure(rows, master=APART, sink=False) for rows in sizes]
    console = Console(width=100)
    console.print(render(results))
    console.print(render_memory(apart))
    options.output.parent.mkdir(parents=True, exist_ok=True)
    document = {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "cores": os.cpu_count(),
        "speed": {"master": "local[*]", "results": results},
        "memory": {"master": APART, "results": apart},
    }
    options.output.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
