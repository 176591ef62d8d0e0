"""Rows are chosen by the database; ranges, frames, fingerprints and partitioners in Spark."""

from __future__ import annotations

import json
import random
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
import sqlalchemy as sa
from pyspark.sql import functions as F  # noqa: N812

from backlogctl.config import Stream
from backlogctl.errors import ConfigurationError
from backlogctl.manifests import CHUNK_SCHEMA
from backlogctl.partitioners import PARTITIONERS
from backlogctl.spark_backfill.injection.verification import fingerprint_read, fingerprint_staged
from backlogctl.spark_backfill.messages.candidates import (
    SourceAccess,
    build_candidates,
    count_rows,
    find_newest,
    read_rows,
)
from backlogctl.spark_backfill.messages.rules import PLACES, MessageRules
from backlogctl.spark_backfill.messages.windows import Bounds, filter_times, join_conditions
from backlogctl.spark_backfill.proof import find_gone_rows, render_identities
from backlogctl.spark_backfill.sources.columns import list_ranges, split_by_value
from backlogctl.spark_backfill.sources.reflection import open_engine, reflect_table
from backlogctl.spark_backfill.spark.frames import last_header, make_empty, make_rows, mark_within
from backlogctl.values import OffsetRange
from backlogctl_delivery.outbox.database import create_tables
from tests.spark_backfill import world
from tests.spark_backfill.reading import open_stream, read_messages, values_of
from tests.spark_backfill.test_outbox_source import make_stream as make_outbox_stream

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


START_MS = int(world.START.timestamp() * 1000)


def make_stream(**source: Any) -> Stream:
    return world.make_stream(
        "orders",
        **{
            "primary_key": ["id"],
            "time_column": "at",
            "time_unit": "ms",
            "message": {"key": "id", "value": {"json": ["id"]}},
            "identity": {"row": "id", "message": "key"},
            "mutable": False,
            **source,
        },
    )


@contextmanager
def opened(
    spark: SparkSession, url: str, stream: Stream
) -> Iterator[tuple[SourceAccess, MessageRules]]:
    access, rules = open_stream(spark, url, stream)
    yield access, rules
    access.engine.dispose()


def read_within(
    access: SourceAccess, rules: MessageRules, lower: datetime | None, upper: datetime | None
) -> tuple[set[int], dict[int, str | None]]:
    """What the database gives, and what is a candidate, with its reason."""
    bounds = Bounds(lower, upper)
    where = filter_times(access.table, rules.source, bounds, access.timezone)
    rows = read_rows(access, rules, where, rows=count_rows(access, where))
    kept = build_candidates(rows, rules, bounds).collect()
    return {row["id"] for row in rows.select("id").collect()}, {
        int(row["p0"]): row["reason"] for row in kept
    }


@pytest.mark.parametrize(("unit", "size"), [("ms", 1), ("s", 1000)])
def test_times_may_be_numbers(spark: SparkSession, url: str, unit: str, size: int) -> None:
    """As the database compares them, and as Spark does."""
    numbers = {1: 0, 2: 10, 3: 20, 4: 30}
    world.run_sql(
        url,
        "CREATE TABLE orders (id INTEGER PRIMARY KEY, at BIGINT)",
        *(
            f"INSERT INTO orders VALUES ({id_}, {(START_MS + after * 1000) // size})"
            for id_, after in numbers.items()
        ),
        f"INSERT INTO orders VALUES (5, NULL), (6, {2**63 - 1}), (7, {-(2**63)})",
    )
    lower, upper = (world.START + timedelta(seconds=s, milliseconds=1) for s in (0, 20))
    with opened(spark, url, make_stream(time_unit=unit)) as (access, rules):
        read, made = read_within(access, rules, lower, upper)
        assert read == ({2, 3, 5} if unit == "ms" else {1, 2, 3, 5})
        # Without a time it is a candidate until evidence explains it.
        assert made == {2: None, 3: None, 5: "column at: no time"}
        whole = read_within(access, rules, None, None)[1]
    assert set(whole) == set(range(1, 8))
    assert {whole[6], whole[7]} == {"column at: no time"}
    made_of = {m["p0"]: m["time"] for m in read_messages(spark, url, make_stream(time_unit=unit))}
    assert made_of["2"] == "2026-11-20T12:00:10.000000Z"


def test_a_row_that_is_not_marked_is_no_candidate(spark: SparkSession, url: str) -> None:
    world.run_sql(
        url,
        "CREATE TABLE orders (id INTEGER PRIMARY KEY, at BIGINT)",
        f"INSERT INTO orders VALUES (1, {START_MS}), (2, NULL)",
    )
    with opened(spark, url, make_stream(sent_time=True)) as (access, rules):
        assert read_within(access, rules, world.START, world.START)[0] == {1}
        assert read_within(access, rules, None, None)[0] == {1}


def test_text_among_the_numbers_of_sqlite_is_told(spark: SparkSession, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/shop.db"
    world.run_sql(
        url,
        "CREATE TABLE orders (id INTEGER PRIMARY KEY, at BIGINT)",
        f"INSERT INTO orders VALUES (1, '{START_MS}'), (2, 'yesterday'), (3, x'00'), (4, '')",
        f"INSERT INTO orders VALUES (5, {START_MS}.5), (6, 1.5)",
    )
    for sent in (False, True):
        with opened(spark, url, make_stream(sent_time=sent)) as (access, rules):
            made = read_within(access, rules, world.START, world.START + timedelta(seconds=1))[1]
            newest = find_newest(access, rules.source, 0)
        wrong = "column at: not a valid integer"
        # One that looks like a number became one; a number of before the bounds is outside.
        assert made == {1: None, 2: wrong, 3: wrong, 4: wrong, 5: wrong}
        assert newest == world.START


def test_the_newest_rows_are_found_by_numbers(spark: SparkSession, url: str) -> None:
    values = ", ".join(f"({n}, {START_MS + n * 1000}, '{'ab'[n % 2]}')" for n in range(20))
    world.run_sql(
        url,
        "CREATE TABLE orders (id INTEGER PRIMARY KEY, at BIGINT, kind VARCHAR(5))",
        f"INSERT INTO orders VALUES {values}, (20, NULL, 'a')",
    )
    with opened(spark, url, make_stream(where={"kind": "a"})) as (access, rules):
        assert find_newest(access, rules.source, 2) == world.START + timedelta(seconds=14)
        assert find_newest(access, rules.source, 100) is None


@pytest.mark.parametrize(("name", "kind"), [("id", "INTEGER"), ("code", "INTEGER"), ("word", "x")])
def test_fault_94_rows_that_are_gone_are_found(
    spark: SparkSession, url: str, name: str, kind: str
) -> None:
    """By a key in batches, without an index in one pass; of the stream's rows alone."""
    values = ", ".join(f"({n}, {n}, 'w{n}', '{'ab'[n % 2]}')" for n in range(1_000))
    world.run_sql(
        url,
        "CREATE TABLE orders (id INTEGER PRIMARY KEY, code INTEGER, word VARCHAR(9), kind TEXT,"
        " at BIGINT)",
        f"INSERT INTO orders (id, code, word, kind) VALUES {values}",
        "DELETE FROM orders WHERE id IN (10, 700)",
    )
    front = "" if kind == "INTEGER" else "w"
    asked = [f"{front}{n}".encode() for n in range(0, 1_000, 2)] + [f"{front}1".encode(), b"\xff"]
    with opened(spark, url, make_stream(where={"kind": "a"})) as (access, _):
        found = find_gone_rows(access, name, asked)
        gone = {f"{front}{n}".encode() for n in (1, 10, 700)}
        # What a column of numbers cannot hold is not asked for, nor is what is no text.
        assert found == frozenset(gone)
        assert find_gone_rows(access, None, asked) is None


def test_uuids_are_looked_up(spark: SparkSession, pg_url: str) -> None:
    """By their own index, as PostgreSQL prints them."""
    known, gone = str(uuid.uuid4()), str(uuid.uuid4())
    world.run_sql(
        pg_url,
        "CREATE TABLE orders (id UUID PRIMARY KEY, at BIGINT)",
        f"INSERT INTO orders VALUES ('{known}', 1)",
    )
    asked = [item.encode() for item in (known, gone, gone.upper(), "", "x\0", "'); --")]
    with opened(spark, pg_url, make_stream()) as (access, rules):
        assert find_gone_rows(access, "id", asked) == frozenset({gone.encode()})
        where = render_identities(asked, "id", access.table)
        assert where is not None
        rows = read_rows(access, rules, where, rows=1).collect()
        assert [row["id"] for row in rows] == [known]


WANTED: list[tuple[dict[str, Any], str]] = [
    ({}, "1234"),
    ({"kind": "it's %s :x"}, "12"),
    ({"kind": "1"}, "4"),
    ({"number": 7}, "13"),
    ({"number": -7}, "2"),
    ({"flag": True}, "13"),
    ({"flag": False}, "2"),
    ({"other": "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"}, "1"),
    ({"kind": "it's %s :x", "flag": True}, "1"),
]


def test_only_the_streams_rows_are_read(spark: SparkSession, url: str) -> None:
    uuid = "JSON" if url.startswith("sqlite") else "UUID"
    # MariaDB's own is a number.
    boolean = "BIT" if url.startswith("mariadb") else "BOOLEAN"
    world.run_sql(
        url,
        "CREATE TABLE orders (id INTEGER PRIMARY KEY, at BIGINT, kind VARCHAR(20), number INTEGER, "
        f"flag {boolean}, other {uuid})",
        "INSERT INTO orders VALUES "
        f"(1, {START_MS}, 'it''s %s :x', 7, true, 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'), "
        f"(2, {START_MS}, 'it''s %s :x', -7, false, NULL), (3, {START_MS}, NULL, 7, true, NULL), "
        f"(4, {START_MS}, '1', NULL, NULL, NULL)",
    )
    # It compares as the column's collation says.
    loud = ({"kind": "IT'S %S :X"}, "12" if url.startswith("mariadb") else "")
    for where, found in (*WANTED, loud):
        made = values_of(read_messages(spark, url, make_stream(where=where)))
        assert "".join(sorted(made)) == found, where


@pytest.mark.parametrize(
    ("change", "where", "words"),
    [
        ({"where": {"kidn": "a"}}, "source.where", "'kind'"),
        ({"where": {"kind": 7}}, "where.kind", "write text, quoted"),
        ({"where": {"id": "7"}}, "where.id", "write a whole number"),
        ({"where": {"id": True}}, "where.id", "write a whole number"),
        ({"where": {"id": 2**63}}, "where.id", "holds such a number"),
        ({"where": {"kind": "\0"}}, "where.kind", "NUL"),
        ({"where": {"amount": 7}}, "source.where", "compared exactly"),
        ({"time_unit": None}, "source.time_column", "`time_unit: ms`"),
        ({"time_column": "stamp"}, "source.time_unit", "leave it out"),
        ({"time_column": "amount", "time_unit": None}, "source.time_column", "it is decimal"),
    ],
)
def test_wrong_values_are_named_before_a_row_is_read(
    spark: SparkSession, tmp_path: Path, change: dict[str, Any], where: str, words: str
) -> None:
    url = f"sqlite:///{tmp_path}/shop.db"
    world.run_sql(
        url,
        "CREATE TABLE orders (id INTEGER PRIMARY KEY, at BIGINT, kind TEXT, amount NUMERIC(5, 2), "
        "stamp TIMESTAMP)",
    )
    with pytest.raises(ConfigurationError) as caught:
        open_stream(spark, url, make_stream(**change))
    assert where in caught.value.subject
    assert words in str(caught.value) + caught.value.hint


def test_an_index_serves_the_bounds_of_an_outbox(spark: SparkSession, url: str) -> None:
    engine = world.open_database(url)
    is_mariadb = engine.dialect.name == "mariadb"
    with engine.begin() as connection:
        if is_mariadb:
            connection.exec_driver_sql("SET max_recursive_iterations = 20000")
        create_tables(connection)
        connection.execute(
            sa.text(
                "INSERT INTO backlog_outbox (message_id, topic, state, attempts, max_attempts, "
                "interval_ms, created_at, sent_at) WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL "
                "SELECT i + 1 FROM n WHERE i < 20000) SELECT CAST(i AS VARCHAR(32)), 'orders', "
                "'sent', 1, 9, 0, i, i FROM n"
            )
        )
        connection.execute(sa.text(f"ANALYZE {'TABLE backlog_outbox' if is_mariadb else ''}"))
    with opened(spark, url, make_outbox_stream("orders")) as (access, rules):
        at = datetime.fromtimestamp(10, world.START.tzinfo)
        bounds = Bounds(at, at + timedelta(milliseconds=50))
        times = filter_times(access.table, rules.source, bounds, "UTC")
        where = join_conditions(access.wanted, times)
    explain = "EXPLAIN QUERY PLAN" if engine.dialect.name == "sqlite" else "EXPLAIN"
    with engine.connect() as connection:
        rows = connection.exec_driver_sql(f"{explain} SELECT * FROM backlog_outbox WHERE {where}")
        plan = "\n".join(str(row) for row in rows)
    engine.dispose()
    assert "backlog_outbox_sent_at" in plan
    assert not [word for word in ("Seq Scan", "SCAN", "'ALL'") if word in plan], plan


_READ = "partition int, key binary, value binary, headers array<struct<name:string,value:binary>>, n int"


def test_the_last_header_of_a_name_counts(spark: SparkSession) -> None:
    cases = [
        (None, None),
        ([], None),
        ([("b", b"1")], None),
        ([("a", None)], None),
        ([("a", b"1"), ("b", b"2")], b"1"),
        ([("a", b"1"), ("a", b"\xff"), ("b", b"2")], b"\xff"),
        ([("a", b"1"), ("a", None)], None),
    ]
    rows = [(0, None, None, headers, n) for n, (headers, _) in enumerate(cases)]
    found = world.make_frame(spark, rows, _READ).select("n", last_header("a").alias("last"))
    assert {row.n: row.last for row in found.collect()} == {
        n: expected for n, (_, expected) in enumerate(cases)
    }


def test_different_messages_have_different_fingerprints(spark: SparkSession) -> None:
    messages = [
        (0, None, None, []),
        (1, None, None, []),
        (0, b"", None, []),
        (0, None, b"", []),
        (0, b"a", None, []),
        (0, None, b"a", []),
        (0, b"-", b"a", []),
        (0, b"a|1:b", b"c", []),
        (0, b"a", b"b|1:c", []),
        (0, b"\xff", b"a", []),
        (0, b"\xfe", b"a", []),
        (0, b"\xef\xbf\xbd", b"a", []),
        (0, b"a", b"b", [("h", None)]),
        (0, b"a", b"b", [("h", b"")]),
        (0, b"a", b"b", [("h", b"\xff")]),
        (0, b"a", b"b", [("h", b"\xfe")]),
        (0, b"a", b"b", [("h", b"1"), ("h", b"2")]),
        (0, b"a", b"b", [("h", b"2"), ("h", b"1")]),
        (0, b"a", b'b|[{"name":"h","value":"MQ=="}]', []),
        (0, b"a", b"b", [("h", b"1")]),
        # What marks a border or NULL may stand in a message too.
        (0, b"a\0b", b"c", []),
        (0, b"a", b"b\0c", []),
        (0, b"a\1b", b"c", []),
        (0, b"\1", b"a", []),
        (0, b"\0", b"a", []),
        (0, b"a", b"b", [("", b"")]),
        (0, b"a", b"b", [("", None)]),
        (0, b"a", b"b", [("h", b"\1")]),
        (0, b"a", b"b", [("h", b"\0")]),
        (0, b"a", b"b\0h\0001", []),
        (0, b"a", b"b", [("h\0i", b"1\0002")]),
        (0, b"a", b"b", [("h", b"1"), ("i", b"2")]),
        (0, b"a", b"b", [("h", b"i"), ("1", b"2")]),
    ]
    read = world.make_frame(spark, [(*m, n) for n, m in enumerate(messages)], _READ)
    one = {row.n: bytes(row.f) for row in read.select("n", fingerprint_read().alias("f")).collect()}
    columns = ("partition", "key", "value", "headers")
    rows = [{"message_id": "", **dict(zip(columns, m, strict=True))} for m in messages]
    (whole,) = pa.Table.from_pylist(rows, CHUNK_SCHEMA).to_batches()
    # Parts of a chunk as well as the whole.
    parts = [whole.slice(start, 5) for start in range(0, len(messages), 5)]
    for batches in ([whole], parts):
        fingerprints = [f for batch in batches for f in fingerprint_staged(batch).to_pylist()]
        assert one == dict(enumerate(fingerprints))
    assert len(set(one.values())) == len(messages)


def test_thousands_of_ranges_mark_each_row_once(spark: SparkSession) -> None:
    """Ranges may overlap; an offset or partition that is not known lies in none."""
    ranges = [OffsetRange(p, start, start + 5) for p in range(300) for start in range(0, 100, 10)]
    ranges += [OffsetRange(7, 0, 3), OffsetRange(7, 2, 12)]
    rows = [(p, at) for p in (0, 7, 299, 300, None) for at in (0, 4, 5, 11, None)]
    frame = make_rows(spark, rows, "home int, at long")
    marked = mark_within(frame, ranges, "inside", partition="home", offset="at").collect()
    inside = {(row["home"], row["at"]) for row in marked if row["inside"]}
    assert len(marked) == len(rows)
    assert inside == {
        *((p, at) for p in (0, 299) for at in (0, 4, 11)),
        *((7, at) for at in (0, 4, 5, 11)),
    }
    none = mark_within(frame, [], "inside", partition="home", offset="at")
    assert none.where("inside").count() == 0


TENANTS: list[str | None] = [
    "a",
    "B",
    "zo\N{LATIN SMALL LETTER E WITH ACUTE}",
    "",
    "%s?",
    "o'x",
    None,
]


def read_by_ranges(url: str, table: str, key: tuple[str, ...], count: int) -> list[list[Any]]:
    """The rows' marker column `id`, by range."""
    engine = open_engine(world.make_source(url), "shop")
    try:
        found = reflect_table(engine, "shop", table)
        with engine.connect() as connection:
            rows = connection.execute(sa.text(f"SELECT count(*) FROM {table}")).scalar_one()
            predicates = list_ranges(connection, found, key, "", rows, count, min_rows=1)
            aliases = ", ".join(f"{name} AS k{i}" for i, name in enumerate(key))
            return [
                [
                    row[0]
                    for row in connection.exec_driver_sql(
                        f"SELECT id FROM (SELECT id, {aliases} FROM {table}) s WHERE {predicate}",
                        execution_options={"no_parameters": True},
                    )
                ]
                for predicate in predicates
            ]
    finally:
        engine.dispose()


def test_fault_29_nulls_in_a_composite_key_are_read_once(url: str) -> None:
    rows = [
        {"id": i, "tenant": TENANTS[i % 7], "number": None if i % 11 == 0 else i}
        for i in range(300)
    ]
    world.fill_table(
        url, "CREATE TABLE items (id INTEGER, tenant TEXT, number BIGINT)", rows, "items"
    )
    ranges = read_by_ranges(url, "items", ("tenant", "number"), 5)
    assert len(ranges) == 5
    read = Counter(number for part in ranges for number in part)
    assert read == Counter(range(300))
    nulls = {row["id"] for row in rows if row["tenant"] is None or row["number"] is None}
    assert set(ranges[-1]) == nulls
    assert all(ranges)


@pytest.mark.parametrize("kind", ["integer", "varchar(30)"])
def test_single_keys_are_shared_out_evenly(url: str, kind: str) -> None:
    create = f"CREATE TABLE items (id INTEGER, k {kind} NOT NULL PRIMARY KEY)"
    rows = [{"id": i, "k": i * i if kind == "integer" else f"k'{i}\\"} for i in range(200)]
    world.fill_table(url, create, rows, "items")
    ranges = read_by_ranges(url, "items", ("k",), 4)
    assert Counter(n for part in ranges for n in part) == Counter(range(200))
    assert [len(part) for part in ranges] == [50, 50, 50, 50]


def test_sqlite_mixed_types_are_read_once(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/mixed.db"
    values = [1, 2.5, "x", b"\x00\xff", None, "", 10**12, -3]
    rows = [{"id": i, "k": values[i % 8]} for i in range(80)]
    world.fill_table(url, "CREATE TABLE items (id INTEGER, k)", rows, "items")
    ranges = read_by_ranges(url, "items", ("k",), 4)
    assert Counter(n for part in ranges for n in part) == Counter(range(80))


def test_odd_postgres_key_types(pg_url: str) -> None:
    world.run_sql(
        pg_url,
        "CREATE TABLE items (id int, c char(6), u uuid, t timestamptz, n numeric)",
        "INSERT INTO items SELECT i, 'k' || i, md5(i::text)::uuid, now() + i * interval '1 s', "
        "i / 7.0 FROM generate_series(1, 120) i",
    )
    for key in (("c",), ("u",), ("t", "n"), ("n", "c", "id")):
        ranges = read_by_ranges(pg_url, "items", key, 4)
        assert Counter(n for part in ranges for n in part) == Counter(range(1, 121)), key


def test_ranges_exclude_nulls_by_name() -> None:
    # `(1, NULL) < (2, 5)` is true: without the names such a row would be read twice.
    assert split_by_value(["k0", "k1"], ["(2, 5)"], ["k1"]) == (
        "k1 IS NOT NULL AND (k0, k1) < (2, 5)",
        "k1 IS NOT NULL AND (k0, k1) >= (2, 5)",
        "k1 IS NULL",
    )
    assert json.dumps(split_by_value(["k0"], [])) == '["1 = 1"]'


def test_there_is_one_for_each_that_a_stream_may_name() -> None:
    assert set(PLACES) == set(PARTITIONERS)


@pytest.mark.parametrize("name", sorted(PARTITIONERS))
@pytest.mark.parametrize("code", ["generated", "interpreted"])
def test_keys_are_placed_alike(spark: SparkSession, name: str, code: str) -> None:
    chance = random.Random(7)
    keys = [chance.randbytes(length) for length in range(70) for _ in range(20)]
    keys += [str(number).encode() for number in range(500)] + [b"\xff" * 9, b"\x80\x00\x7f"]
    numbers = world.make_frame(spark, [*enumerate(keys), (len(keys), None)], "n int, key binary")
    factory = "NO_CODEGEN" if code == "interpreted" else "FALLBACK"
    spark.conf.set("spark.sql.codegen.factoryMode", factory)
    spark.conf.set("spark.sql.codegen.wholeStage", str(code == "generated").lower())
    try:
        for partitions in (1, 7, 12, 1000):
            placed = numbers.select("n", PLACES[name](F.col("key"), partitions).alias("slot"))
            assert placed.schema["slot"].dataType.simpleString() == "int"
            found = [row.slot for row in sorted(placed.collect())]
            expected = PARTITIONERS[name](pa.array(keys, pa.binary()), partitions).tolist()
            assert found == [*expected, None]
    finally:
        spark.conf.unset("spark.sql.codegen.factoryMode")
        spark.conf.unset("spark.sql.codegen.wholeStage")


def test_an_empty_frame_needs_no_task(spark: SparkSession) -> None:
    schema = "key binary, headers array<struct<name:string,value:binary>>, n int"
    empty = make_empty(spark, schema)
    assert empty.collect() == []
    assert dict(empty.dtypes)["headers"] == "array<struct<name:string,value:binary>>"
    joined = spark.range(5).join(empty, F.col("id") == F.col("n"), "left")
    plan = joined._jdf.queryExecution().optimizedPlan().toString()
    assert "Join" not in plan
    assert "RDD" not in plan
    assert joined.count() == 5
