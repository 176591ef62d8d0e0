"""Rows of an outbox and originals become messages; chunks are cut; Spark's archived classes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from confluent_kafka import Message
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy.orm import Session

from backlogctl.config import Stream
from backlogctl.config.streams import expand_outbox
from backlogctl.jars import find_java
from backlogctl.manifests import CHUNK_SCHEMA, HEADER_TYPE, read_chunk
from backlogctl.sandbox.embedded import EmbeddedKafka
from backlogctl.spark_backfill.existing.messages import (
    ORIGINALS_SCHEMA,
    count_replays,
    format_message_time,
    hash_original_id,
    read_log,
)
from backlogctl.spark_backfill.messages.staging import (
    ChunkLimits,
    StampValues,
    stamp_messages,
    write_chunks,
)
from backlogctl.spark_backfill.spark import session
from backlogctl.spark_backfill.spark.session import (
    DRIVER_OPTIONS,
    find_class_archive,
    make_conf,
    make_options,
)
from backlogctl.values import OffsetRange
from backlogctl_delivery import stamps
from backlogctl_delivery.outbox.database import messages as outbox_table
from tests.conftest import MakeTopic
from tests.delivery.kit import Shop, read_id
from tests.spark_backfill.archive.archiving import CODECS, KEEP, consume, publish
from tests.spark_backfill.reading import read_messages
from tests.spark_backfill.world import make_frame, run_sql

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


HOSTILE = '"; DROP TABLE x; --\n\x1b[31m\u202eevil\u00e9'


@pytest.fixture(params=["postgres", "sqlite", "mariadb"])
def shop(request: pytest.FixtureRequest, kafka: EmbeddedKafka, tmp_path: Path) -> Iterator[Shop]:
    """An application with an outbox."""
    url = f"sqlite:///{tmp_path / 'shop.db'}"
    if request.param != "sqlite":
        name = "pg_url" if request.param == "postgres" else "mariadb_url"
        url = str(request.getfixturevalue(name))
    with Shop(url, kafka.bootstrap) as made:
        yield made


def make_stream(topic: str, **beside: Any) -> Stream:
    """All that the configuration says."""
    return Stream.model_validate(
        {
            "name": "orders",
            "cluster": "main",
            "topic": topic,
            "group": "order-service",
            "source": {"outbox": "shop", **beside},
        }
    )


def describe(message: Message) -> tuple[Any, ...]:
    return (message.key(), message.value(), message.headers(), message.partition())


def describe_built(built: dict[str, Any]) -> tuple[Any, ...]:
    headers = [(item["name"], _bytes(item["value"])) for item in built["header_list"]]
    headers += [(stamps.EVENT_ID, _bytes(built["header_values"][0]))]
    return (_bytes(built["key"]), _bytes(built["value"]), headers, built["home"])


def _bytes(value: Any) -> bytes | None:
    return None if value is None else bytes(value)


GIVEN: list[dict[str, Any]] = [
    {"key": "k", "value": "v", "headers": {"type": "paid"}},
    {"key": b"\x00\xff", "value": b"\xff\x00\xfe", "headers": {"raw": b"\x00\xff", "none": None}},
    {"key": "k", "value": None},
    {"key": "k", "value": b""},
    {"key": "k", "value": ""},
    {"key": b"", "value": "v"},
    {"key": None, "value": "v", "headers": {}},
    {"key": None, "value": None, "headers": [("a", b"")]},
    {"key": "k", "value": "v", "headers": [("a", "1"), ("b", None), ("a", "2"), ("a", "1")]},
    {"key": "k", "value": "v", "headers": [(HOSTILE, HOSTILE), ("", ""), ("\N{SNOWMAN}", b"\x80")]},
    {"key": "1", "value": "1", "headers": {"1": "1"}},
    {"key": "1", "value": "1e5", "message_id": "12345678901234567890123456789012"},
    {"key": "1", "value": "v", "message_id": "1234567890123456789012345678901e"},
    {"key": "1", "value": "v", "message_id": "00000000000000000000000000000007"},
]


def test_a_row_becomes_the_message_that_was_sent(
    spark: SparkSession, shop: Shop, topic: MakeTopic
) -> None:
    name, other = topic(3), topic(3)
    with Session(shop.engine) as session, session.begin():
        for given in GIVEN:
            shop.outbox.add(session, topic=name, **given)
            shop.outbox.add(session, topic=other, key="k", value="of another topic")
    with shop.sending():
        shop.await_sent(2 * len(GIVEN))
    shop.add(name, "k", headers={"a": "not sent yet"})
    made = read_rows(spark, shop, name)
    assert [built["reason"] for built in made] == [None] * len(GIVEN)
    sent = {read_id(message): message for message in shop.read(name, 3)}
    assert len(sent) == len(GIVEN)
    for built in made:
        message = sent[bytes(built["identity"]).decode()]
        assert describe_built(built) == describe(message)


def read_rows(spark: SparkSession, shop: Shop, topic: str) -> list[dict[str, Any]]:
    return read_messages(spark, shop.url, make_stream(topic))


BROKEN = [
    "", "{", "null", "7", "[1]", '{"a": "MQ=="}', '[["a"]]', '[["a", "MQ==", "x"]]', '[[null, "MQ=="]]',
    '[["a", "no base64!"]]', '[["a", "MQ=="], null]', '[["a", "MQ=="]', '[["a", {"b": 1}]]', '[["a", "MQ=="]] x', '[["a", 1234]]', '[[1, "MQ=="]]', '[["a", "MQ"]]',
    '[["a", "MQ=="],]', "[", r'[["\q", null]]', "x" * 300,
]  # fmt: skip


def test_headers_that_cannot_be_read_put_their_row_into_quarantine(
    spark: SparkSession, shop: Shop
) -> None:
    """Someone wrote into the table by hand."""
    shop.add("orders", *("k" for _ in (*BROKEN, None)))
    run_sql(shop.url, "UPDATE backlog_outbox SET state = 'sent', sent_at = 1 + id")
    with shop.engine.begin() as connection:
        for number, text in enumerate(BROKEN, 1):
            change = outbox_table.update().where(outbox_table.c.id == number)
            connection.execute(change.values(headers=text))
    made = {int(built["p0"]): built for built in read_rows(spark, shop, "orders")}
    assert len(made) == len(BROKEN) + 1
    # No text, and no headers, are the same to the sender.
    assert [made[at]["header_list"] for at in (1, len(BROKEN) + 1)] == [[], []]
    found = {made[number]["reason"] for number in range(2, len(BROKEN) + 1)}
    assert found == {"its headers are no JSON list of [name, value in base64 or null]"}


def test_the_message_is_measured_with_its_headers(spark: SparkSession, shop: Shop) -> None:
    """2,000 bytes are the topic's limit here."""
    shop.add("orders", "k", headers=[("a", b"x" * 500), ("b" * 300, None)])
    shop.add("orders", "k", headers=[("a", b"x" * 500)] * 2 + [("b" * 600, None)])
    run_sql(
        shop.url,
        "UPDATE backlog_outbox SET state = 'sent', sent_at = id",
        "UPDATE backlog_outbox SET value = NULL WHERE id = 2",
    )
    small, large = read_rows(spark, shop, "orders")
    assert small["reason"] is None
    assert "larger than the topic allows" in large["reason"]


def test_the_section_names_the_columns_of_the_table() -> None:
    """The kernel may not import the room that makes the table."""
    section: Any = expand_outbox("orders", {"outbox": "shop"})
    known = set(outbox_table.c.keys())
    message = section["message"]
    used = {
        *section["primary_key"], *section["where"], *section["order_by"], section["time_column"],
        message["key"], message["partition"], message["value"]["column"], message["header_list"],
        message["headers"][stamps.EVENT_ID], section["identity"]["row"],
    }  # fmt: skip
    assert section["table"] == outbox_table.name
    assert used <= known


SCHEMA = pa.schema(
    [
        ("slot", pa.int32()),
        ("message_id", pa.string()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("header_values", pa.list_(pa.binary())),
        ("original_time", pa.string()),
    ]
)
VALUES = StampValues("r-20261121-0001", "restated", ("type", "trace"))


def make_rows(slots: dict[int, int], size: int = 10) -> pa.Table:
    rows = [
        {
            "slot": slot,
            "message_id": f"{slot:016x}{number:016x}",
            "key": None if number % 5 == 0 else str(number).encode(),
            "value": b"v" * size,
            "header_values": [b"OrderPaid", None if number % 2 else b"\xff"],
            "original_time": f"2026-11-20T12:00:00.{number:06d}Z",
        }
        for slot, count in slots.items()
        for number in range(count)
    ]
    return pa.Table.from_pylist(rows, schema=SCHEMA)


def cut(table: pa.Table, directory: Path, limits: ChunkLimits, batch: int) -> list[tuple[int, ...]]:
    chunks = list(write_chunks(table.to_batches(max_chunksize=batch), directory, limits, VALUES))
    back = pa.concat_tables([read_chunk(directory, c) for c in chunks])
    assert back["message_id"].to_pylist() == table["message_id"].to_pylist()
    assert back["partition"].to_pylist() == table["slot"].to_pylist()
    return [(c.slot, c.number, c.count, int(c.canary)) for c in chunks]


def test_canaries_are_the_first_three_chunks_of_one_slot(tmp_path: Path) -> None:
    limits = ChunkLimits(messages=40, canary_slot=2)
    table = make_rows({0: 45, 2: 100})
    assert cut(table, tmp_path, limits, 17) == [
        (0, 0, 40, 0),
        (0, 1, 5, 0),
        (2, 0, 10, 1),
        (2, 1, 10, 1),
        (2, 2, 10, 1),
        (2, 3, 40, 0),
        (2, 4, 30, 0),
    ]


@pytest.mark.parametrize(("count", "expected"), [(4, [4]), (10, [10]), (23, [10, 10, 3])])
def test_few_messages_make_fewer_canaries(tmp_path: Path, count: int, expected: list[int]) -> None:
    made = cut(make_rows({1: count}), tmp_path, ChunkLimits(canary_slot=1), 7)
    assert [item[2] for item in made] == expected
    assert all(item[3] for item in made)


def test_a_chunk_is_cut_by_its_bytes_too(tmp_path: Path) -> None:
    limits = ChunkLimits(messages=100, bytes=1000)
    made = cut(make_rows({0: 9}, size=400), tmp_path, limits, 4)
    assert [item[2] for item in made] == [2, 2, 2, 2, 1]
    # A message larger than a chunk is still sent, alone.
    alone = cut(make_rows({0: 3}, size=5000), tmp_path / "large", limits, 2)
    assert [item[2] for item in alone] == [1, 1, 1]


@given(
    slots=st.dictionaries(st.integers(0, 4), st.integers(1, 60), min_size=1),
    batch=st.integers(1, 70),
    messages=st.integers(1, 50),
    size=st.integers(0, 60),
)
def test_chunks_do_not_depend_on_how_rows_arrive(
    tmp_path_factory: pytest.TempPathFactory,
    slots: dict[int, int],
    batch: int,
    messages: int,
    size: int,
) -> None:
    limits = ChunkLimits(messages=messages, bytes=500, canary_slot=min(slots))
    table = make_rows(dict(sorted(slots.items())), size)
    one, two = tmp_path_factory.mktemp("one"), tmp_path_factory.mktemp("two")
    first = list(write_chunks(table.to_batches(max_chunksize=batch), one, limits, VALUES))
    second = list(write_chunks(table.to_batches(), two, limits, VALUES))
    assert first == second
    assert sum(chunk.count for chunk in first) == table.num_rows
    for chunk in first:
        assert (one / chunk.path).read_bytes() == (two / chunk.path).read_bytes()


def test_headers_are_the_streams_own_then_the_stamps() -> None:
    table = make_rows({3: 7})
    stamped = stamp_messages(table.slice(2), VALUES)
    assert stamped.schema == CHUNK_SCHEMA
    for made, row in zip(stamped.to_pylist(), table.slice(2).to_pylist(), strict=True):
        expected = stamps.stamp(
            list(zip(("type", "trace"), row["header_values"], strict=True)),
            message_id=row["message_id"],
            recovery_id=VALUES.recovery_id,
            original_time=row["original_time"],
            fidelity="restated",
        )
        assert [(h["name"], h["value"]) for h in made["headers"]] == expected
        assert (made["key"], made["value"]) == (row["key"], row["value"])


def test_files_are_their_owners_only(tmp_path: Path) -> None:
    cut(make_rows({0: 3}), tmp_path / "r", ChunkLimits(), 10)
    files = list((tmp_path / "r").rglob("*.parquet"))
    assert len(files) == 2
    assert all(path.stat().st_mode & 0o077 == 0 for path in files)


_START = f"""
from backlogctl.config import SparkSection
from backlogctl.spark_backfill.spark.session import open_session
conf = {{"{DRIVER_OPTIONS}": "-Xlog:class+load:file=classes.log"}}
assert open_session(SparkSection(master="local[1]", conf=conf), "test").range(9).count() == 9
"""


def test_options_of_the_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = tmp_path / "spark.jsa"
    monkeypatch.setattr(session, "find_class_archive", lambda: archive)
    assert make_options("") == ""
    archive.touch()
    option = f"-XX:SharedArchiveFile={archive}"
    assert make_options("-Xss4m") == option
    assert make_options("-Xshare:off") == make_options("-XX:SharedArchiveFile=/own.jsa") == ""
    own = {DRIVER_OPTIONS: "-Xss4m"}
    assert make_conf("local[*]", own)[DRIVER_OPTIONS] == f"-Xss4m -Duser.timezone=UTC {option}"
    assert option not in make_conf("local[*]", {})["spark.executor.extraJavaOptions"]


def test_a_path_that_would_be_two_options_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = tmp_path / "two words" / "spark.jsa"
    archive.parent.mkdir()
    archive.touch()
    monkeypatch.setattr(session, "find_class_archive", lambda: archive)
    assert make_options("") == ""


@pytest.mark.spark
def test_java_takes_sparks_classes_from_it(tmp_path: Path) -> None:
    """Java says nothing where an archive does not fit: only the source of its classes tells."""
    if not find_class_archive().is_file():
        subprocess.run(
            [sys.executable, "-m", "backlogctl.spark_backfill.spark.class_archive_maker"],
            check=True,
        )
    subprocess.run([sys.executable, "-c", _START], cwd=tmp_path, check=True)
    loaded = [
        line
        for line in (tmp_path / "classes.log").read_text().splitlines()
        if " org.apache.spark." in line
    ]
    shared = [line for line in loaded if "source: shared objects file (top)" in line]
    assert len(shared) > len(loaded) / 2 > 1000


def test_an_archive_that_does_not_fit_is_ignored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "spark.jsa"
    broken.write_bytes(b"not an archive")
    monkeypatch.setattr(session, "find_class_archive", lambda: broken)
    option = make_options("")
    assert str(broken) in option
    subprocess.run([find_java(), option, "-version"], check=True)


RECOVERY = "r-20261124-0001"
TOPIC_ID = "Pq3-_topic"
COUNT = 10


def test_spark_and_python_make_the_same_id(spark: SparkSession) -> None:
    places = [(0, 0), (3, 7), (12, 2**40)]
    frame = make_frame(spark, places, "p int, o long")
    made = frame.select(hash_original_id(TOPIC_ID, "p", "o").alias("id")).collect()
    assert [row["id"] for row in made] == [
        stamps.make_original_id(TOPIC_ID, partition, offset) for partition, offset in places
    ]


def test_bytes_are_read_as_they_were(
    spark: SparkSession, kafka: EmbeddedKafka, topic: MakeTopic
) -> None:
    name = topic(2, KEEP)
    for codec in CODECS:
        publish(kafka.bootstrap, name, COUNT, 2, **{"compression.type": codec})
    ranges = [OffsetRange(p, 0, COUNT * len(CODECS)) for p in range(2)]
    frame = read_log(spark, {"bootstrap.servers": kafka.bootstrap}, name, ranges)
    rows = frame.orderBy("source_partition", "source_offset").collect()
    for row, (partition, offset, at, _, key, value, headers) in zip(
        rows, consume(kafka.bootstrap, name, ranges), strict=True
    ):
        place = (row["source_partition"], row["source_offset"], row["timestamp"])
        assert (*place, row["key"], row["value"]) == (partition, offset, at, key, value)
        assert tuple((h["name"], h["value"]) for h in row["headers"]) == headers


HEADER = st.tuples(
    st.sampled_from(["", "trace", "trace ☂", *stamps.ALL]), st.none() | st.binary(max_size=6)
)


@given(
    rows=st.lists(st.tuples(st.lists(HEADER, max_size=5), st.integers(1, 9)), max_size=12),
    skip=st.integers(0, 3),
)
def test_headers_are_the_messages_own_then_the_stamps(
    rows: list[tuple[list[tuple[str, bytes | None]], int]], skip: int
) -> None:
    table = pa.Table.from_pylist(
        [
            {
                "slot": 1,
                "message_id": f"{number:032x}",
                "key": None,
                "value": b"",
                "headers": [{"name": n, "value": v} for n, v in headers],
                "fidelity": "original" if number % 2 else "restated",
                "replays": replays,
                "original_time": None if number % 3 else "2026-11-20T12:00:00.000000Z",
            }
            for number, (headers, replays) in enumerate(rows)
        ],
        schema=pa.schema(
            [
                ("slot", pa.int32()),
                ("message_id", pa.string()),
                ("key", pa.binary()),
                ("value", pa.binary()),
                ("headers", HEADER_TYPE),
                ("fidelity", pa.string()),
                ("replays", pa.int32()),
                ("original_time", pa.string()),
            ]
        ),
    ).slice(skip)
    made = stamp_messages(table, StampValues(RECOVERY, "", ()))
    assert made.schema == CHUNK_SCHEMA
    for row, given_row in zip(made.to_pylist(), table.to_pylist(), strict=True):
        own = [(h["name"], h["value"]) for h in given_row["headers"]]
        at = given_row["original_time"]
        assert [(h["name"], h["value"]) for h in row["headers"]] == [
            *((name, value) for name, value in own if name not in stamps.ALL),
            (stamps.MESSAGE_ID, given_row["message_id"].encode()),
            (stamps.RECOVERY_ID, RECOVERY.encode()),
            (stamps.ORIGINAL_TIME, None if at is None else at.encode()),
            (stamps.FIDELITY, given_row["fidelity"].encode()),
            (stamps.REPLAYS, str(given_row["replays"]).encode()),
        ]


def test_stamps_of_an_earlier_recovery_are_read_and_hostile_ones_are_not(
    spark: SparkSession,
) -> None:
    """How often, and when first; whatever else stands there counts as nothing."""
    first = b"2024-02-03T04:05:06.000007Z"
    stamped: list[tuple[bytes | None, bytes | None]] = [
        (b"2", first),
        (b"many", b"yesterday"),
        (b"-4", b"2024-02-03T04:05:06.00000\xffZ"),
        (None, None),
        (b"9" * 40, b""),
    ]
    rows = [
        (0, n, 1_760_000_000_005, 0, b"k", b"v", [(stamps.REPLAYS, a), (stamps.ORIGINAL_TIME, b)])
        for n, (a, b) in enumerate(stamped)
    ]
    rows.append((0, 9, 2**60, 0, b"k", b"v", []))
    frame = make_frame(spark, rows, ORIGINALS_SCHEMA)
    replays = (count_replays() + 1).alias("replays")
    made = frame.select(replays, format_message_time().alias("original_time")).collect()
    own = "2025-10-09T08:53:20.005000Z"
    assert [(row["replays"], row["original_time"]) for row in made] == [
        (3, first.decode()),
        (1, own),
        (1, own),
        (1, own),
        (1, own),
        (1, None),
    ]
