"""What is checked before a row is read: names, expressions, and that no password shows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from backlogctl.errors import ConfigurationError, SourceError
from backlogctl.spark_backfill.messages.candidates import read_rows
from backlogctl.spark_backfill.messages.rules import build_messages
from backlogctl.spark_backfill.sources.reflection import (
    make_access,
    open_engine,
    reflect_table,
    require_tables,
)
from tests.spark_backfill import world
from tests.spark_backfill.reading import open_stream, read_messages, values_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EVIL = 't"; DROP TABLE x; --'


def test_fault_57_names_are_quoted_and_checked(
    spark: SparkSession, pg_url: str, tmp_path: Path
) -> None:
    for url in (pg_url, f"sqlite:///{tmp_path}/evil.db"):
        quoted = '"' + EVIL.replace('"', '""') + '"'
        world.run_sql(
            url,
            "CREATE TABLE x (id INTEGER)",
            f'CREATE TABLE {quoted} ("i""d; --" INTEGER PRIMARY KEY, "a`b" TEXT, t TIMESTAMP)',
            f"INSERT INTO {quoted} VALUES (7, 'v', '2026-01-01 00:00:00')",
        )
        stream = world.make_stream(
            "orders",
            table=EVIL,
            primary_key=['i"d; --'],
            time_column="t",
            message={"key": 'i"d; --', "value": {"json": ['i"d; --', "a`b"]}},
            identity={"row": 'i"d; --', "message": "key"},
        )
        messages = read_messages(spark, url, stream)
        assert values_of(messages) == {"7": {'i"d; --': 7, "a`b": "v"}}
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
