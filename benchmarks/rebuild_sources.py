"""The plan of a rebuild from MariaDB, and of values with a schema, beside PostgreSQL and JSON.

`python -m benchmarks.rebuild_sources [--rows 500000]`. Each in a process of its own, with a broker
and a database of its own; a tenth of the messages survives, and all of it is proved and staged.
"""

from __future__ import annotations

import json
import time
from argparse import Namespace
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pymysql
from confluent_kafka import Producer
from rich.table import Table

from backlogctl.config import Config
from backlogctl.formats import Say
from backlogctl.kafka.admin import describe_topic
from backlogctl.kafka.clients import make_admin
from backlogctl.partitioners import place_murmur2
from backlogctl.schemas.codecs import open_codec, prepare_schema
from backlogctl.schemas.frames import Frame
from backlogctl.schemas.registry import WriterSchema
from backlogctl.spark_backfill.spark.session import open_session
from benchmarks.harness import Benchmark, Figures, open_world, run_apart, send, tabulate
from benchmarks.rebuild import (
    COLUMNS,
    CONFIG,
    HEADERS,
    JSON_VALUE,
    PADDING,
    PARTITIONS,
    count_lost,
    describe_plan,
    expire_messages,
    fill_table,
    plan_rebuild,
)
from tests.kit.services import EmbeddedMariaDb, EmbeddedPostgres

_BEGAN = datetime(2026, 11, 1, 0, 0, 0, 123456, UTC)
_SCHEMA_ID = 1
_TABLE = """
CREATE TABLE orders (
    order_id bigint PRIMARY KEY, user_id bigint NOT NULL, status varchar(20) NOT NULL,
    amount decimal(12, 2) NOT NULL, note varchar(300) NOT NULL, updated_at datetime(6) NOT NULL)
"""
_ROWS = f"""
INSERT INTO orders
SELECT seq, seq %% 5000, 'paid', (seq %% 100000) / 100, %s,
       timestamp '{_BEGAN:%Y-%m-%d %H:%M:%S.%f}' + INTERVAL seq SECOND
FROM seq_1_to_{{rows}}
"""
_AMOUNT = {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 2}
_MOMENT = {"type": "long", "logicalType": "timestamp-micros"}
_TYPES = ("long", "long", "string", _AMOUNT, "string", _MOMENT)
_FIELDS = [{"name": name, "type": kind} for name, kind in zip(COLUMNS, _TYPES, strict=True)]
SCHEMAS = {
    "avro": json.dumps({"type": "record", "name": "Order", "fields": _FIELDS}),
    "protobuf": """
        syntax = "proto3";
        import "google/protobuf/timestamp.proto";
        message Order {
          int64 order_id = 1; int64 user_id = 2; string status = 3; string amount = 4;
          string note = 5; google.protobuf.Timestamp updated_at = 6;
        }
    """,
}
Encode = Callable[[dict[str, Any]], bytes]


@dataclass(frozen=True, slots=True)
class Case:
    """A database and a format of values."""

    database: str
    format: str

    @property
    def name(self) -> str:
        return f"{self.database}, {self.format}"


CASES = (
    Case("PostgreSQL", "json"),
    Case("MariaDB", "json"),
    Case("PostgreSQL", "avro"),
    Case("MariaDB", "avro"),
    Case("PostgreSQL", "protobuf"),
)


def make_row(number: int) -> dict[str, Any]:
    values = (
        number,
        number % 5000,
        "paid",
        Decimal(number % 100_000).scaleb(-2),
        PADDING,
        _BEGAN + timedelta(seconds=number),
    )
    return dict(zip(COLUMNS, values, strict=True))


def open_encoder(kind: str) -> Encode:
    """What the shop's producer writes."""
    if kind == "json":
        return lambda row: json.dumps(
            {**row, "amount": f"{row['amount']:.2f}", "updated_at": _write_time(row["updated_at"])},
            separators=(",", ":"),
        ).encode()
    indexes = (0,) if kind == "protobuf" else ()
    codec = open_codec(prepare_schema(WriterSchema(kind, SCHEMAS[kind])), indexes=indexes)
    frame = Frame(_SCHEMA_ID, indexes)
    text = () if kind == "avro" else ("amount",)
    return lambda row: frame.wrap(
        codec.encode({name: str(one) if name in text else one for name, one in row.items()})
    )


def _write_time(at: datetime) -> str:
    return f"{at:%Y-%m-%dT%H:%M:%S.%fZ}"


def publish(bootstrap: str, topic: str, numbers: range, encode: Encode) -> None:
    """The orders that survive, as the shop publishes them."""
    producer = Producer(
        {"bootstrap.servers": bootstrap, "linger.ms": 50, "compression.type": "lz4"}
    )
    keys = [str(number).encode() for number in numbers]
    placed = place_murmur2(pa.array(keys, pa.binary()), PARTITIONS)
    for number, key, partition in zip(numbers, keys, placed.tolist(), strict=True):
        send(producer, topic, encode(make_row(number)), key, partition, headers=HEADERS)
    assert producer.flush(60) == 0


def fill_mariadb(server: EmbeddedMariaDb, rows: int) -> str:
    """As `fill_table` does; the database's URL."""
    server.execute("CREATE DATABASE shop")
    with (
        pymysql.connect(
            host="127.0.0.1", port=server.port, user="tests", database="shop", autocommit=True
        ) as connection,
        connection.cursor() as cursor,
    ):
        cursor.execute(_TABLE)
        cursor.execute(_ROWS.format(rows=rows), (PADDING,))
        cursor.execute("CREATE INDEX orders_by_time ON orders (updated_at)")
        cursor.execute("ANALYZE TABLE orders")
    return server.url("shop")


def run_case(case: Case, rows: int) -> Figures:
    """The table, the survivors, and the plan."""
    after = rows - rows // 10
    server = EmbeddedPostgres() if case.database == "PostgreSQL" else EmbeddedMariaDb()
    with server, open_world() as (broker, scratch):
        if isinstance(server, EmbeddedPostgres):
            url = server.url()
            fill_table(url.replace("+psycopg", ""), rows)
        else:
            url = fill_mariadb(server, rows)
        topic, lost = broker.make_topic("orders", PARTITIONS), count_lost(after, PARTITIONS)
        expire_messages(broker.bootstrap, topic, lost)
        publish(broker.bootstrap, topic, range(after + 1, rows + 1), open_encoder(case.format))
        value = JSON_VALUE
        if case.format != "json":
            Path(scratch, "order.schema").write_text(SCHEMAS[case.format])
            columns = ", ".join(COLUMNS)
            value = f"{{{case.format}: {{schema: order.schema, columns: [{columns}]}}}}"
        text = CONFIG.format(
            bootstrap=broker.bootstrap, topic=topic, value=value, master="local[*]"
        )
        config = Config.from_text(text, Path(scratch), {"SHOP": url})
        properties = dict(config.clusters["main"].client_properties())
        info = describe_topic(make_admin(properties), topic)
        spark = open_session(config.spark, "bench")
        began = time.monotonic()
        named = {str(partition): count for partition, count in lost.items()}
        outcome = plan_rebuild(spark, config, properties, info, named)
        assert outcome.proof.rate == 1.0, outcome.proof
        return describe_plan(outcome, time.monotonic() - began)


def measure(options: Namespace, say: Say) -> Figures:
    found: list[Figures] = []
    for case in (CASES[0], CASES[3]) if options.smoke else CASES:
        run = run_case if options.smoke else partial(run_apart, run_case)
        figures = run(case, options.rows)
        ratio = figures["plan_seconds"] / (found[0] if found else figures)["plan_seconds"]
        found.append({"case": case.name, **figures, "over_first": round(ratio, 2)})
        say(f"{case.name}: {figures['plan_seconds']} s, × {ratio:.2f}")
    return {"cases": found}


def draw(document: Figures) -> Iterable[Table]:
    lines = (
        ("plan: read, compare, prove, stage, s", "plan_seconds"),
        ("  rows/s, reading the table", "read_per_second"),
        ("  messages/s, staging", "staged_per_second"),
        ("  by the first", "over_first"),
    )
    cases = document["cases"]
    columns = {str(number): one["case"] for number, one in enumerate(cases)}
    rows = [[label, *(f"{one[name]:,}" for one in cases)] for label, name in lines]
    yield tabulate(f"Plan of a rebuild, {document['rows']:,} rows", columns, rows)


BENCHMARK = Benchmark("rebuild_sources", __doc__, {"rows": 500_000}, {"rows": 2_000}, measure, draw)

if __name__ == "__main__":
    BENCHMARK.main()
