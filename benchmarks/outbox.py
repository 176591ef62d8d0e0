"""What an outbox costs and does, on PostgreSQL and one broker.

`python -m benchmarks.outbox [--messages 30000] [--repeat 3]` prints the figures and keeps
`results/outbox.json`. Sending: rows that are committed already, from the sender's start until the
last one is marked, by one scanner; beside it a loop that polls by "id greater than the last", sends
and remembers the last id: faster, and loses what commits late. Business transactions: a bare
insert of an order, the same with a message added, one transaction each. The ways take turns.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from sqlalchemy import Column, Integer, MetaData, String, Table, create_engine, func, insert, select
from sqlalchemy.engine import Engine
from sqlalchemy.orm import Session

from backlog.clock import Deadline
from backlog.kafka.admin import create_topic
from backlog.kafka.clients import make_admin, make_producer
from delivery.outbox import Outbox, OutboxSender
from delivery.outbox.tables import State, messages
from sandbox.embedded import EmbeddedKafka
from tests.services import EmbeddedPostgres

RESULTS = Path(__file__).parent / "results" / "outbox.json"
TOPIC = "orders"
KEYS = 5_000
TRANSACTIONS = 1_500
VALUE = json.dumps({"status": "PAID", "amount": "12.50", "note": "x" * 300})
orders = Table(
    "orders",
    MetaData(),
    Column("id", Integer, primary_key=True),
    Column("status", String(20)),
    Column("note", String(400)),
)


def fill(engine: Engine, outbox: Outbox, count: int) -> None:
    with engine.begin() as connection:
        connection.execute(messages.delete())
    for at in range(0, count, 1_000):
        with Session(engine) as session, session.begin():
            for number in range(at, min(at + 1_000, count)):
                outbox.add(session, topic=TOPIC, key=f"k{number * 7919 % KEYS}", value=VALUE)


def scan(engine: Engine, bootstrap: str, count: int, cpu: list[float]) -> float:
    """Rows a second by one scanner; `cpu` gets its microseconds of CPU for each row."""
    sender = OutboxSender(engine.url, {"bootstrap.servers": bootstrap})
    began, worked = time.perf_counter(), time.process_time()
    sender.start()
    while sender.counts.delivered < count:
        time.sleep(0.01)
        if time.perf_counter() - began > 300:
            sys.exit(f"{sender.counts.delivered:,} of {count:,} were sent in 300 s")
    seconds = time.perf_counter() - began
    cpu.append((time.process_time() - worked) / count * 1e6)
    sender.close()
    unsent = select(func.count()).where(messages.c.state != State.SENT)
    with engine.connect() as connection:
        if left := connection.execute(unsent).scalar_one():
            sys.exit(f"{left:,} of {count:,} are not marked")
    return count / seconds


def poll_by_id(engine: Engine, bootstrap: str, count: int) -> float:
    """The same by a cursor."""
    producer: Producer = make_producer({"bootstrap.servers": bootstrap, "linger.ms": 1})
    last = sent = 0
    began = time.perf_counter()
    with engine.connect() as connection:
        while sent < count:
            rows = connection.execute(
                select(messages.c.id, messages.c.topic, messages.c.message_key, messages.c.value)
                .where(messages.c.id > last)
                .order_by(messages.c.id)
                .limit(500)
            ).all()
            for row in rows:
                producer.produce(row.topic, row.value, row.message_key)
            producer.flush()
            sent, last = sent + len(rows), rows[-1].id
    return count / (time.perf_counter() - began)


def write_orders(engine: Engine, outbox: Outbox | None) -> float:
    """Milliseconds of one business transaction."""
    began = time.perf_counter()
    for number in range(TRANSACTIONS):
        with Session(engine) as session, session.begin():
            session.execute(insert(orders).values(status="PAID", note="x" * 300))
            if outbox is not None:
                outbox.add(session, topic=TOPIC, key=f"k{number}", value=VALUE)
    return (time.perf_counter() - began) / TRANSACTIONS * 1_000


def measure(count: int, repeat: int) -> dict[str, Any]:
    turns: dict[str, list[float]] = {}
    cpu: list[float] = []
    with (
        tempfile.TemporaryDirectory(prefix="outbox-") as scratch,
        EmbeddedKafka.start(Path(scratch) / "kafka") as kafka,
        EmbeddedPostgres() as postgres,
    ):
        admin = make_admin({"bootstrap.servers": kafka.bootstrap})
        create_topic(admin, TOPIC, partitions=6, replication=1, config={}, deadline=Deadline(60))
        engine = create_engine(postgres.url())
        orders.metadata.create_all(engine)
        outbox = Outbox(engine)
        outbox.create()
        ways: dict[str, Callable[[], float]] = {
            "insert_ms": lambda: write_orders(engine, None),
            "insert_with_message_ms": lambda: write_orders(engine, outbox),
            "scanner_per_second": lambda: scan(engine, kafka.bootstrap, count, cpu),
            "polling_by_id_per_second": lambda: poll_by_id(engine, kafka.bootstrap, count),
        }
        for turn in range(repeat + 1):
            for name, way in ways.items():
                if name == "scanner_per_second":
                    fill(engine, outbox, count)
                figure = way()
                print(f"{turn or 'warm-up'}: {name} {figure:,.2f}", flush=True)
                if turn:
                    turns.setdefault(name, []).append(figure)
        engine.dispose()
    turns["scanner_cpu_us"] = cpu[1:]
    return {
        name: {"median": statistics.median(found), "low": min(found), "high": max(found)}
        for name, found in turns.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=30_000)
    parser.add_argument("--repeat", type=int, default=3)
    given = parser.parse_args()
    figures = measure(given.messages, given.repeat)
    document = {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "cores": os.cpu_count(),
        "messages": given.messages,
        "keys": KEYS,
        "figures": figures,
    }
    RESULTS.write_text(json.dumps(document, indent=2) + "\n")
    print(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
