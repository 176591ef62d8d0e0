"""The demo's shop: a source table of orders, and the service that publishes them."""

from __future__ import annotations

import argparse
import json
import random
import sqlite3
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import sqlalchemy as sa
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)
from sqlalchemy.dialects import mysql

from backlogctl.clock import format_time, utc_now
from backlogctl.errors import KafkaFailure
from backlogctl.kafka.admin import create_topic, list_offsets
from backlogctl.kafka.clients import Properties
from backlogctl_delivery.stamps import MESSAGE_ID, find_header
from examples.shop import find_off_peak, replace_words
from examples.stage import PRODUCER, Audit, count_orders, flush, read_topic, send

TOPIC = "orders"
GROUP = "order-service"
PARTITIONS = 3
TOTAL = 10_000
YOUNG = 2_000  # published minutes ago; retention leaves them
RETENTION = timedelta(hours=1)

_TABLE = sa.Table(
    "orders",
    sa.MetaData(),
    sa.Column("order_id", sa.String(16), primary_key=True),
    sa.Column("user_id", sa.Integer, nullable=False),
    sa.Column("status", sa.String(16), nullable=False),
    sa.Column("amount", sa.Numeric(10, 2), nullable=False),
    # UTC, without a zone.
    sa.Column(
        "updated_at",
        sa.DateTime().with_variant(mysql.DATETIME(fsp=6), "mysql", "mariadb"),
        nullable=False,
        index=True,
    ),
)


@dataclass(frozen=True, slots=True)
class Order:
    order_id: str
    user_id: int
    status: str
    amount: Decimal
    updated_at: datetime

    @property
    def key(self) -> bytes:
        return self.order_id.encode()

    def to_json(self) -> bytes:
        """The message's value: JSON, decimals as strings, times in ISO 8601 UTC."""
        document = {
            "order_id": self.order_id,
            "user_id": self.user_id,
            "status": self.status,
            "amount": f"{self.amount:.2f}",
            "updated_at": format_time(self.updated_at),
        }
        return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()


def make_orders(now: datetime, seed: int = 7) -> list[Order]:
    """Orders from six to three hours ago, and the young ones of the last half hour."""
    dice = random.Random(seed)
    old = TOTAL - YOUNG
    spans = [(timedelta(hours=6), timedelta(hours=3), old)]
    spans.append((timedelta(minutes=30), timedelta(minutes=2), YOUNG))
    orders: list[Order] = []
    for start, end, count in spans:
        step, first = (start - end) / count, len(orders) + 1
        orders.extend(
            Order(
                order_id=f"o-{first + index:05d}",
                user_id=dice.randrange(1, 2500),
                status=dice.choice(("paid", "paid", "paid", "refunded", "shipped")),
                amount=Decimal(dice.randrange(99, 99_999)) / 100,
                updated_at=now - start + step * index,
            )
            for index in range(count)
        )
    return orders


Encode = Callable[[Order], bytes]


def write_table(url: str, orders: Iterable[Order]) -> None:
    """The source table, in its own database."""
    rows = [{**asdict(one), "updated_at": one.updated_at.replace(tzinfo=None)} for one in orders]
    with _open(url) as connection:
        _TABLE.create(connection)
        connection.execute(_TABLE.insert(), rows)


def read_table(url: str) -> list[Order]:
    with _open(url) as connection:
        rows = connection.execute(_TABLE.select().order_by(_TABLE.c.order_id)).mappings()
        return [
            Order(**{**row, "updated_at": row["updated_at"].replace(tzinfo=UTC)}) for row in rows
        ]


@contextmanager
def _open(url: str) -> Iterator[sa.Connection]:
    engine = sa.create_engine(url)
    try:
        with engine.begin() as connection:
            yield connection
    finally:
        engine.dispose()


def publish_orders(
    client: Properties, orders: Iterable[Order], encode: Encode = Order.to_json
) -> None:
    """Publishes with keys, placed as Java's clients place them, at the time of the order."""
    producer = Producer({**client, **PRODUCER})
    for order in orders:
        timestamp = int(order.updated_at.timestamp() * 1000)
        send(producer, TOPIC, encode(order), order.key, timestamp=timestamp)
    flush(producer, TOPIC)


# The demo's topic, and the retention that really deletes from it.

_EXPIRED_WITHIN = 30.0


def make_topic(client: Properties) -> None:
    """Three partitions that keep everything for now; a segment holds an hour."""
    config = {"retention.ms": "-1", "segment.ms": "3600000"}
    create_topic(client, TOPIC, partitions=PARTITIONS, config=config)


def read_ends(client: Properties) -> dict[int, int]:
    return list_offsets(client, TOPIC, range(PARTITIONS), "latest")


def expire_old(client: Properties, expected: dict[int, int]) -> None:
    """Sets the retention, and waits until the broker has deleted up to the `expected` offsets.
    Raises KafkaFailure: it did not, within half a minute.
    """
    value = str(int(RETENTION.total_seconds() * 1000))
    entry = ConfigEntry("retention.ms", value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, TOPIC, incremental_configs=[entry])
    admin = AdminClient({**client, "log_level": 0})
    admin.incremental_alter_configs([resource])[resource].result(30)
    end = time.monotonic() + _EXPIRED_WITHIN
    starts: dict[int, int] = {}
    while time.monotonic() < end:
        starts = list_offsets(client, TOPIC, range(PARTITIONS), "earliest")
        if starts == expected:
            return
        time.sleep(0.1)
    raise KafkaFailure(
        f"retention did not delete as expected: log starts {starts}, expected {expected}",
        subject=f"topic {TOPIC}",
    )


# How many of each partition's old orders the consumer does not get to: 1,000 together.
UNREAD = {0: 412, 1: 331, 2: 257}


def lose_orders(
    directory: Path, client: Properties, look: Callable[[], None] = lambda: None
) -> None:
    """The service stops early, `look` is called, and the broker deletes what was not read."""
    make_topic(client)
    orders = make_orders(utc_now())
    write_table(f"sqlite:///{directory / 'shop.db'}", orders)
    publish_orders(client, orders[:-YOUNG])
    ends = read_ends(client)
    stop_at = {number: end - UNREAD[number] for number, end in ends.items()}
    handle_orders(client, directory / "warehouse.db", stop_at=stop_at)
    look()
    publish_orders(client, orders[-YOUNG:])
    expire_old(client, ends)


# The demo's backlog.yaml; examples/01-lost-orders says the same (a test keeps it so).

TEXT = """\
# A shop: orders are rows of a table, and messages of a topic that a service reads.
ledger: sqlite:///ledger.db
staging: {dir: ./staging}
spark:
  master: "local[2]"
  conf: {spark.sql.shuffle.partitions: "3"}

clusters:
  main:
    bootstrap.servers: ${env:SHOP_KAFKA}@LOGIN@

sources:
  shop: {url: "@SOURCE@"}@WAREHOUSE@
@REGISTRIES@
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
      mutable: false   # an order does not change once its message is sent
      message:
        key: order_id
        value: @VALUE@
      identity: {row: order_id, message: key}@CONSUMED@
      stale: restate
    # Put back at night, and gently.
    off_peak: {from: "@FROM@", to: "@TO@", timezone: UTC}
    limits: {messages_per_second: 500}
"""
_FIELDS = "[order_id, user_id, status, amount, updated_at]"
_SOURCE, _VALUE = "sqlite:///shop.db", f"{{json: {_FIELDS}}}"
_EXAMPLE_HOURS = {"FROM": "00:30", "TO": "06:00"}
_WAREHOUSE = """
  warehouse: {url: "sqlite:///warehouse.db"}"""
_LOGIN = """
    security.protocol: SSL
    ssl.ca.location: ${env:SHOP_KAFKA_CA}
    ssl.certificate.location: ${env:SHOP_KAFKA_CERTIFICATE}
    ssl.key.location: ${env:SHOP_KAFKA_KEY}"""
# What the configuration refers to, by the client's property.
VARIABLES = {
    "SHOP_KAFKA": "bootstrap.servers",
    "SHOP_KAFKA_CA": "ssl.ca.location",
    "SHOP_KAFKA_CERTIFICATE": "ssl.certificate.location",
    "SHOP_KAFKA_KEY": "ssl.key.location",
}
# Values are Avro, and rows in a server's database.
AVRO = {
    "SOURCE": "${env:SHOP_DATABASE}",
    "REGISTRIES": """
registries:
  schemas: {url: "${env:SHOP_REGISTRY}"}
""",
    "VALUE": f"{{avro: {{columns: {_FIELDS}, registry: schemas}}}}",
}
_CONSUMED = """
      # The consumer's own table says exactly which orders it has handled.
      consumed: {database: warehouse, table: processed_orders, column: order_id}"""


def render_configuration(
    now: datetime | None = None,
    *,
    consumed: bool = False,
    secure: bool = False,
    words: Mapping[str, str] | None = None,
) -> str:
    """The file's text; with `now` its off-peak window lies around that moment.

    Args:
        consumed: names the service's own table of what it handled as evidence.
        secure: shows a certificate of its own, over TLS.
        words: `AVRO`, where the shop is another one.
    """
    hours = _EXAMPLE_HOURS if now is None else find_off_peak(now)
    parts = {
        "SOURCE": _SOURCE,
        "REGISTRIES": "",
        "VALUE": _VALUE,
        **(words or {}),
        "WAREHOUSE": _WAREHOUSE if consumed else "",
        "LOGIN": _LOGIN if secure else "",
        "CONSUMED": _CONSUMED if consumed else "",
    }
    return replace_words(TEXT, {**hours, **parts})


# A consumer such as many shops have: it reads orders and keeps a row for each one it handled.
#
#     python -m examples.lost_orders --bootstrap localhost:9092 --database warehouse.db
#
# It adds a row for every message it handles, so an order that comes twice shows up twice.

_ORDER_SERVICE_TABLE = """
CREATE TABLE IF NOT EXISTS processed_orders (
    order_id     TEXT NOT NULL,
    partition    INTEGER NOT NULL,
    "offset"     INTEGER NOT NULL,
    processed_at TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP
)
"""


def handle_orders(
    client: Properties, database: Path, *, stop_at: Mapping[int, int] | None = None
) -> int:
    """Handles orders until the end of each partition, or the offset given for it.

    Returns:
        How many messages were handled.
    """
    consumer = Consumer(
        {
            **client,
            "group.id": GROUP,
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 50,
            "log_level": 0,
        }
    )
    done: set[int] = set()
    handled = 0
    consumer.subscribe([TOPIC])
    try:
        with closing(sqlite3.connect(database)) as table:
            table.execute(_ORDER_SERVICE_TABLE)
            while not consumer.assignment() or len(done) < len(consumer.assignment()):
                rows: list[tuple[str, int, int]] = []
                for message in consumer.consume(500, timeout=0.5):
                    partition, offset = int(message.partition() or 0), int(message.offset() or 0)
                    if _is_end(message) or offset >= (stop_at or {}).get(partition, offset + 1):
                        done.add(partition)
                        consumer.pause([TopicPartition(TOPIC, partition)])
                        continue
                    rows.append(((message.key() or b"").decode(), partition, offset))
                handled += _save(table, consumer, rows)
    finally:
        consumer.close()
    return handled


def _save(table: sqlite3.Connection, consumer: Consumer, rows: list[tuple[str, int, int]]) -> int:
    """First the rows, then the offsets: what is committed was handled."""
    if not rows:
        return 0
    with table:
        table.executemany(
            'INSERT INTO processed_orders (order_id, partition, "offset") VALUES (?, ?, ?)', rows
        )
    ends: dict[int, int] = {}
    for _, partition, offset in rows:
        ends[partition] = max(ends.get(partition, 0), offset + 1)
    offsets = [TopicPartition(TOPIC, partition, end) for partition, end in ends.items()]
    consumer.commit(offsets=offsets, asynchronous=False)
    return len(rows)


def _is_end(message: Message) -> bool:
    error = message.error()
    if error is None:
        return False
    if error.code() == KafkaError._PARTITION_EOF:
        return True
    raise RuntimeError(str(error))


def main() -> None:
    parser = argparse.ArgumentParser(description="Handle the orders that are there, and end.")
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--database", required=True, type=Path)
    arguments = parser.parse_args()
    handled = handle_orders({"bootstrap.servers": arguments.bootstrap}, arguments.database)
    sys.stdout.write(f"handled {handled:,} orders\n")


if __name__ == "__main__":
    main()


# The demo's last question: was every order handled, and none twice?


@dataclass(frozen=True, slots=True)
class ShopAudit(Audit):
    """What the comparison of source, topic and consumer's table found."""

    processed: int
    in_topic: int
    injected: int
    topic_twice: int
    different: int

    @property
    def passed(self) -> bool:
        """Every order handled once, and what is in the topic is what is in the table."""
        return self.is_whole and not (self.topic_twice or self.different)


def audit_shop(
    client: Properties, source: str, warehouse: Path, encode: Encode = Order.to_json
) -> ShopAudit:
    """Compares the source with a read_committed reader of the topic and the consumer's table."""
    orders = {order.order_id: encode(order) for order in read_table(source)}
    with closing(sqlite3.connect(warehouse)) as table:
        processed = Counter(
            row[0] for row in table.execute("SELECT order_id FROM processed_orders")
        )
    seen: Counter[str] = Counter()
    injected = different = 0
    for message in read_topic(client, TOPIC, PARTITIONS):
        key, headers = (message.key() or b"").decode(), message.headers()
        seen[key] += 1
        injected += find_header(headers, MESSAGE_ID) is not None  # type: ignore[arg-type]
        different += orders.get(key) != message.value()
    return ShopAudit(
        **count_orders(processed, orders),
        processed=processed.total(),
        in_topic=seen.total(),
        injected=injected,
        topic_twice=sum(1 for count in seen.values() if count > 1),
        different=different,
    )
