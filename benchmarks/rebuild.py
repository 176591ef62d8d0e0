"""A million rows in PostgreSQL, a tenth of their messages left in the topic: rebuild the others.

`python -m benchmarks.rebuild [--rows 1000000]`. A tenth and the whole run in processes of their own
with a broker and a database of their own: first for speed in one JVM, then with the executor in a
JVM of its own, for memory. Beside the injection, in the same run and on the same staged files,
stands Spark's own Kafka sink, which is at-least-once.
"""

from __future__ import annotations

import json
import time
from argparse import Namespace
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import psycopg
import pyarrow as pa
from confluent_kafka import Producer
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812
from rich.table import Table

from backlogctl.config import Config
from backlogctl.formats import Say
from backlogctl.kafka.admin import TopicInfo, create_topic, describe_topic
from backlogctl.kafka.clients import make_admin, make_producer
from backlogctl.manifests import read_manifest
from backlogctl.partitioners import place_murmur2
from backlogctl.spark_backfill.injection.brakes import InjectionProgress
from backlogctl.spark_backfill.injection.job import InjectionJob, record_target_ends
from backlogctl.spark_backfill.injection.ledger_topic import ensure_ledger_topic, snapshot_ledger
from backlogctl.spark_backfill.injection.verification import verify_injection
from backlogctl.spark_backfill.injection.waves import inject
from backlogctl.spark_backfill.messages.staging import CANARY_CHUNKS
from backlogctl.spark_backfill.rebuild import stage_rebuild
from backlogctl.spark_backfill.request import RebuildOutcome, RebuildRequest
from backlogctl.spark_backfill.spark.session import open_session
from backlogctl.values import Gap
from benchmarks.harness import Benchmark, Figures, open_world, run_apart, send, tabulate
from tests.kit.kafka import move_log_start, repeating
from tests.kit.ledger import make_gap
from tests.kit.services import EmbeddedPostgres

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
    topic: {topic}
    group: order-service
    source:
      database: shop
      table: orders
      primary_key: [order_id]
      time_column: updated_at
      mutable: true
      message:
        key: order_id
        value: {value}
        headers: {{type: "'OrderPaid'"}}
      identity: {{row: order_id, message: key}}
      stale: restate
"""
PADDING = "x" * 230
_TABLE = """
CREATE TABLE orders (
    order_id bigint PRIMARY KEY, user_id bigint NOT NULL, status text NOT NULL,
    amount numeric(12, 2) NOT NULL, note text NOT NULL, updated_at timestamptz NOT NULL)
"""
_ROWS = """
INSERT INTO orders
SELECT n, n %% 5000, 'paid', (n %% 100000) / 100.0, %(padding)s,
       timestamptz '2026-11-01 00:00:00.123456Z' + n * interval '1 second'
FROM generate_series(1, %(rows)s) AS n
"""
_SURVIVORS = """
SELECT order_id, user_id, status, amount::text, note,
       to_char(updated_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')
FROM orders WHERE order_id > %(after)s ORDER BY order_id
"""
HEADERS: list[tuple[str, str | bytes | None]] = [("type", b"OrderPaid")]
COLUMNS = ("order_id", "user_id", "status", "amount", "note", "updated_at")
JSON_VALUE = f"{{json: [{', '.join(COLUMNS)}]}}"
MIB = 1024 * 1024
RECOVERY = "r-20261121-0001"


@contextmanager
def watching_memory() -> Iterator[dict[str, float]]:
    """Follows this process's tree: MiB by kind, the largest process of each kind.

    Kinds: `driver_python` (this process), `driver_jvm` (the JVM it started), `executor_jvm` (JVMs
    that a JVM started), `worker_python` (Spark's Python workers, all of them together).
    """
    peaks: dict[str, float] = {}

    def look() -> None:
        for kind, size in _measure().items():
            peaks[kind] = max(peaks.get(kind, 0.0), round(size / MIB, 1))

    with repeating(look, 0.2):
        yield peaks


def _measure() -> dict[str, float]:
    this = psutil.Process()
    jvms: set[int] = set()
    found: dict[str, float] = {"driver_python": this.memory_info().rss}
    # Parents come before their children.
    for process in this.children(recursive=True):
        try:
            size, is_jvm = process.memory_info().rss, process.name() == "java"
            under_jvm = any(parent.pid in jvms for parent in process.parents())
        except psutil.Error:
            continue
        if is_jvm:
            jvms.add(process.pid)
            kind = "executor_jvm" if under_jvm else "driver_jvm"
            found[kind] = max(found.get(kind, 0.0), size)
        elif under_jvm:
            found["worker_python"] = found.get("worker_python", 0.0) + size
    return found


def fill_table(url: str, rows: int) -> None:
    """Makes the table with `rows` orders, one a second, messages of about 400 B."""
    with psycopg.connect(url) as connection:
        connection.execute(_TABLE)
        connection.execute(_ROWS, {"rows": rows, "padding": PADDING})
        connection.execute("CREATE INDEX ON orders (updated_at)")
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("VACUUM ANALYZE orders")


def expire_messages(bootstrap: str, topic: str, lost: dict[int, int]) -> None:
    """Moves the log starts over as many messages as are lost; their content does not matter."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 50})
    for partition, count in lost.items():
        for _ in range(count):
            send(producer, topic, b"", b"", partition)
    assert producer.flush(60) == 0
    move_log_start({"bootstrap.servers": bootstrap}, topic, lost)


def publish_survivors(url: str, bootstrap: str, topic: str, *, after: int, partitions: int) -> int:
    """Publishes the orders after number `after` as the shop does; returns how many."""
    producer = Producer(
        {"bootstrap.servers": bootstrap, "linger.ms": 50, "compression.type": "lz4"}
    )
    messages = list(_read_messages(url, after))
    placed = place_murmur2(pa.array([key for key, _ in messages], pa.binary()), partitions)
    for (key, value), partition in zip(messages, placed.tolist(), strict=True):
        send(producer, topic, value, key, partition, headers=HEADERS)
    assert producer.flush(60) == 0
    return len(messages)


def count_lost(rows: int, partitions: int) -> dict[int, int]:
    """How many of the orders 1 to `rows` belong to each partition."""
    keys = pa.array([str(number).encode() for number in range(1, rows + 1)], pa.binary())
    counts = np.bincount(place_murmur2(keys, partitions), minlength=partitions)
    return dict(enumerate(counts.tolist()))


def _read_messages(url: str, after: int) -> Iterator[tuple[bytes, bytes]]:
    with psycopg.connect(url) as connection, connection.cursor("survivors") as cursor:
        cursor.execute(_SURVIVORS, {"after": after})
        for row in cursor:
            value = json.dumps(dict(zip(COLUMNS, row, strict=True)), separators=(",", ":"))
            yield str(row[0]).encode(), value.encode()


def make_gaps(lost: dict[str, int], topic: str, topic_id: str) -> tuple[Gap, ...]:
    """One gap a partition, as wide as the messages that were never published."""
    undated: dict[str, Any] = {"topic": topic, "group": "order-service"}
    undated |= {"first_time": None, "last_time": None, "detected_at": datetime.now(UTC)}
    return tuple(
        replace(
            make_gap(0, count, partition=int(partition), topic_id=topic_id),
            id=f"g-{partition}",
            **undated,
        )
        for partition, count in lost.items()
    )


def plan_rebuild(
    spark: SparkSession,
    config: Config,
    properties: dict[str, str],
    info: TopicInfo,
    lost: dict[str, int],
) -> RebuildOutcome:
    """Stages all of the lost messages."""
    stream = config.stream("orders")
    request = RebuildRequest(
        recovery_id=RECOVERY,
        stream=stream,
        sources=config.sources,
        client_properties=properties,
        partitions=info.partitions,
        topic_config=info.config,
        gaps=make_gaps(lost, stream.topic, info.topic_id),
        staging_root=config.staging.dir,
        since=datetime(2026, 10, 31, tzinfo=UTC),
    )
    outcome = stage_rebuild(spark, request)
    assert outcome.verdict != "surplus", outcome
    assert outcome.counts.rebuilt == sum(lost.values()), outcome.counts
    return outcome


def run_rebuild(order: Figures) -> Figures:
    """Plans, injects and verifies; seconds, rates and peak memory."""
    config = Config.from_text(order["config"], Path(order["directory"]), {"SHOP": order["url"]})
    stream = config.stream("orders")
    properties = dict(config.clusters["main"].client_properties())
    admin = make_admin(properties)
    info = describe_topic(admin, stream.topic)
    spark = open_session(config.spark, "bench")
    with watching_memory() as peaks:
        ensure_ledger_topic(admin)
        ledger = snapshot_ledger(admin)
        ends = record_target_ends(admin, stream.topic, info.partitions)
        began = time.monotonic()
        outcome = plan_rebuild(spark, config, properties, info, order["lost"])
        planned = time.monotonic() - began
        directory = config.staging.dir / RECOVERY
        job = InjectionJob(
            recovery_id=RECOVERY,
            topic=stream.topic,
            topic_id=info.topic_id,
            partitions=info.partitions,
            plan_hash="bench",
            manifest=read_manifest(directory, outcome.manifest_sha256),
            directory=directory,
            properties=properties,
            ledger=ledger,
            start_offsets=ends,
            compression="lz4",
        )
        warm_transactions(properties)
        marks: list[tuple[float, InjectionProgress]] = []
        began = began_inject = time.monotonic()
        result = inject(
            spark, job, on_progress=lambda progress: marks.append((time.monotonic(), progress))
        )
        injected = time.monotonic() - began
        # The canary is a few small chunks, sent alone and read back: a fixed price.
        canary_at, canary = [mark for mark in marks if mark[1].wave <= CANARY_CHUNKS][-1]
        began = time.monotonic()
        checked = verify_injection(
            spark,
            properties=properties,
            topic=stream.topic,
            topic_id=info.topic_id,
            partitions=info.partitions,
            manifest=job.manifest,
            directory=directory,
            start_offsets=ends,
        )
        checked.require_exact("topic orders")
        verified = time.monotonic() - began
    after = round((result.injected - canary.injected) / (marks[-1][0] - canary_at))
    return {
        **describe_plan(outcome, planned),
        "messages": result.injected,
        "waves": result.waves,
        "inject_seconds": round(injected, 2),
        "messages_per_second": round(result.injected / injected),
        "canary_seconds": round(canary_at - began_inject, 2),
        "after_canary_per_second": after,
        "verify_seconds": round(verified, 2),
        "peak_mib": peaks,
        **(compare_sink(spark, job, properties, after) if order["sink"] else {}),
    }


def warm_transactions(properties: dict[str, str]) -> None:
    """A broker makes its transaction log when it is first asked; not a part of an injection."""
    producer = make_producer(properties, transactional_id="warm-up")
    producer.init_transactions(60)


def describe_plan(outcome: RebuildOutcome, seconds: float) -> Figures:
    """The plan's figures; rows are those that it read from the table."""
    rows = outcome.counts.candidates
    return {
        "rows": rows,
        "survivors": outcome.counts.surviving,
        "plan_seconds": round(seconds, 2),
        "rows_per_second": round(rows / seconds),
        "read_per_second": round(rows / outcome.seconds["candidates"]),
        "staged_per_second": round(outcome.counts.rebuilt / outcome.seconds["staging"]),
        "parts": dict(outcome.seconds),
        "bytes_per_message": round(outcome.bytes / max(1, outcome.counts.rebuilt)),
    }


def compare_sink(
    spark: SparkSession, job: InjectionJob, properties: dict[str, str], after: int
) -> Figures:
    """Spark's own Kafka sink on the same staged files: at-least-once, into another topic."""
    topic = f"{job.topic}-sink"
    create_topic(make_admin(properties), topic, partitions=job.partitions, replication=1, config={})
    staged = spark.read.parquet(str(job.directory / "messages"))
    headers = F.transform(
        "headers", lambda h: F.struct(h["name"].alias("key"), h["value"].alias("value"))
    )
    began = time.monotonic()
    (
        staged.select("key", "value", "partition", headers.alias("headers"))
        .write.format("kafka")
        .option("kafka.bootstrap.servers", properties["bootstrap.servers"])
        .option("kafka.compression.type", "lz4")
        .option("kafka.linger.ms", "50")
        .option("includeHeaders", "true")
        .option("topic", topic)
        .save()
    )
    rate = round(job.manifest.count / (time.monotonic() - began))
    return {"sink_per_second": rate, "over_sink": round(after / rate, 2)}


def prepare_and_run(rows: int, master: str, sink: bool) -> Figures:
    """The table, the survivors in a topic whose other messages expired, and the rebuild."""
    survivors, after = rows // 10, rows - rows // 10
    with EmbeddedPostgres() as postgres, open_world() as (broker, scratch):
        # psycopg takes the plain URL, SQLAlchemy the one with the driver's name.
        plain = postgres.url().replace("+psycopg", "")
        fill_table(plain, rows)
        topic, lost = broker.make_topic("orders", PARTITIONS), count_lost(after, PARTITIONS)
        expire_messages(broker.bootstrap, topic, lost)
        published = publish_survivors(
            plain, broker.bootstrap, topic, after=after, partitions=PARTITIONS
        )
        assert published == survivors
        config = CONFIG.format(
            bootstrap=broker.bootstrap, topic=topic, value=JSON_VALUE, master=master
        )
        order = {"config": config, "directory": str(scratch), "url": postgres.url()}
        return run_rebuild({**order, "lost": lost, "sink": sink})


def measure(options: Namespace, _: Say) -> Figures:
    sizes = (options.rows // 10, options.rows)
    if options.smoke:
        return {"speed": [prepare_and_run(options.rows, "local[2]", True)], "memory": []}
    return {
        "speed": [run_apart(prepare_and_run, rows, "local[*]", True) for rows in sizes],
        "memory": [run_apart(prepare_and_run, rows, APART, False) for rows in sizes],
    }


def draw(document: Figures) -> Iterable[Table]:
    lines = (
        ("plan: read, compare, prove, stage, s", "plan_seconds"),
        ("  rows/s, all of it", "rows_per_second"),
        ("  rows/s, reading the table", "read_per_second"),
        ("  rows/s, staging the lost ones", "staged_per_second"),
        ("injection, s", "inject_seconds"),
        ("  messages/s, canary included", "messages_per_second"),
        ("  messages/s, after the canary", "after_canary_per_second"),
        ("  bytes a message", "bytes_per_message"),
        ("verification, s", "verify_seconds"),
        ("Spark's own sink (at-least-once), messages/s", "sink_per_second"),
        ("injection after the canary : Spark's sink", "over_sink"),
    )
    for title, results in (
        ("Rebuild from PostgreSQL, one JVM", document["speed"]),
        ("The same, Spark's executors apart from the driver", document["memory"]),
    ):
        columns = {str(number): f"{one['rows']:,} rows" for number, one in enumerate(results)}
        rows = [
            [label, *(f"{one[name]:,}" for one in results)]
            for label, name in lines
            if all(name in one for one in results)
        ]
        for kind in sorted({kind for one in results for kind in one["peak_mib"]}):
            label = f"peak memory, {kind.replace('_', ' ').replace('jvm', 'JVM')}, MiB"
            rows.append([label, *(f"{one['peak_mib'].get(kind, 0):,.0f}" for one in results)])
        if results:
            yield tabulate(title, columns, rows)


BENCHMARK = Benchmark("rebuild", __doc__, {"rows": 1_000_000}, {"rows": 2_000}, measure, draw)

if __name__ == "__main__":
    BENCHMARK.main()
