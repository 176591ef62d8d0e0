"""The tables of the shop's services, in any database that an outbox can be kept in."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

import sqlalchemy as sa

from backlogctl_delivery.idempotent.sql import Marks
from replay.demo.delivery.audit import Row

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
    """The tables of these services."""
    with connect(url) as connection:
        for owner in owners:
            owner.create_all(connection)
        connection.commit()


def write_value(row: Row) -> str:
    """A message's value."""
    return json.dumps({"id": row.id, "number": row.number})


def read_value(key: bytes | None, value: bytes | None) -> Row:
    """The row that a message tells of."""
    document = json.loads(value or b"")
    return Row(document["id"], (key or b"").decode(), document["number"])
