"""What an outbox sends and costs on PostgreSQL, beside a bare insert and polling by id."""

from __future__ import annotations

import json
import random
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta

from confluent_kafka import Producer
from sqlalchemy import (
    Column,
    Integer,
    MetaData,
    String,
    Table,
    case,
    cast,
    func,
    insert,
    literal,
    select,
    text,
)
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.orm import Session
from sqlalchemy.schema import CreateSchema

from backlogctl.kafka.clients import make_producer
from backlogctl_delivery.outbox import Outbox, OutboxSender, Settings
from backlogctl_delivery.outbox.claims import Claims
from backlogctl_delivery.outbox.database import NEVER, OutboxDatabase, State, messages
from benchmarks.harness import Broker

KEYS = 5_000
_WRITERS, _WRITES = 4, 250
VALUE = json.dumps({"status": "PAID", "amount": "12.50", "note": "x" * 300})
orders = Table(
    "orders",
    MetaData(),
    Column("id", Integer, primary_key=True),
    Column("status", String(20)),
    Column("note", String(400)),
)


def make_ways(engine: Engine, broker: Broker, count: int) -> dict[str, Callable[[], float]]:
    """By name what is measured; each leaves the table as the next one needs it."""
    orders.metadata.create_all(engine)
    outbox = Outbox(engine)
    outbox.create()
    cpu: list[float] = []
    writes = min(1_000, count)
    bootstrap, topic = broker.bootstrap, broker.make_topic("orders", 6)

    def scan() -> float:
        fill(engine, outbox, topic, count)
        return scan_all(engine, bootstrap, count, cpu)

    return {
        "insert_ms": lambda: write_orders(engine, None, topic, writes),
        "insert_with_message_ms": lambda: write_orders(engine, outbox, topic, writes),
        "outbox_per_second": scan,
        "outbox_cpu_us": lambda: cpu[-1],
        # The rows of before, which it reads again: it does not mark any.
        "polling_per_second": lambda: poll_all(engine, bootstrap, count),
        "polling_missed": lambda: count_missed(engine, outbox, topic, None),
        "outbox_missed": lambda: count_missed(engine, outbox, topic, bootstrap),
    }


def fill(engine: Engine, outbox: Outbox, topic: str, count: int) -> None:
    with engine.begin() as connection:
        connection.execute(messages.delete())
    for at in range(0, count, 1_000):
        with Session(engine) as session, session.begin():
            for number in range(at, min(at + 1_000, count)):
                outbox.add(session, topic=topic, key=f"k{number * 7919 % KEYS}", value=VALUE)


def scan_all(engine: Engine, bootstrap: str, count: int, cpu: list[float]) -> float:
    """Rows a second by one scanner, until the last is marked; `cpu` gets its µs of each row."""
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


def poll_all(engine: Engine, bootstrap: str, count: int) -> float:
    """The same by a cursor, which marks nothing."""
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


def count_missed(engine: Engine, outbox: Outbox, topic: str, bootstrap: str | None) -> float:
    """How many of 1,000 messages are never sent, whose transactions take up to 10 ms each.
    `bootstrap`: by the outbox; None: by a cursor that looks every 2 ms, as it goes.
    """
    with engine.begin() as connection:
        connection.execute(messages.delete())
    chance = random.Random(7)
    pauses = [[chance.random() / 100 for _ in range(_WRITES)] for _ in range(_WRITERS)]

    def write(own: list[float]) -> None:
        for number, pause in enumerate(own):
            with Session(engine) as session, session.begin():
                outbox.add(session, topic=topic, key=f"k{number}", value=VALUE)
                session.flush()
                time.sleep(pause)

    writers = [threading.Thread(target=write, args=(own,)) for own in pauses]
    sender = None
    if bootstrap is not None:
        often = Settings(scan_every=timedelta(milliseconds=2))
        sender = OutboxSender(engine.url, {"bootstrap.servers": bootstrap}, often)
        sender.start()
    for writer in writers:
        writer.start()
    seen, last, rows = 0, 0, 1
    is_over = False
    while not is_over or rows:
        is_over = not any(writer.is_alive() for writer in writers)
        if sender is None:
            with engine.begin() as connection:
                chosen = select(messages.c.id).where(messages.c.id > last).order_by(messages.c.id)
                found = connection.execute(chosen).scalars().all()
            rows, seen, last = len(found), seen + len(found), max([last, *found])
        else:
            rows = int(seen < sender.counts.delivered)
            seen = sender.counts.delivered
        time.sleep(0.002 if sender is None else 0.5)
    if sender is not None:
        sender.close()
    return float(_WRITERS * _WRITES - seen)


def write_orders(engine: Engine, outbox: Outbox | None, topic: str, count: int) -> float:
    """Milliseconds of one business transaction."""
    began = time.perf_counter()
    for number in range(count):
        with Session(engine) as session, session.begin():
            session.execute(insert(orders).values(status="PAID", note="x" * 300))
            if outbox is not None:
                outbox.add(session, topic=topic, key=f"k{number}", value=VALUE)
    return (time.perf_counter() - began) / count * 1_000


_OF_KEY = 10  # rows of each key of an ordinary queue
_CLAIMS = 20


def make_claim_ways(engine: Engine, rows: int, hot: int) -> dict[str, Callable[[], float]]:
    """Milliseconds of a claim where the oldest rows are of one key, beside an ordinary queue.

    Each queue is filled once, in a schema of its own: a turn claims a part of it and marks nothing.

    Args:
        rows: how many each queue has; half of them wait behind a parked one.
        hot: how many of them one key has.
    """
    queues = {
        "claim_ms": (0, False),
        "claim_parked_ms": (rows // 2, True),
        "claim_hot_ms": (min(hot, rows // 2), False),
    }
    return {
        name: make_claim_way(engine, name, rows, own, is_parked=is_parked)
        for name, (own, is_parked) in queues.items()
    }


def make_claim_way(
    engine: Engine, schema: str, rows: int, own: int, *, is_parked: bool
) -> Callable[[], float]:
    """Of a queue whose first `own` rows are of one key; `is_parked`: the first of them."""
    with engine.begin() as connection:
        connection.execute(CreateSchema(schema))
    there = engine.execution_options(schema_translate_map={None: schema})
    Outbox(there).create()
    with there.begin() as connection:
        queue_up(connection, rows, own)
        if is_parked:
            parked = {"state": str(State.PARKED), "due_at": NEVER}
            connection.execute(messages.update().where(messages.c.id == 1).values(**parked))
        connection.execute(text("ANALYZE"))
    given = Settings()
    claims = Claims(
        OutboxDatabase(there),
        lease=timedelta(hours=1),  # what is claimed stays so until the end
        most=given.most,
        most_of_key=given.most_of_key,
        first_interval=given.first_interval,
        longest_interval=given.longest_interval,
    )
    if not claims.claim_due():
        sys.exit(f"{schema}: nothing was claimed")

    def claim() -> float:
        began = time.perf_counter()
        for _ in range(_CLAIMS):
            claims.claim_due()
        return (time.perf_counter() - began) / _CLAIMS * 1_000

    return claim


def queue_up(connection: Connection, rows: int, own: int) -> None:
    """Rows that are all due, the first one first; `own` of one key before those of other keys."""
    number = func.generate_series(1, rows).column_valued("number")
    key = case((number <= own, -1), else_=number % (rows // _OF_KEY))
    row = {
        "message_id": func.md5(cast(number, String)),
        "topic": literal("orders"),
        "message_key": literal(b"key"),
        "value": literal(VALUE.encode()),
        "ordering_key": func.hashint8extended(key, 0),
        "state": literal(str(State.PENDING)),
        "due_at": number,
        "attempts": literal(0),
        "max_attempts": literal(10),
        "interval_ms": literal(0),
        "created_at": literal(1),
    }
    connection.execute(messages.insert().from_select(list(row), select(*row.values())))
