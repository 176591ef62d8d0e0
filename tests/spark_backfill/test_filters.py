"""Rows are chosen by the database: by what columns hold, and by times that are numbers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa

from backlogctl.config import Stream
from backlogctl.errors import ConfigurationError
from backlogctl.spark_backfill.messages.candidates import (
    SourceAccess,
    build_candidates,
    count_rows,
    find_newest,
    read_rows,
)
from backlogctl.spark_backfill.messages.rules import MessageRules
from backlogctl.spark_backfill.messages.windows import Bounds, filter_times, join_conditions
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


@pytest.mark.parametrize(
    ("where", "found"),
    [
        ({}, "1234"),
        ({"kind": "it's %s :x"}, "12"),
        ({"kind": "1"}, "4"),
        ({"number": 7}, "13"),
        ({"number": -7}, "2"),
        ({"flag": True}, "13"),
        ({"flag": False}, "2"),
        ({"other": "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"}, "1"),
        ({"kind": "it's %s :x", "flag": True}, "1"),
        ({"kind": "IT'S %S :X"}, ""),
    ],
)
def test_only_the_streams_rows_are_read(
    spark: SparkSession, url: str, where: dict[str, Any], found: str
) -> None:
    uuid = "UUID" if url.startswith("postgresql") else "JSON"
    world.run_sql(
        url,
        "CREATE TABLE orders (id INTEGER PRIMARY KEY, at BIGINT, kind VARCHAR(20), number INTEGER, "
        f"flag BOOLEAN, other {uuid})",
        "INSERT INTO orders VALUES "
        f"(1, {START_MS}, 'it''s %s :x', 7, true, 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'), "
        f"(2, {START_MS}, 'it''s %s :x', -7, false, NULL), (3, {START_MS}, NULL, 7, true, NULL), "
        f"(4, {START_MS}, '1', NULL, NULL, NULL)",
    )
    made = values_of(read_messages(spark, url, make_stream(where=where)))
    assert "".join(sorted(made)) == found


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
    with engine.begin() as connection:
        create_tables(connection)
        connection.execute(
            sa.text(
                "INSERT INTO backlog_outbox (message_id, topic, state, attempts, max_attempts, "
                "interval_ms, created_at, sent_at) WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL "
                "SELECT i + 1 FROM n WHERE i < 20000) SELECT CAST(i AS VARCHAR(32)), 'orders', "
                "'sent', 1, 9, 0, i, i FROM n"
            )
        )
        connection.execute(sa.text("ANALYZE"))
    with opened(spark, url, make_outbox_stream("orders")) as (access, rules):
        at = datetime.fromtimestamp(10, world.START.tzinfo)
        bounds = Bounds(at, at + timedelta(milliseconds=50))
        times = filter_times(access.table, rules.source, bounds, "UTC")
        where = join_conditions(access.wanted, times)
    explain = "EXPLAIN" if engine.dialect.name == "postgresql" else "EXPLAIN QUERY PLAN"
    with engine.connect() as connection:
        rows = connection.exec_driver_sql(f"{explain} SELECT * FROM backlog_outbox WHERE {where}")
        plan = "\n".join(str(row) for row in rows)
    engine.dispose()
    assert "backlog_outbox_sent_at" in plan
    assert not [word for word in ("Seq Scan", "SCAN") if word in plan], plan
