"""The story's last question, and the oracle of the crash tests: was what is committed handled once,
and nothing else? By ids, not by counts.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Self

import sqlalchemy as sa

from backlogctl.formats import format_plural
from backlogctl_delivery.idempotent.sql import Marks

_MOST_IDS = 20


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a business table, and what its message tells: the number counts within its key."""

    id: str
    key: str
    number: int


@dataclass(frozen=True, slots=True)
class Sent:
    """One message of the topic."""

    message_id: str
    row: Row


@dataclass(frozen=True, slots=True)
class Facts:
    """What was found when all was at rest.

    Attributes:
        begun: ids of all business transactions, each noted before it began.
        committed: the business table.
        topic: every message, each partition's in its order.
        handled: what the consumer did, in its order; a row for each time.
        dropped: how many messages it knew already.
    """

    begun: frozenset[str]
    committed: tuple[Row, ...]
    topic: tuple[Sent, ...]
    handled: tuple[Row, ...]
    dropped: int


@dataclass(frozen=True, slots=True)
class Audit:
    """What the comparison found; of what is wrong the ids, or the keys.

    Attributes:
        rolled_back: transactions that began and are not in the table, killed ones among them.
        repeats: messages of the topic beyond the first of each row.
        missing: committed and not in the topic, or not handled.
        twice: handled more than once.
        not_committed: in the topic or handled, and in no committed row.
        out_of_order: keys whose rows arrived first, or were handled, in another order.
        other_id: rows whose messages bear different ids, so that repeats cannot be told.
    """

    committed: int
    handled: int
    rolled_back: int
    repeats: int
    dropped: int
    missing: tuple[str, ...]
    twice: tuple[str, ...]
    not_committed: tuple[str, ...]
    out_of_order: tuple[str, ...]
    other_id: tuple[str, ...]

    @property
    def passed(self) -> bool:
        """Something was committed, and each of it was handled once, and nothing else."""
        return self.committed > 0 and not any(self.list_wrong().values())

    def list_wrong(self) -> Mapping[str, tuple[str, ...]]:
        """What must be empty, by its name."""
        return {
            field.name: value
            for field in fields(self)
            if isinstance(value := getattr(self, field.name), tuple)
        }

    def to_json(self) -> dict[str, Any]:
        """Counts, and some ids of what is wrong."""
        wrong = self.list_wrong()
        counts = {
            field.name: len(wrong[field.name]) if field.name in wrong else getattr(self, field.name)
            for field in fields(self)
        }
        ids = {name: list(found[:_MOST_IDS]) for name, found in wrong.items() if found}
        return {**counts, "ids": ids, "passed": self.passed}

    def tell(self, rows: str) -> str:
        """In one line; `rows` is what is counted, such as `orders`."""
        seen = f"{len(self.not_committed):,} of them" if self.not_committed else "never"
        return (
            f"{self.committed:,} {rows} in the table, {self.handled:,} handled, "
            f"{len(self.missing):,} missing, {len(self.twice):,} twice, "
            f"{format_plural(self.dropped, 'repeat')} dropped, "
            f"{self.rolled_back:,} rolled back and {seen} seen"
        )


def audit_facts(facts: Facts) -> Audit:
    """Compares the business table with the topic and with what was done."""
    committed, done = set(facts.committed), Counter(facts.handled)
    sent = [message.row for message in facts.topic]
    ids: dict[Row, set[str]] = defaultdict(set)
    for message in facts.topic:
        ids[message.row].add(message.message_id)
    shared = Counter(message_id for found in ids.values() for message_id in found)
    handled_or_sent = done.keys() | ids.keys()
    return Audit(
        committed=len(committed),
        handled=len(committed & done.keys()),
        rolled_back=len(facts.begun - {row.id for row in committed}),
        repeats=len(sent) - len(ids),
        dropped=facts.dropped,
        missing=_list_ids(row for row in committed if row not in done or row not in ids),
        twice=_list_ids(row for row, count in done.items() if count > 1),
        not_committed=_list_ids(handled_or_sent - committed),
        out_of_order=tuple(sorted({*_find_disorder(sent), *_find_disorder(facts.handled)})),
        other_id=_list_ids(
            row
            for row, found in ids.items()
            if len(found) > 1 or any(shared[message_id] > 1 for message_id in found)
        ),
    )


def _find_disorder(rows: Iterable[Row]) -> set[str]:
    """Keys whose rows come for the first time behind a later one."""
    last: dict[str, int] = {}
    wrong: set[str] = set()
    for row in dict.fromkeys(rows):
        if row.number < last.get(row.key, row.number):
            wrong.add(row.key)
        last[row.key] = row.number
    return wrong


def _list_ids(rows: Iterable[Row]) -> tuple[str, ...]:
    return tuple(sorted(row.id for row in rows))


# The tables of the shop's services, in any database that an outbox can be kept in.

KEYS = 20  # customers
_BUSY_SECONDS = 15

ORDER_SERVICE, PAYMENT_SERVICE, CONSUMER = sa.MetaData(), sa.MetaData(), sa.MetaData()

# A customer's orders are numbered, so each of them waits for the one before to be committed.
CUSTOMERS = sa.Table(
    "customers",
    ORDER_SERVICE,
    sa.Column("customer", sa.String(40), primary_key=True),
    sa.Column("orders", sa.Integer, nullable=False),
)
ORDERS = sa.Table(
    "orders",
    ORDER_SERVICE,
    sa.Column("order_id", sa.String(40), primary_key=True),
    sa.Column("customer", sa.String(40), nullable=False),
    sa.Column("number", sa.Integer, nullable=False),
)
# Without an amount: it was asked about, and will never be paid.
PAYMENTS = sa.Table(
    "payments",
    PAYMENT_SERVICE,
    sa.Column("id", sa.String(40), primary_key=True),
    sa.Column("amount", sa.Integer),
)
# What is committed, as the audit's rows.
COMMITTED_ORDERS = sa.select(ORDERS.c.order_id, ORDERS.c.customer, ORDERS.c.number)
COMMITTED_PAYMENTS = sa.select(PAYMENTS.c.id, PAYMENTS.c.id, PAYMENTS.c.amount).where(
    PAYMENTS.c.amount.is_not(None)
)
# What a consumer did: a row for each time it did it, so that doing it twice shows.
HANDLED = sa.Table(
    "handled",
    CONSUMER,
    sa.Column("place", sa.Integer, primary_key=True, autoincrement=True),
    sa.Column("id", sa.String(40), nullable=False),
    sa.Column("key", sa.String(40), nullable=False),
    sa.Column("number", sa.Integer, nullable=False),
)
# Messages that came again, and were dropped.
DROPPED = sa.Table(
    "dropped",
    CONSUMER,
    sa.Column("place", sa.Integer, primary_key=True, autoincrement=True),
    sa.Column("message_id", sa.String(40), nullable=False),
)
MARKS = Marks("handled_marks", metadata=CONSUMER)


def open_engine(url: str) -> sa.Engine:
    """An engine whose transactions wait for each other; on SQLite readers hold up no writer."""
    if not url.startswith("sqlite"):
        return sa.create_engine(url, pool_pre_ping=True)
    engine = sa.create_engine(url, connect_args={"timeout": _BUSY_SECONDS})
    with engine.connect() as connection:
        connection.exec_driver_sql("PRAGMA journal_mode = WAL")
    return engine


@contextmanager
def connect(url: str) -> Iterator[sa.Connection]:
    """One connection, of which nothing is left."""
    engine = open_engine(url)
    try:
        with engine.connect() as connection:
            yield connection
    finally:
        engine.dispose()


def create_orders(url: str) -> None:
    """The order service's tables, and its customers."""
    create_tables(url, ORDER_SERVICE)
    customers = [{"customer": f"c-{number:03}", "orders": 0} for number in range(KEYS)]
    with connect(url) as connection:
        connection.execute(sa.insert(CUSTOMERS), customers)
        connection.commit()


def create_tables(url: str, *owners: sa.MetaData) -> None:
    with connect(url) as connection:
        for owner in owners:
            owner.create_all(connection)
        connection.commit()


def write_value(row: Row) -> str:
    return json.dumps({"id": row.id, "number": row.number})


def read_value(key: bytes | None, value: bytes | None) -> Row:
    """The row that a message tells of."""
    document = json.loads(value or b"")
    return Row(document["id"], (key or b"").decode(), document["number"])


# What processes of the shop share: what they note, how fast they go, when they end.


class Begun:
    """A file with the id of each transaction that is about to begin; it outlives who is killed."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def note(self, made: str) -> None:
        os.write(self._file, f"{made}\n".encode())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._file)


class Pace:
    """So many a second, and no more to make up for what was slow."""

    def __init__(self, rate: float) -> None:
        self._gap, self._due = 1 / rate, time.monotonic()

    def pause(self) -> float:
        """Seconds until the next one is due."""
        now = time.monotonic()
        self._due = max(self._due + self._gap, now)
        return self._due - now


def until_sigterm() -> threading.Event:
    """Is set by SIGTERM or Ctrl-C."""
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    return stopping
