"""Three orders for a shop, one of them refused; then each of their messages is handled twice.

`python try_shop.py fastapi_shop`, or `django_shop`: makes the tables in shop.db and the topic.
"""

import importlib
import os
import sqlite3
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Message
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from sqlalchemy import create_engine

from backlogctl_delivery.stamps import EVENT_ID, find_header

SERVERS: dict[str, str | int | float | bool] = {"bootstrap.servers": os.environ["SHOP_KAFKA"]}


def make_client(name: str, app: Any) -> Any:
    """What sends requests to the shop, by its own framework."""
    if name == "django_shop":
        from django.test import Client

        return Client()
    from fastapi.testclient import TestClient

    return TestClient(app)


def make_tables(shop: Any) -> None:
    """And the topic, where it is not there."""
    Path("shop.db").unlink(missing_ok=True)
    with closing(sqlite3.connect("shop.db")) as tables:
        tables.execute("CREATE TABLE orders (id INTEGER)")
        tables.execute("CREATE TABLE payments (id INTEGER)")
    shop.outbox.create()
    shop.marks.create_tables(create_engine("sqlite:///shop.db"))
    admin = AdminClient(SERVERS)
    if "orders" not in admin.list_topics(timeout=30).topics:
        admin.create_topics([NewTopic("orders", 1, 1)])["orders"].result(30)


def handle_twice(handle: Callable[[Message], None], wanted: set[str]) -> None:
    """Each of these messages, as if it had been sent again."""
    consumer = Consumer({**SERVERS, "group.id": "payments", "auto.offset.reset": "earliest"})
    consumer.subscribe(["orders"])
    while wanted:
        message = consumer.poll(30)
        if message is None:
            raise SystemExit("no message came for half a minute")
        headers: Any = message.headers()
        found = find_header(headers, EVENT_ID) or ""
        if message.error() is None and found in wanted:
            wanted.remove(found)
            handle(message)
            handle(message)
    consumer.close()


def main(name: str) -> None:
    """Prints what the tables have, and how long it took from the first line on."""
    began = time.monotonic()
    shop = importlib.import_module(name)
    make_tables(shop)
    client = make_client(name, shop.app)
    answers = [client.post(f"/orders/{path}") for path in ("1", "2", "3?refused=1")]
    placed = [answer.content.decode().strip('"') for answer in answers]
    shop.outbox.close()
    handle_twice(shop.handle, set(placed[:2]))
    with closing(sqlite3.connect("shop.db")) as tables:
        for table in ("orders", "backlog_outbox", "payments"):
            ids = [row[0] for row in tables.execute(f"SELECT id FROM {table} ORDER BY id")]
            print(f"{table}: {ids}")
    print(f"{time.monotonic() - began:.1f} s")


if __name__ == "__main__":
    main(sys.argv[1])
