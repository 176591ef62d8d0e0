"""A small world for plans: a source table, a topic whose oldest messages are gone, a request."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import sqlalchemy as sa
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from backlogctl.clock import format_time
from backlogctl.config import Source, Stream
from backlogctl.kafka.admin import Isolation, list_offsets
from backlogctl.manifests import read_chunk, read_manifest
from backlogctl.spark_backfill.messages.staging import ChunkLimits
from backlogctl.spark_backfill.rebuild import stage_rebuild
from backlogctl.spark_backfill.request import PriorChunk, RebuildOutcome, RebuildRequest
from backlogctl.values import Cause, Certainty, Gap, GapState
from backlogctl_delivery.sequenced.clients import hash_murmur2
from tests.kit.kafka import set_config, wait_until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

START = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)
Row = Mapping[str, Any]
Header = tuple[str, bytes | None]

FIELDS = ["order_id", "user_id", "status", "amount", "updated_at"]
ORDERS = (
    "CREATE TABLE orders (order_id BIGINT NOT NULL PRIMARY KEY, user_id INTEGER, "
    "status VARCHAR(20), amount NUMERIC(12,2), updated_at {time} NOT NULL)"
)
TIME_TYPES = {"postgresql": "TIMESTAMPTZ", "sqlite": "TIMESTAMP", "mariadb": "TIMESTAMP(6)"}


def make_frame(spark: SparkSession, rows: Iterable[Sequence[Any]], schema: str) -> DataFrame:
    """Rows that Java holds: of a list `createDataFrame` has Python workers read it in each job."""
    kind = StructType.fromDDL(schema)
    assert isinstance(kind, StructType)
    named = [dict(zip(kind.names, row, strict=True)) for row in rows]
    return spark.createDataFrame(pa.Table.from_pylist(named, to_arrow_schema(kind)), kind)


def place_key(key: bytes, partitions: int) -> int:
    """Java's partition of a key."""
    return (hash_murmur2(key) & 0x7FFFFFFF) % partitions


def make_order(number: int, minutes: float | None = None) -> dict[str, Any]:
    """Order `number`, one a second from START, or at some minutes after it."""
    offset = timedelta(seconds=number) if minutes is None else timedelta(minutes=minutes)
    return {
        "order_id": number,
        "user_id": number % 97 if number % 10 else None,
        "status": "paid \N{SNOWMAN}" if number % 3 else "new",
        "amount": f"{number % 1000}.{number % 100:02d}",
        "updated_at": START + offset,
    }


def encode_order(row: Row) -> bytes:
    """What the orders' own producer sends."""
    value = {**row, "updated_at": format_time(row["updated_at"])}
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def open_database(url: str) -> sa.Engine:
    """A writable engine; of MariaDB with the SQL of the others."""
    if not url.startswith("mariadb"):
        return sa.create_engine(url, poolclass=sa.NullPool)
    settings = "time_zone = '+00:00', sql_mode = 'ANSI,STRICT_TRANS_TABLES,NO_BACKSLASH_ESCAPES'"
    options = {"init_command": f"SET SESSION {settings}"}
    return sa.create_engine(url, poolclass=sa.NullPool, connect_args=options)


def fill_table(url: str, create: str, rows: Sequence[Row], table: str = "orders") -> None:
    """Makes a table and fills it; times go in as their database stores them."""
    engine = open_database(url)
    sqlite = engine.dialect.name == "sqlite"
    with engine.begin() as connection:
        connection.execute(sa.text(create.format(time=TIME_TYPES[engine.dialect.name])))
        if rows:
            names = list(rows[0])
            quoted = ", ".join('"' + name.replace('"', '""') + '"' for name in names)
            marks = ", ".join(f":p{i}" for i in range(len(names)))
            target = '"' + table.replace('"', '""') + '"'
            connection.execute(
                sa.text(f"INSERT INTO {target} ({quoted}) VALUES ({marks})"),
                [
                    {f"p{i}": _store(row[name], sqlite=sqlite) for i, name in enumerate(names)}
                    for row in rows
                ],
            )
    engine.dispose()


def _store(value: Any, *, sqlite: bool) -> Any:
    if isinstance(value, datetime) and sqlite:
        return value.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S.%f")
    return value


def run_sql(url: str, *statements: str) -> None:
    """Runs statements as they are."""
    engine = open_database(url)
    with engine.begin() as connection:
        for statement in statements:
            connection.exec_driver_sql(statement, execution_options={"no_parameters": True})
    engine.dispose()


@dataclass(frozen=True)
class Published:
    """A message to publish; without a time it is of now."""

    key: bytes | None
    value: bytes | None
    partition: int
    headers: tuple[Header, ...] = ()
    time: datetime | None = None


def publish(bootstrap: str, topic: str, messages: Iterable[Published], **settings: Any) -> None:
    """Sends messages to the partitions they name."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5, **settings})
    for message in messages:
        producer.produce(
            topic,
            key=message.key,
            value=message.value,
            partition=message.partition,
            headers=list(message.headers),
            timestamp=int(message.time.timestamp() * 1000) if message.time else 0,
        )
        producer.poll(0)
    assert producer.flush(90) == 0


def publish_orders(
    bootstrap: str,
    topic: str,
    rows: Iterable[Row],
    partitions: int = 3,
    *,
    encode: Callable[[Row], bytes] = encode_order,
    head: Callable[[Row], tuple[Header, ...]] = lambda _: (),
    timed: bool = False,
) -> None:
    """Publishes orders as their own producer does; `encode` makes the value, `head` the headers.

    Args:
        timed: each is of its row's time; the topic must keep what is old.
    """
    publish(
        bootstrap,
        topic,
        [
            Published(
                str(row["order_id"]).encode(),
                encode(row),
                place_key(str(row["order_id"]).encode(), partitions),
                head(row),
                row["updated_at"] if timed else None,
            )
            for row in rows
        ],
    )


def delete_below(bootstrap: str, topic: str, offsets: Mapping[int, int]) -> None:
    """What retention does, at exact offsets."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    asked = [TopicPartition(topic, partition, at) for partition, at in offsets.items()]
    for future in admin.delete_records(asked).values():
        future.result(90)


def await_decided(bootstrap: str, topic: str, partitions: int) -> None:
    """Until no transaction hides anything: markers are written after a commit has returned."""
    properties = {"bootstrap.servers": bootstrap}

    def read_ends(isolation: Isolation) -> dict[int, int]:
        return list_offsets(properties, topic, range(partitions), "latest", isolation)

    wait_until(
        lambda: read_ends("read_committed") == read_ends("read_uncommitted"),
        what=f"all of {topic} is decided",
    )


def make_gap(
    topic: str,
    partition: int,
    start: int,
    end: int,
    first: datetime | None = START,
    last: datetime | None = None,
    **changes: Any,
) -> Gap:
    """A gap of the stream `orders`."""
    gap = Gap(
        id=f"g-20261121-{partition:04d}",
        stream="orders",
        cluster="main",
        topic=topic,
        group="order-service",
        topic_id="topic-id",
        partition=partition,
        start=start,
        end=end,
        cause=Cause.EXPIRED,
        certainty=Certainty.EXACT,
        state=GapState.OPEN,
        first_time=first,
        last_time=last,
        detected_at=START + timedelta(hours=5),
    )
    return replace(gap, **changes)


def make_stream(topic: str, **source: Any) -> Stream:
    """The stream `orders`; keyword arguments change its source."""
    top = {name: source.pop(name) for name in ("partitioner", "limits") if name in source}
    settings: dict[str, Any] = {
        "database": "shop",
        "table": "orders",
        "primary_key": ["order_id"],
        "time_column": "updated_at",
        "message": {"key": "order_id", "value": {"json": FIELDS}},
        "identity": {"row": "order_id", "message": "key"},
        "stale": "restate",
        **source,
    }
    settings = {name: value for name, value in settings.items() if value is not None}
    return Stream.model_validate(
        {
            "name": "orders",
            "cluster": "main",
            "topic": topic,
            "group": "order-service",
            "source": settings,
            **top,
        }
    )


def make_source(url: str, **settings: Any) -> Source:
    """The source `shop`."""
    return Source.model_validate({"url": url, **settings})


@dataclass(frozen=True)
class Lost:
    """Orders of which the first ones are gone from the topic."""

    topic: str
    rows: list[dict[str, Any]]
    lost: set[int]
    gaps: tuple[Gap, ...]
    by_partition: dict[int, int] = field(default_factory=dict)


def lose_orders(
    bootstrap: str,
    topic: str,
    rows: Sequence[dict[str, Any]],
    lost: int,
    partitions: int = 3,
    **producer: Any,
) -> Lost:
    """Publishes orders in their order, and lets the first `lost` of them expire.

    Args:
        producer: as `publish_orders` takes it.
    """
    set_config({"bootstrap.servers": bootstrap}, topic, {"retention.ms": "-1"})
    publish_orders(bootstrap, topic, rows, partitions, timed=True, **producer)
    gone: dict[int, int] = {}
    for row in rows[:lost]:
        partition = place_key(str(row["order_id"]).encode(), partitions)
        gone[partition] = gone.get(partition, 0) + 1
    delete_below(bootstrap, topic, gone)
    last = rows[lost - 1]["updated_at"] if lost else None
    gaps = tuple(make_gap(topic, p, 0, count, last=last) for p, count in sorted(gone.items()))
    return Lost(topic, list(rows), {row["order_id"] for row in rows[:lost]}, gaps, gone)


def make_request(
    bootstrap: str, stream: Stream, url: str, gaps: tuple[Gap, ...], staging: Path, **changes: Any
) -> RebuildRequest:
    """A request with the defaults of these tests."""
    sources = changes.pop("sources", None) or {"shop": make_source(url)}
    settings: dict[str, Any] = {
        "recovery_id": "r-20261121-0001",
        "stream": stream,
        "sources": sources,
        "client_properties": {"bootstrap.servers": bootstrap},
        "partitions": 3,
        "topic_config": {"max.message.bytes": "1048588", "cleanup.policy": "delete"},
        "gaps": gaps,
        "staging_root": staging,
        **changes,
    }
    return RebuildRequest(**settings)


def read_staged(request: RebuildRequest) -> pa.Table:
    """All staged messages, in chunk order."""
    manifest = read_manifest(request.directory)
    tables = [read_chunk(request.directory, chunk) for chunk in manifest.chunks]
    return pa.concat_tables(tables)


def list_prior(request: RebuildRequest) -> tuple[PriorChunk, ...]:
    """The chunks of a plan, as if they had been injected."""
    manifest = read_manifest(request.directory)
    return tuple(PriorChunk(manifest.recovery_id, c.slot, c.number) for c in manifest.chunks)


def plan(spark: SparkSession, request: RebuildRequest, *, messages: int = 50_000) -> RebuildOutcome:
    """Plans with chunks of so many messages; nothing of a refused plan stays, as its caller does."""
    is_new = not request.directory.exists()
    try:
        return stage_rebuild(spark, request, limits=ChunkLimits(messages=messages))
    except BaseException:
        if is_new:
            shutil.rmtree(request.directory, ignore_errors=True)
        raise


def keys_of(request: RebuildRequest) -> list[int]:
    """The keys that were staged, as numbers."""
    return sorted(int(key) for key in read_staged(request)["key"].to_pylist())
