"""Rows of MariaDB: exact text of every type, whatever the server's own settings are."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy.engine import make_url

from backlogctl.errors import BacklogError, SourceError
from backlogctl.spark_backfill.failures import translating
from backlogctl.spark_backfill.messages.candidates import find_newest, read_rows
from backlogctl.spark_backfill.messages.rules import build_messages
from backlogctl.spark_backfill.messages.windows import Bounds, filter_times
from backlogctl.spark_backfill.proof import find_gone_rows
from backlogctl.spark_backfill.sources.reflection import open_engine, reflect_table
from tests.kit.services import EmbeddedMariaDb
from tests.spark_backfill import world
from tests.spark_backfill.reading import open_stream, read_messages, values_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from backlogctl.config import Stream

NAMES = (
    *("n", "d", "f", "r", "paid", "flag", "bits", "big", "y", "t", "w", "day", "hour"),
    *("c", "old", "kind", "j", "u", "raw", "tiny", "long", "txt", "twice"),
)


def make_stream(*names: str, **source: Any) -> Stream:
    return world.make_stream(
        "orders",
        **{
            "primary_key": ["id"],
            "time_column": "t",
            "message": {"key": "id", "value": {"json": list(names)}},
            "identity": {"row": "id", "message": "key"},
            **source,
        },
    )


OLD = "SET SESSION time_zone = '+00:00', sql_mode = 'ANSI_QUOTES'"  # of an old application


@pytest.fixture(params=["mariadb", "mysql"])
def driver(request: pytest.FixtureRequest) -> dict[str, str]:
    """What a source says of the Java driver."""
    return {"java_driver": request.param}


def test_values_are_exact_or_quarantined(
    spark: SparkSession, mariadb_url: str, driver: dict[str, str]
) -> None:
    world.run_sql(
        mariadb_url,
        OLD,
        "CREATE TABLE orders (id bigint PRIMARY KEY, n decimal(65,30), d decimal(38,10), f double, "
        "r float, paid tinyint(1), flag bit(1), bits bit(12), big bigint unsigned, y year, "
        "t timestamp(6) NULL, w datetime(6), day date, hour time(3), c char(4), "
        "old varchar(20) CHARACTER SET latin1, kind enum('a','b'), j json, u uuid, raw varbinary(9), "
        'tiny tinyblob, "long" longblob, '
        "txt text CHARACTER SET utf8mb4, twice int AS (paid * 2))",
        "INSERT INTO orders (id, n, d, f, r, paid, flag, bits, big, y, t, w, day, hour, c, old, kind,"
        " j, u, raw, tiny, \"long\", txt) VALUES (1, '12345678901234567890123456789012345.120000000000000000000000000001',"
        " 1.5, 0.1, 0.1, 2, 1, 2049, 18446744073709551615, 2026, '2026-03-29 01:30:00.000001',"
        " '2026-03-29 03:30:00', '2026-01-02', '-26:00:00.5', 'ab ', 'Zo\u00eb', 'b', '{\"k\": [1, null]}',"
        " 'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11', X'00ff', X'00ff', X'00ff', 'back\\\\slash ''q'' \"d\" \U0001f600')",
        "INSERT INTO orders (id, t) VALUES (2, '2026-01-01')",
        "INSERT INTO orders (id, t, w) VALUES (3, '2026-01-01', '0000-00-00')",
        "INSERT INTO orders (id, t, day) VALUES (4, '2026-01-01', '2026-00-10')",
        "INSERT INTO orders (id, t) VALUES (5, NULL), (6, '0000-00-00')",
    )
    odd = "SET GLOBAL sql_mode = 'PAD_CHAR_TO_FULL_LENGTH', GLOBAL time_zone = '+05:30'"
    world.run_sql(mariadb_url, odd)
    try:
        stream = make_stream(*NAMES)
        messages = read_messages(spark, mariadb_url, stream, timezone="Europe/Berlin", **driver)
    finally:
        world.run_sql(mariadb_url, "SET GLOBAL sql_mode = DEFAULT, GLOBAL time_zone = DEFAULT")
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
        "tiny": "AP8=",
        "long": "AP8=",
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
    spark: SparkSession, mariadb_url: str, driver: dict[str, str], column: str
) -> None:
    """Of a column without a zone an index gives two hours more, and Spark drops what is too much."""
    world.run_sql(
        mariadb_url,
        "CREATE TABLE orders (id int PRIMARY KEY, t timestamp NULL, w datetime)",
        "INSERT INTO orders VALUES (1, '2026-07-01 08:00', '2026-07-01 10:00'), "
        "(2, '2026-07-01 12:00', '2026-07-01 14:00'), (3, '2026-07-01 16:00', '2026-07-01 18:00'), "
        "(4, NULL, NULL)",
    )
    stream = make_stream("id", time_column=column)
    access, _ = open_stream(spark, mariadb_url, stream, timezone="Europe/Berlin", **driver)
    assert stream.source is not None
    noon = datetime(2026, 7, 1, 12, tzinfo=UTC)
    where = filter_times(access.table, stream.source, Bounds(noon, noon), "Europe/Berlin")
    found = read_messages(spark, mariadb_url, stream, where, timezone="Europe/Berlin", **driver)
    assert [message["p0"] for message in found] == ["2", "4"]
    assert found[0]["time"] == "2026-07-01T12:00:00.000000Z"
    assert find_newest(access, stream.source, 1) == noon


KINDS = [
    ("varchar(20) COLLATE utf8mb4_general_ci", ["'a'", "'B'", "'c''\\'", "'D'", "'\u00eb'", "'f'"]),
    ("varchar(20) COLLATE utf8mb4_bin", ["'a'", "'A'", "'b'", "'B'", "''", "'\\''\\'"]),
    ("varchar(20) CHARACTER SET latin1", ["'a'", "'\u00eb'", "'\u00df'", "'\u00c4'", "'x'", "'0'"]),
    ("binary(2)", ["X'0061'", "X'0062'", "'ab'", "X'5C27'", "X'00'", "X'ffff'"]),
    ("decimal(30,2)", ["-1.5", "0", "2.25", "1e20", "3", "4"]),
    ("bigint unsigned", ["0", "1", "18446744073709551615", "9223372036854775808", "7", "8"]),
    ("enum('z','y','x')", ["'z'", "'y'", "'x'"]),
    ("float", ["0.1", "0.2", "1e30", "-7", "3.4e38", "0"]),
    ("datetime(6)", [f"'2026-01-0{n} 00:00:00.00000{n}'" for n in range(1, 7)]),
]


@pytest.mark.parametrize(("kind", "values"), KINDS, ids=[kind for kind, _ in KINDS])
def test_each_row_is_in_one_range(
    spark: SparkSession,
    mariadb_url: str,
    driver: dict[str, str],
    kind: str,
    values: list[str],
) -> None:
    rows = ", ".join(f"({v}, {n}, '2026-01-01')" for n, v in enumerate(values))
    world.run_sql(
        mariadb_url,
        f"CREATE TABLE orders (k {kind} PRIMARY KEY, id int, t timestamp NULL)",
        f"INSERT INTO orders VALUES {rows}",
    )
    messages = read_messages(spark, mariadb_url, make_stream("id", primary_key=["k"]), **driver)
    found = sorted(json.loads(bytes(message["value"]))["id"] for message in messages)
    assert found == list(range(len(values)))


@pytest.mark.parametrize("time_column", ["w", "t"])
def test_a_zero_date_is_told_whatever_the_bounds(
    spark: SparkSession, mariadb_url: str, driver: dict[str, str], time_column: str
) -> None:
    """An application that writes 0000-00-00 for NULL."""
    world.run_sql(
        mariadb_url,
        OLD,
        "CREATE TABLE orders (id int PRIMARY KEY, t timestamp NULL, w datetime NOT NULL)",
        "INSERT INTO orders VALUES (1, '2026-07-01 12:00', '2026-07-01 12:00'), (2, 0, 0)",
    )
    stream = make_stream("id", time_column=time_column)
    access, _ = open_stream(spark, mariadb_url, stream, **driver)
    assert stream.source is not None
    noon = datetime(2026, 7, 1, 12, tzinfo=UTC)
    where = filter_times(access.table, stream.source, Bounds(noon, noon), "UTC")
    found = read_messages(spark, mariadb_url, stream, where, **driver)
    reasons = {message["p0"]: message["reason"] for message in found}
    assert reasons == {"1": None, "2": f"column {time_column}: a zero date or out of range"}
    assert find_newest(access, stream.source, 0) == noon
    assert find_newest(access, stream.source, 1) is None
    access.engine.dispose()


def test_identities_beyond_63_bits_are_looked_up(spark: SparkSession, mariadb_url: str) -> None:
    known = [2**64 - 1, 2**63, 5]
    world.run_sql(
        mariadb_url,
        "CREATE TABLE orders (id bigint unsigned PRIMARY KEY, t timestamp NULL)",
        f"INSERT INTO orders (id) VALUES {', '.join(f'({n})' for n in known)}",
    )
    access, _ = open_stream(spark, mariadb_url, make_stream("id"))
    asked = [str(n).encode() for n in (*known, 7, 2**64)] + [b"-1", b"x", b"\xb2"]
    assert find_gone_rows(access, "id", asked) == frozenset([b"7"])
    access.engine.dispose()


def test_no_password_where_spark_shows_what_it_does(
    spark: SparkSession, mariadb: EmbeddedMariaDb, mariadb_url: str, driver: dict[str, str]
) -> None:
    name = make_url(mariadb_url).database
    user = f"'reader_{name}'@'127.0.0.1'"
    mariadb.execute(f"CREATE USER {user} IDENTIFIED BY 'hunter2@x'")
    mariadb.execute(f"GRANT SELECT ON {name}.* TO {user}")
    world.fill_table(mariadb_url, world.ORDERS, [world.make_order(1)])
    url = make_url(mariadb_url).set(username=f"reader_{name}", password="hunter2@x")
    text = url.render_as_string(hide_password=False)
    access, rules = open_stream(spark, text, world.make_stream("orders"), **driver)
    frame = build_messages(read_rows(access, rules, "", rows=1), rules)
    assert len(frame.collect()) == 1
    shown = frame._jdf.queryExecution().toString() + repr(access) + access.jdbc.url
    assert "backlog_rows" in shown
    assert "hunter2" not in shown
    mariadb.execute(f"DROP USER {user}")
    access.engine.dispose()
    with (
        pytest.raises(SourceError) as told,
        translating("read", subject=access.subject, secrets=access.jdbc.secrets),
    ):
        read_rows(access, rules, "", rows=1).collect()
    assert "hunter2" not in f"{told.value!r} {told.value}"


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
