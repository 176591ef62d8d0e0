"""Rows as they are read, messages as they are built, and what is checked before."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import pytest
import yaml
from pyspark.sql import functions as F  # noqa: N812

from backlogctl.errors import ConfigurationError, Refused, SourceError
from backlogctl.sandbox.embedded import EmbeddedKafka
from backlogctl.spark_backfill.comparison import cut_fields
from backlogctl.spark_backfill.messages.candidates import build_candidates, read_rows
from backlogctl.spark_backfill.messages.rules import build_messages, hash_message_id, join_headers
from backlogctl.spark_backfill.messages.windows import Bounds, filter_times
from backlogctl.spark_backfill.sources.databases import parse_time_text
from backlogctl.spark_backfill.sources.reflection import (
    make_access,
    open_engine,
    reflect_table,
    require_tables,
)
from backlogctl_delivery.stamps import make_message_id
from tests.conftest import MakeTopic
from tests.spark_backfill import world
from tests.spark_backfill.reading import open_stream, read_messages, values_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_message_ids_are_those_of_the_stamps(spark: SparkSession) -> None:
    rows = [
        ("1", "b", "2026"),
        (None, "", ""),
        ("\N{SNOWMAN}" * 90, "x" * 70000, "1:\0"),
        ("", None, "v"),
    ]
    frame = world.make_frame(spark, rows, "a string, b string, v string")
    made = frame.select(
        F.expr(hash_message_id("orders", ["a", "b"], "CAST(v AS binary)")).alias("id")
    ).collect()
    assert [row["id"] for row in made] == [make_message_id("orders", (a, b), v) for a, b, v in rows]


TIMES = [
    ("2026-11-21 01:02:03.000004", "2026-11-21T00:02:03.000004Z"),
    ("2026-11-21T01:02:03", "2026-11-21T00:02:03.000000Z"),
    ("2026-11-21 01:02", "2026-11-21T00:02:00.000000Z"),
    ("2026-11-21T01:02:03.5Z", "2026-11-21T01:02:03.500000Z"),
    ("2026-11-21 01:02:03+05:30", "2026-11-20T19:32:03.000000Z"),
    ("2026-07-21 01:02:03", "2026-07-20T23:02:03.000000Z"),
    ("2026-11-21 01:02:03.0000004", None),
    ("2026-02-30 01:02:03", None),
    ("yesterday", None),
    ("1763683323", None),
    ("", None),
]


def test_sqlite_times_are_parsed_by_us(spark: SparkSession) -> None:
    frame = world.make_frame(spark, [(text,) for text, _ in TIMES], "t string")
    made = frame.select("t", F.expr(parse_time_text("t", "Europe/Berlin")).alias("made")).collect()
    assert {row["t"]: row["made"] for row in made} == dict(TIMES)


def test_fault_34_postgres_values_are_exact_or_quarantined(
    spark: SparkSession, pg_url: str
) -> None:
    world.run_sql(
        pg_url,
        "CREATE TABLE orders (id bigint PRIMARY KEY, n numeric, d numeric(38,10), f double precision, "
        "r real, b boolean, t timestamptz, w timestamp, day date, c char(4), u uuid, j jsonb, raw bytea, "
        "txt text, small smallint)",
        "INSERT INTO orders VALUES (1, 12345678901234567890123456789012345678901234567890.120, "
        "1.5, 0.1, 0.1, true, '2026-03-29 01:30:00.000001+00', '2026-03-29 03:30:00', '2026-01-02', "
        "'ab', 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', '{\"k\": [1, null]}', '\\x00ff', "
        "E'line\\u2028 \\t\\x01 \"q\" / \\U0001F600', -3)",
        "INSERT INTO orders (id, t) VALUES (2, '2026-01-01')",
        "INSERT INTO orders (id, t, n) VALUES (3, '2026-01-01', 'NaN')",
        "INSERT INTO orders (id, t, f) VALUES (4, '2026-01-01', '-Infinity')",
        "INSERT INTO orders (id, t) VALUES (5, 'infinity'), (6, NULL), (7, '10000-01-01')",
        "INSERT INTO orders (id, t, txt) VALUES (8, '2026-01-01', repeat('x', 2000))",
    )
    names = ["n", "d", "f", "r", "b", "t", "w", "day", "c", "u", "j", "raw", "txt", "small"]
    stream = world.make_stream(
        "orders",
        primary_key=["id"],
        time_column="t",
        message={"key": "id", "value": {"json": names}, "headers": {"type": "upper('paid')"}},
        identity={"row": "id", "message": "key"},
    )
    messages = read_messages(spark, pg_url, stream, timezone="Europe/Berlin")
    assert (
        bytes(messages[0]["value"])
        == json.dumps(
            {
                "n": "12345678901234567890123456789012345678901234567890.120",
                "d": "1.5000000000",
                "f": 0.1,
                "r": 0.1,
                "b": True,
                "t": "2026-03-29T01:30:00.000001Z",
                "w": "2026-03-29T01:30:00.000000Z",
                "day": "2026-01-02",
                "c": "ab  ",
                "u": "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11",
                "j": '{"k": [1, null]}',
                "raw": "AP8=",
                "txt": 'line\u2028 \t\x01 "q" / \U0001f600',
                "small": -3,
            },
            ensure_ascii=False,
            separators=(",", ":"),
        ).encode()
    )
    found = values_of(messages)
    assert found["2"] == dict.fromkeys(names) | {"t": "2026-01-01T00:00:00.000000Z"}
    reasons = {key: value for key, value in found.items() if isinstance(value, str)}
    assert reasons == {
        "3": "column n: NaN or infinite",
        "4": "column f: NaN or infinite",
        "5": "column t: infinite or out of range",
        "6": "column t: no time",
        "7": "column t: infinite or out of range",
        "8": "larger than the topic allows (2000 bytes with its overhead)",
    }
    assert [bytes(v) for v in messages[0]["header_values"]] == [b"PAID"]


def test_fault_34_sqlite_values_are_exact_or_quarantined(
    spark: SparkSession, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path}/shop.db"
    world.run_sql(
        url,
        "CREATE TABLE orders (id INTEGER PRIMARY KEY, n NUMERIC(12,2), m DECIMAL, f REAL, b BOOLEAN, "
        "t TIMESTAMP, txt TEXT, raw BLOB, big BIGINT)",
        "INSERT INTO orders VALUES (1, 12.5, 0.1, 0.1, 1, '2026-01-01 00:00:00.000001', "
        "'\N{SNOWMAN}', X'00ff', 9223372036854775807)",
        "INSERT INTO orders VALUES (2, 12, 3, 2, 0, '2026-01-01', 'x', NULL, NULL)",
        "INSERT INTO orders VALUES (3, 12.505, 3, 2, 0, '2026-01-01 00:00', 'x', NULL, NULL)",
        "INSERT INTO orders VALUES (4, 12, 3, 2, 0, '2026-01-01 00:00', CAST(X'61ff' AS TEXT), NULL, 1)",
        "INSERT INTO orders VALUES (5, 12, 3, 2, 0, '2026-01-01 00:00', 'x', NULL, 'many')",
        "INSERT INTO orders VALUES (6, 'NaN', 3, 2, 0, '2026-01-01 00:00', 'x', NULL, 1)",
        "INSERT INTO orders VALUES (7, 99999999999.5, 3, 2, 0, '2026-01-01 00:00', 'x', NULL, 1)",
        "INSERT INTO orders VALUES (8, 12, 3, 9e999, 0, '2026-01-01 00:00', 'x', NULL, 1)",
        "INSERT INTO orders VALUES (9, 12, 3, 2, 7, '2026-01-01 00:00', 'x', NULL, 1)",
        "INSERT INTO orders VALUES (91, NULL, NULL, NULL, NULL, '2026-01-01 00:00', NULL, NULL, NULL)",
    )
    names = ["n", "m", "f", "b", "t", "txt", "raw", "big"]
    stream = world.make_stream(
        "orders",
        primary_key=["id"],
        time_column="t",
        message={"key": "id", "value": {"json": names}},
        identity={"row": "id", "message": "key"},
    )
    found = values_of(read_messages(spark, url, stream))
    assert found["1"] == {
        "n": "12.50",
        "m": "0.1",
        "f": 0.1,
        "b": True,
        "t": "2026-01-01T00:00:00.000001Z",
        "txt": "\N{SNOWMAN}",
        "raw": "AP8=",
        "big": 9223372036854775807,
    }
    assert found["91"] == dict.fromkeys(names) | {"t": "2026-01-01T00:00:00.000000Z"}
    assert {key: value for key, value in found.items() if isinstance(value, str)} == {
        "2": "column t: not a time in ISO 8601 to the microsecond",
        "3": "column n: not an exact NUMERIC(12, 2)",
        "4": "column txt: not UTF-8",
        "5": "column big: not a valid integer",
        "6": "column n: not an exact NUMERIC(12, 2)",
        "7": "column n: not an exact NUMERIC(12, 2)",
        "8": "column f: not a valid double",
        "9": "column b: not a valid boolean",
    }


def test_fault_29_rows_with_nulls_in_their_key_are_read_once(
    spark: SparkSession, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path}/shop.db"
    world.run_sql(
        url,
        "CREATE TABLE orders (a TEXT, b INTEGER, v TEXT, t TIMESTAMP)",
        "INSERT INTO orders SELECT 'k', value, 'v', '2026-01-01 00:00' FROM (WITH RECURSIVE c(value) AS "
        "(SELECT 1 UNION ALL SELECT value + 1 FROM c WHERE value < 200) SELECT value FROM c)",
        "INSERT INTO orders VALUES (NULL, 1, 'null', '2026-01-01 00:00')",
        "INSERT INTO orders VALUES ('z', NULL, 'one', '2026-01-01 00:00'), "
        "('z', NULL, 'two', '2026-01-01 00:00')",
    )
    stream = world.make_stream(
        "orders",
        primary_key=["a", "b"],
        time_column="t",
        message={"key": {"sql": "concat_ws('-', a, b)"}, "value": {"column": "v"}},
        identity={"row": {"sql": "concat_ws('-', a, b)"}, "message": "key"},
    )
    messages = read_messages(spark, url, stream)
    assert len(messages) == 203
    good = [m for m in messages if m["reason"] is None]
    assert len({m["message_id"] for m in good}) == len(good) == 201
    assert {m["reason"] for m in messages if m["p0"] == "z"} == {
        "its primary key holds a NULL and is not unique"
    }


def test_fault_36_a_view_that_repeats_a_key_makes_one_message(
    spark: SparkSession, pg_url: str
) -> None:
    world.run_sql(
        pg_url,
        "CREATE TABLE o (id int PRIMARY KEY, t timestamptz)",
        "CREATE TABLE item (o int, v text)",
        "INSERT INTO o SELECT i, '2026-01-01' FROM generate_series(1, 50) i",
        "INSERT INTO item SELECT i, 'v' || j FROM generate_series(1, 50) i, generate_series(1, 3) j",
        "CREATE VIEW orders AS SELECT id, t, v FROM o JOIN item ON o.id = item.o",
    )
    stream = world.make_stream(
        "orders",
        primary_key=["id"],
        time_column="t",
        message={"key": "id", "value": {"column": "v"}},
        identity={"row": "id", "message": "key"},
    )
    messages = read_messages(spark, pg_url, stream)
    assert len(messages) == 50
    assert {bytes(m["value"]) for m in messages} == {b"v1"}
    assert sum(m["copies"] for m in messages) == 100


def test_times_without_a_zone_are_filtered_in_the_doubled_hour(
    spark: SparkSession, pg_url: str
) -> None:
    world.run_sql(
        pg_url,
        "CREATE TABLE orders (id int PRIMARY KEY, t timestamp)",
        "INSERT INTO orders SELECT i, timestamp '2026-10-25 00:00' + i * interval '10 minutes' "
        "FROM generate_series(1, 40) i",
        "INSERT INTO orders VALUES (99, NULL)",
    )
    stream = world.make_stream(
        "orders",
        primary_key=["id"],
        time_column="t",
        message={"key": "id", "value": {"json": ["id"]}},
        identity={"row": "id", "message": "key"},
    )
    access, rules = open_stream(spark, pg_url, stream, timezone="Europe/Berlin")
    lower, upper = (
        world.START.replace(month=10, day=25, hour=0),
        world.START.replace(month=10, day=25, hour=1, minute=30),
    )
    bounds = Bounds(lower, upper)
    where = filter_times(access.table, rules.source, bounds, access.timezone)
    rows = read_rows(access, rules, where, rows=41)
    kept = build_candidates(rows, rules, bounds).collect()
    everything = build_messages(read_rows(access, rules, "", rows=41), rules).collect()
    access.engine.dispose()
    low, high = bounds.to_text()
    expected = {r["p0"] for r in everything if r["time"] is None or low <= r["time"] <= high}
    assert {r["p0"] for r in kept} == expected
    assert "99" in expected
    assert len(expected) == 5


def test_sql_writes_what_the_page_about_messages_says(spark: SparkSession, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/shop.db"
    world.fill_table(url, world.ORDERS, [{**world.make_order(10), "status": 'ü "x"'}])
    fields = (
        "named_struct('id', order_id, 'amount', CAST(amount AS DECIMAL(12, 2)), 'text', amount, "
        "'user', user_id, 'status', status, 'at', replace(updated_at, 'Z', '+00:00'), "
        "'millis', unix_millis(to_timestamp(updated_at)))"
    )
    at = world.make_order(10)["updated_at"]
    want = (
        '{"id":10,"amount":10.10,"text":"10.10","user":null,"status":"ü \\"x\\"","at":"'
        f'{at:%Y-%m-%dT%H:%M:%S.%f}+00:00","millis":{int(at.timestamp() * 1000)}}}'
    )
    for sql, value in (
        (f"to_json({fields})", want),
        (f"to_json({fields}, map('ignoreNullFields', 'true'))", want.replace('"user":null,', "")),
    ):
        message = {
            "key": "order_id",
            "value": {"sql": sql},
            "headers": {"kind": "'invoice'", "user": "CAST(user_id AS STRING)"},
        }
        made = read_messages(spark, url, world.make_stream("orders", message=message))[0]
        assert made["reason"] is None
        assert bytes(made["value"]).decode() == value
        assert list(made["header_values"]) == [b"invoice", None]


def test_the_page_makes_change_events_of_debezium(spark: SparkSession, pg_url: str) -> None:
    """But for what the page leaves out of the comparison."""
    world.fill_table(pg_url, world.ORDERS, [{**world.make_order(10), "status": 'ü "x"'}])
    page = Path(__file__).parents[2].joinpath("docs", "messages.md").read_text(encoding="utf-8")
    example = page.partition("**Change events of Debezium**")[2].split("```")[1]
    settings = yaml.safe_load(example.removeprefix("yaml"))
    (made,) = read_messages(spark, pg_url, world.make_stream("orders", **settings))
    assert made["reason"] is None
    at = world.make_order(10)["updated_at"]
    source = (
        '{"version":"3.6.1.Final","connector":"postgresql","ts_ms":9,"lsn":24023128,"xmin":null}'
    )
    sent = (
        '{"before":null,"after":{"order_id":10,"status":"ü \\"x\\"","amount":"10.10",'
        f'"updated_at":"{at:%FT%T.%f}Z"}},"source":{source},"transaction":null,"op":"c",'
        '"ts_ms":1,"ts_us":1000,"ts_ns":1000000}'
    )
    ignored = settings["message"]["ignore_fields"]
    cuts = [cut_fields(raw, ignored) for raw in (bytes(made["value"]), sent.encode())]
    assert cuts[0] is not None
    assert cuts[1] is not None
    assert cuts[0].rest == cuts[1].rest
    assert bytes(made["key"]) == bytes(made["identity"]) == b'{"order_id":10}'


EVIL = 't"; DROP TABLE x; --'
ODD = "a`b {c} ${env:HOME} 'd\\"


def test_fault_57_names_are_quoted_and_checked(
    spark: SparkSession, pg_url: str, tmp_path: Path
) -> None:
    for url in (pg_url, f"sqlite:///{tmp_path}/evil.db"):
        quoted = '"' + EVIL.replace('"', '""') + '"'
        world.run_sql(
            url,
            "CREATE TABLE x (id INTEGER)",
            f'CREATE TABLE {quoted} ("i""d; --" INTEGER PRIMARY KEY, "{ODD}" TEXT, t TIMESTAMP)',
            f"INSERT INTO {quoted} VALUES (7, 'v', '2026-01-01 00:00:00')",
        )
        stream = world.make_stream(
            "orders",
            table=EVIL,
            primary_key=['i"d; --'],
            time_column="t",
            message={
                "key": 'i"d; --',
                "value": {"json": ['i"d; --', ODD]},
                "headers": {ODD: "upper(`" + ODD.replace("`", "``") + "`) AS k -- {x} '\\"},
            },
            identity={"row": 'i"d; --', "message": "key"},
        )
        messages = read_messages(spark, url, stream)
        assert values_of(messages) == {"7": {'i"d; --': 7, ODD: "v"}}
        assert list(messages[0]["header_values"]) == [b"V"]
        listed = world.make_frame(spark, [(None,)], "header_values array<binary>")
        assert listed.select(join_headers([ODD], listed=False)[0]["name"]).first() == (ODD,)
        engine = open_engine(world.make_source(url), "shop")
        assert reflect_table(engine, "shop", "x").name == "x"
        for wrong in ("orderz", "x; DROP TABLE x", 'x" --'):
            with pytest.raises(ConfigurationError) as caught:
                reflect_table(engine, "shop", wrong)
            assert repr(wrong) in str(caught.value)
        engine.dispose()


@pytest.mark.parametrize(
    ("change", "where", "words"),
    [
        ({"time_column": "updated"}, "time_column", "'updated_at'"),
        ({"primary_key": ["orderid"]}, "primary_key", "'order_id'"),
        ({"order_by": ["updated_on"]}, "order_by", "'updated_at'"),
        ({"time_column": "user_id"}, "time_column", "holds no times"),
        ({"message": {"key": "order_id", "value": {"json": ["amounts"]}}}, "value.json", "'amount'"),
        ({"message": {"key": "order_id", "value": {"column": "payload"}}}, "value", "'payload'"),
        ({"message": {"key": {"sql": "orderid"}, "value": {"column": "status"}}}, "message.key",
         "'orderid'"),
        ({"message": {"key": {"sql": "order_id +"}, "value": {"column": "status"}}}, "message.key",
         "SQL"),
        ({"message": {"key": {"sql": "order_id, status"}, "value": {"column": "status"}}},
         "message.key", "SQL"),
        ({"message": {"key": {"sql": "order_id) || (status"}, "value": {"column": "status"}}},
         "message.key", "SQL"),
        ({"message": {"key": {"sql": "sum(order_id)"}, "value": {"column": "status"}}},
         "message.key", "SQL"),
        ({"message": {"key": {"sql": "rand()"}, "value": {"column": "status"}}}, "message.key",
         "another result"),
        ({"message": {"key": {"sql": "explode(array(1,2))"}, "value": {"column": "status"}}},
         "message.key", "generator"),
        ({"message": {"key": {"sql": "reflect('java.lang.Runtime','getRuntime')"},
                      "value": {"column": "status"}}}, "message.key", "reflection"),
        ({"message": {"key": "order_id", "value": {"column": "status"},
                      "headers": {"type": "kind"}}}, "headers.type", "\"'kind'\""),
        ({"identity": {"row": "oder_id", "message": "key"}}, "identity.row", "'order_id'"),
    ],
)  # fmt: skip
def test_fault_33_a_wrong_column_is_named_before_a_row_is_read(
    spark: SparkSession,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    change: dict[str, Any],
    where: str,
    words: str,
) -> None:
    url = f"sqlite:///{tmp_path}/shop.db"
    world.fill_table(url, world.ORDERS, [])
    stream = world.make_stream(
        "orders", **{"message": {"key": "order_id", "value": {"column": "status"}}, **change}
    )
    with pytest.raises(ConfigurationError) as caught:
        open_stream(spark, url, stream)
    assert where in caught.value.subject
    assert words in str(caught.value) + caught.value.hint
    assert "stacktrace" not in capfd.readouterr().err


def test_fault_33_a_table_that_is_not_there_is_told_without_spark(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/shop.db"
    world.fill_table(url, world.ORDERS, [])
    sources = {"shop": world.make_source(url)}
    require_tables(sources, world.make_stream("orders"))
    with pytest.raises(ConfigurationError, match="'orderz'"):
        require_tables(sources, world.make_stream("orders", table="orderz"))
    consumed = {"database": "shop", "table": "processed", "column": "order_id"}
    with pytest.raises(ConfigurationError, match="'processed'"):
        require_tables(sources, world.make_stream("orders", consumed=consumed))


def test_fault_59_no_password_in_errors_plans_or_settings(spark: SparkSession) -> None:
    secret = "hunter2%40x"
    url = f"postgresql+psycopg://someone:{secret}@127.0.0.1:1/shop"
    source = world.make_source(url)
    access = make_access(source, "shop")
    assert access.properties["password"] == "hunter2@x"
    assert "hunter2" not in repr(access) + access.url + repr(source)
    engine = open_engine(source, "shop")
    with pytest.raises(SourceError) as caught:
        reflect_table(engine, "shop", "orders")
    assert "hunter2" not in repr(caught.value) + str(caught.value.__context__)
    shown = json.dumps(spark.sparkContext.getConf().getAll()) + json.dumps(
        [list(row) for row in spark.sql("SET").collect()]
    )
    assert "hunter2" not in shown


def test_fault_59_no_password_in_sparks_plan(spark: SparkSession, pg_url: str) -> None:
    world.fill_table(pg_url, world.ORDERS, [world.make_order(1)])
    stream = world.make_stream("orders")
    access, rules = open_stream(spark, pg_url.replace("postgres@", "postgres:hunter2@"), stream)
    frame = build_messages(read_rows(access, rules, "", rows=1), rules)
    frame.collect()
    plan = frame._jdf.queryExecution().toString()
    assert "backlog_rows" in plan
    assert "hunter2" not in plan
    access.engine.dispose()


ORDERS = world.ORDERS.replace("{time}", "TIMESTAMP")
ROWS, LOST = 30, 10


@pytest.mark.parametrize("database", ["postgresql", "sqlite"])
def test_rows_read_in_the_wrong_zone(
    spark: SparkSession,
    kafka: EmbeddedKafka,
    topic: MakeTopic,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    database: str,
) -> None:
    """The shop writes the wall clock of Shanghai, and the file says nothing of it."""
    sqlite = f"sqlite:///{tmp_path}/shop.db"
    url = sqlite if database == "sqlite" else str(request.getfixturevalue("pg_url"))
    now = datetime.now(UTC)
    wall = now.astimezone(ZoneInfo("Asia/Shanghai")).strftime("%Y-%m-%d %H:%M:%S")
    rows = [{**world.make_order(n), "updated_at": now} for n in range(ROWS)]
    world.fill_table(url, ORDERS, [{**row, "updated_at": wall} for row in rows])
    lost = world.lose_orders(kafka.bootstrap, topic(partitions=3), rows, LOST)
    gaps = tuple(
        replace(gap, first_time=now - timedelta(minutes=1), last_time=now) for gap in lost.gaps
    )
    value = {"json": ["order_id", "status"]}
    stream = world.make_stream(
        lost.topic, mutable=False, message={"key": "order_id", "value": value}
    )
    made = world.make_request(
        kafka.bootstrap, stream, url, gaps, tmp_path / "staging", allow=frozenset(["proof"])
    )
    suspected = (
        "the times of rows lie 8 h after those of their messages in the log (20 compared): is "
        "`sources.shop.timezone` right? it is UTC, and the rows look like UTC+08:00"
    )
    with pytest.raises(Refused, match="no row was lost among 0 candidates") as refused:
        world.plan(spark, made)
    assert suspected in refused.value.hint
    if database == "sqlite":
        return  # what is made of it then is of no database
    until = now + timedelta(days=1)
    planned = world.plan(spark, replace(made, since=now - timedelta(hours=1), until=until))
    assert suspected in planned.warnings
    right = {"shop": world.make_source(url, timezone="Asia/Shanghai")}
    planned = world.plan(spark, replace(made, recovery_id="r-2", sources=right))
    assert planned.counts.rebuilt == LOST
    assert not any("timezone" in text for text in planned.warnings)
