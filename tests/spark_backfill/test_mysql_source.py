"""Rows of MariaDB: exact text of every type, whatever the server's own settings are."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pymysql
import pytest
from sqlalchemy.engine import make_url

from backlogctl.errors import BacklogError
from backlogctl.spark_backfill.messages.candidates import find_newest
from backlogctl.spark_backfill.messages.windows import Bounds, filter_times
from backlogctl.spark_backfill.sources.reflection import open_engine, reflect_table
from tests.spark_backfill import world
from tests.spark_backfill.reading import open_stream, read_messages, values_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from backlogctl.config import Stream

NAMES = (
    *("n", "d", "f", "r", "paid", "flag", "bits", "big", "y", "t", "w", "day", "hour"),
    *("c", "old", "kind", "j", "u", "raw", "txt", "twice"),
)


def make_stream(*names: str, time_column: str = "t", **source: Any) -> Stream:
    return world.make_stream(
        "orders",
        primary_key=["id"],
        time_column=time_column,
        message={"key": "id", "value": {"json": list(names)}},
        identity={"row": "id", "message": "key"},
        **source,
    )


def run(url: str, *statements: str, session: str = "SET NAMES utf8mb4") -> None:
    """In one session, after this statement: as an old application has it."""
    parts = make_url(url)
    with pymysql.connect(
        host=parts.host, port=parts.port or 0, user=parts.username, database=parts.database
    ) as there:
        with there.cursor() as cursor:
            for statement in (session, *statements):
                cursor.execute(statement)
        there.commit()


def test_values_are_exact_or_quarantined(spark: SparkSession, mariadb_url: str) -> None:
    run(
        mariadb_url,
        "CREATE TABLE orders (id bigint PRIMARY KEY, n decimal(65,30), d decimal(38,10), f double, "
        "r float, paid tinyint(1), flag bit(1), bits bit(12), big bigint unsigned, y year, "
        "t timestamp(6) NULL, w datetime(6), day date, hour time(3), c char(4), "
        "old varchar(20) CHARACTER SET latin1, kind enum('a','b'), j json, u uuid, raw varbinary(9), "
        "txt text CHARACTER SET utf8mb4, twice int AS (paid * 2))",
        "INSERT INTO orders (id, n, d, f, r, paid, flag, bits, big, y, t, w, day, hour, c, old, kind,"
        " j, u, raw, txt) VALUES (1, '12345678901234567890123456789012345.120000000000000000000000000001',"
        " 1.5, 0.1, 0.1, 2, 1, 2049, 18446744073709551615, 2026, '2026-03-29 01:30:00.000001',"
        " '2026-03-29 03:30:00', '2026-01-02', '-26:00:00.5', 'ab ', 'Zo\u00eb', 'b', '{\"k\": [1, null]}',"
        " 'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11', X'00ff', 'back\\\\slash ''q'' \"d\" \U0001f600')",
        "INSERT INTO orders (id, t) VALUES (2, '2026-01-01')",
        "INSERT INTO orders (id, t, w) VALUES (3, '2026-01-01', '0000-00-00')",
        "INSERT INTO orders (id, t, day) VALUES (4, '2026-01-01', '2026-00-10')",
        "INSERT INTO orders (id, t) VALUES (5, NULL), (6, '0000-00-00')",
        session="SET SESSION time_zone = '+00:00', sql_mode = ''",
    )
    run(mariadb_url, "SET GLOBAL sql_mode = 'PAD_CHAR_TO_FULL_LENGTH', GLOBAL time_zone = '+05:30'")
    try:
        messages = read_messages(spark, mariadb_url, make_stream(*NAMES), timezone="Europe/Berlin")
    finally:
        run(mariadb_url, "SET GLOBAL sql_mode = DEFAULT, GLOBAL time_zone = DEFAULT")
    found = values_of(messages)
    first = dict(zip(NAMES, found["1"].values(), strict=True))
    assert json.loads(bytes(messages[0]["value"])).keys() == first.keys()
    assert first == {
        "n": "12345678901234567890123456789012345.120000000000000000000000000001",
        "d": "1.5000000000",
        "f": 0.1,
        "r": 0.1,
        "paid": 2,
        "flag": True,
        "bits": 2049,
        "big": 18446744073709551615,
        "y": 2026,
        "t": "2026-03-29T01:30:00.000001Z",
        "w": "2026-03-29T01:30:00.000000Z",
        "day": "2026-01-02",
        "hour": "-26:00:00.500",
        "c": "ab",
        "old": "Zo\u00eb",
        "kind": "b",
        "j": '{"k": [1, null]}',
        "u": "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11",
        "raw": "AP8=",
        "txt": "back\\slash 'q' \"d\" \U0001f600",
        "twice": 4,
    }
    assert found["2"] == dict.fromkeys(NAMES) | {"t": "2026-01-01T00:00:00.000000Z"}
    reasons = {key: value for key, value in found.items() if isinstance(value, str)}
    assert reasons == {
        "3": "column w: a zero date or out of range",
        "4": "column day: a zero date or out of range",
        "5": "column t: no time",
        "6": "column t: a zero date or out of range",
    }


@pytest.mark.parametrize("column", ["t", "w"])
def test_times_are_compared_by_the_database(
    spark: SparkSession, mariadb_url: str, column: str
) -> None:
    """Of a column without a zone an index gives two hours more, and Spark drops what is too much."""
    run(
        mariadb_url,
        "CREATE TABLE orders (id int PRIMARY KEY, t timestamp NULL, w datetime)",
        "INSERT INTO orders VALUES (1, '2026-07-01 08:00', '2026-07-01 10:00'), "
        "(2, '2026-07-01 12:00', '2026-07-01 14:00'), (3, '2026-07-01 16:00', '2026-07-01 18:00'), "
        "(4, NULL, NULL)",
        session="SET SESSION time_zone = '+00:00'",
    )
    stream = make_stream("id", time_column=column)
    access, _ = open_stream(spark, mariadb_url, stream, timezone="Europe/Berlin")
    assert stream.source is not None
    noon = datetime(2026, 7, 1, 12, tzinfo=UTC)
    where = filter_times(access.table, stream.source, Bounds(noon, noon), "Europe/Berlin")
    found = read_messages(spark, mariadb_url, stream, where, timezone="Europe/Berlin")
    assert [message["p0"] for message in found] == ["2", "4"]
    assert found[0]["time"] == "2026-07-01T12:00:00.000000Z"
    assert find_newest(access, stream.source, 1) == noon


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("varchar(20) COLLATE utf8mb4_general_ci", ["a", "B", "c'\\", "D", "\u00eb", "f"]),
        ("varchar(20) COLLATE utf8mb4_bin", ["a", "A", "b", "B", "", "'\\'"]),
        ("binary(2)", ["\\0a", "\\0b", "ab", "ba", "b\\'", "zz"]),
        ("decimal(30,2)", ["-1.5", "0", "2.25", "1e20", "3", "4"]),
        ("bigint unsigned", ["0", "1", "18446744073709551615", "9223372036854775808", "7", "8"]),
    ],
)
def test_each_row_is_in_one_range(
    spark: SparkSession, mariadb_url: str, kind: str, values: list[str]
) -> None:
    rows = ", ".join(
        "('{}', '2026-01-01')".format(v.replace("'", "''") if "\\'" not in v else v) for v in values
    )
    run(
        mariadb_url,
        f"CREATE TABLE orders (id {kind} PRIMARY KEY, t timestamp NULL)",
        f"INSERT INTO orders VALUES {rows}",
        session="SET SESSION sql_mode = "
        + ("'NO_BACKSLASH_ESCAPES'" if kind.startswith("varchar") else "''"),
    )
    messages = read_messages(spark, mariadb_url, make_stream("t"))
    assert len({message["p0"] for message in messages}) == len(messages) == len(values)


def test_nothing_is_written(mariadb_url: str) -> None:
    run(mariadb_url, "CREATE TABLE orders (id int PRIMARY KEY)")
    engine = open_engine(world.make_source(mariadb_url), "shop")
    with pytest.raises(Exception, match="READ ONLY"), engine.connect() as connection:
        connection.exec_driver_sql("INSERT INTO orders VALUES (1)")
    engine.dispose()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"username": "nobody", "password": "secret-word"}, "does not let user 'nobody' in"),
        ({"database": "nowhere"}, "has no database 'nowhere'"),
        ({"port": 1}, "nothing listens at"),
    ],
)
def test_a_wrong_url_is_told(mariadb_url: str, change: dict[str, Any], words: str) -> None:
    url = make_url(mariadb_url).set(**change).render_as_string(hide_password=False)
    engine = open_engine(world.make_source(url), "shop")
    with pytest.raises(BacklogError, match=words) as told:
        reflect_table(engine, "shop", "orders")
    engine.dispose()
    assert "secret-word" not in str(told.value)
