"""What holds for every database of a source, and each Java driver that it is read by."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from backlogctl.errors import BacklogError, ConfigurationError, SourceError
from backlogctl.spark_backfill.failures import translating
from backlogctl.spark_backfill.sources.reflection import open_engine, reflect_table
from tests.spark_backfill import world
from tests.spark_backfill.reading import read_messages, values_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from backlogctl.config import Stream


@dataclass(frozen=True)
class Store:
    """An empty database of a kind, and what is said of it beside its URL."""

    kind: str
    url: str
    settings: Mapping[str, Any] = field(default_factory=dict)

    def run(self, *statements: str) -> None:
        """Runs statements as they are; in braces stands what the kind writes differently."""
        words = WORDS[self.kind]
        for statement in statements:
            for name, word in words.items():
                statement = statement.replace("{" + name + "}", word)
            world.run_sql(self.url, statement)

    def read(
        self, spark: SparkSession, names: list[str], key: list[str], **settings: Any
    ) -> list[dict[str, Any]]:
        """The messages of these columns."""
        stream = make_stream(names, key)
        with translating("read", subject="table orders"):
            return read_messages(spark, self.url, stream, **self.settings, **settings)


WORDS = {
    "postgresql": {
        "flag": "BOOLEAN", "double": "DOUBLE PRECISION", "stamp": "TIMESTAMPTZ", "wall": "TIMESTAMP",
        "uuid": "UUID", "json": "JSONB", "bytes": "BYTEA", "utc": "+00:00", "raw": "'\\x00ff'",
        "sleep": "pg_sleep(8)::text", "parts": "",
    },
    "sqlite": {
        "flag": "BOOLEAN", "double": "DOUBLE", "stamp": "TIMESTAMP", "wall": "TIMESTAMP",
        "uuid": "CHAR(36)", "json": "JSON", "bytes": "BLOB", "utc": "+00:00", "raw": "X'00ff'",
    },
    "mariadb": {
        "flag": "BIT(1)", "double": "DOUBLE", "stamp": "TIMESTAMP(6) NULL", "wall": "DATETIME(6)",
        "uuid": "UUID", "json": "JSON", "bytes": "VARBINARY(99)", "utc": "", "raw": "X'00ff'",
        "sleep": "SLEEP(8)", "parts": "PARTITION BY HASH (id) PARTITIONS 3",
    },
}  # fmt: skip


KINDS = ["postgresql", "sqlite", "mariadb", "mariadb-mysql"]
SERVERS = [kind for kind in KINDS if kind != "sqlite"]


@pytest.fixture(params=KINDS)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """Each kind; the last one is read with the driver of MySQL."""
    match request.param:
        case "postgresql":
            return Store("postgresql", request.getfixturevalue("pg_url"))
        case "sqlite":
            return Store("sqlite", f"sqlite:///{tmp_path}/shop.db")
    driver = "mysql" if request.param.endswith("mysql") else "mariadb"
    return Store("mariadb", request.getfixturevalue("mariadb_url"), {"java_driver": driver})


def make_stream(names: list[str], key: list[str]) -> Stream:
    return world.make_stream(
        "orders",
        primary_key=key,
        time_column="t",
        message={"key": "id", "value": {"json": names}},
        identity={"row": "id", "message": "key"},
    )


VALUES: dict[str, tuple[str, str, Any]] = {
    "small": ("SMALLINT", "-3", -3),
    "big": ("BIGINT", "9223372036854775807", 2**63 - 1),
    "flag": ("{flag}", "true", True),
    "f": ("{double}", "0.1", 0.1),
    "tiny": ("{double}", "5e-324", 5e-324),
    "d": ("DECIMAL(12,2)", "-12.50", "-12.50"),
    "t": ("{stamp}", "'2026-03-29 01:30:00.000001{utc}'", "2026-03-29T01:30:00.000001Z"),
    "w": ("{wall}", "'2026-03-29 03:30:00'", "2026-03-29T01:30:00.000000Z"),
    "day": ("DATE", "'2026-01-02'", "2026-01-02"),
    "txt": (
        "TEXT",
        "'back\\slash ''q'' \"d\" % :x ? {}\n\u2028\U0001f600 '",
        "back\\slash 'q' \"d\" % :x ? {}\n\u2028\U0001f600 ",
    ),
    "empty": ("VARCHAR(9)", "''", ""),
    "u": ("{uuid}", "'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
    "j": ("{json}", "'{\"k\": [1, null]}'", '{"k": [1, null]}'),
    "raw": ("{bytes}", "{raw}", "AP8="),
    "Net Amount": ("INTEGER", "7", 7),
}  # fmt: skip


def test_the_same_values_make_the_same_message(spark: SparkSession, store: Store) -> None:
    """To the byte, whatever driver and time zone it comes through; NULL is NULL in every type."""
    names = list(VALUES)
    typed = ", ".join(f'"{name}" {kind}' for name, (kind, _, _) in VALUES.items())
    literals = ", ".join(literal for _, literal, _ in VALUES.values())
    store.run(
        f"CREATE TABLE orders (id INTEGER PRIMARY KEY, {typed})",
        f"INSERT INTO orders VALUES (1, {literals})",
        "INSERT INTO orders (id, t) VALUES (2, '2026-01-01 00:00:00{utc}')",
    )
    found = values_of(store.read(spark, names, ["id"], timezone="Europe/Berlin"))
    assert found["1"] == {name: value for name, (_, _, value) in VALUES.items()}
    assert found["2"] == dict.fromkeys(names) | {"t": "2026-01-01T00:00:00.000000Z"}


KEYS: list[list[str]] = [
    ["id"],
    ["word"],
    ["u"],
    ["t", "id"],
    ["tenant", "number"],
    ["amount", "u"],
]
WORDS_OF_ROWS = ("a", "A", "zo\u00eb", "", "%s?", "o'x", "\\", "\U0001f600")


def test_each_row_is_in_exactly_one_range(spark: SparkSession, store: Store) -> None:
    """With keys of every kind, NULLs in them, and text that the collation takes for equal."""

    def write(n: int) -> str:
        word = WORDS_OF_ROWS[n % 8].replace("'", "''")
        tenant = "NULL" if n % 7 == 0 else f"'{'abB'[n % 3]}'"
        return (
            f"({n}, '{word}', '{n:08d}-9c0b-4ef8-bb6d-6bb9bd380a11', "
            f"'2026-01-01 00:00:{n:02d}{{utc}}', {tenant}, {'NULL' if n % 11 == 0 else n}, {n}.25)"
        )

    store.run(
        "CREATE TABLE orders (id INTEGER PRIMARY KEY, word VARCHAR(20), u {uuid} NOT NULL, "
        "t {stamp}, tenant VARCHAR(9), number BIGINT, amount DECIMAL(9,2))",
        f"INSERT INTO orders VALUES {', '.join(write(n) for n in range(60))}",
    )
    for key in KEYS:
        messages = store.read(spark, ["id"], key if "id" in key else [*key, "id"])
        found = Counter(json.loads(bytes(m["value"]))["id"] for m in messages)
        assert found == Counter(range(60)), key


def test_a_key_in_ranges_of_its_own_order(spark: SparkSession, store: Store) -> None:
    """The key that is named first cuts the ranges."""
    store.run(
        "CREATE TABLE orders (id VARCHAR(20) PRIMARY KEY, t {stamp})",
        "INSERT INTO orders VALUES "
        + ", ".join(f"('k''{n}\\{'xY'[n % 2]}', '2026-01-01 00:00:00{{utc}}')" for n in range(50)),
    )
    messages = store.read(spark, ["id"], ["id"])
    assert sorted(m["p0"] for m in messages) == sorted(f"k'{n}\\{'xY'[n % 2]}" for n in range(50))


def test_views_and_partitions_are_tables(spark: SparkSession, store: Store) -> None:
    parts = "PARTITION BY RANGE (id)" if store.kind == "postgresql" else "{parts}"
    store.run(
        f"CREATE TABLE items (id INTEGER, t {{stamp}}) {parts if store.kind != 'sqlite' else ''}"
    )
    if store.kind == "postgresql":
        store.run(
            "CREATE TABLE low PARTITION OF items FOR VALUES FROM (0) TO (9)",
            "CREATE TABLE high PARTITION OF items FOR VALUES FROM (9) TO (99)",
        )
    store.run(
        "INSERT INTO items VALUES "
        + ", ".join(f"({n}, '2026-01-01 00:00:00{{utc}}')" for n in range(20)),
        "CREATE VIEW orders AS SELECT a.id, b.t FROM items a JOIN items b ON a.id = b.id",
    )
    for table in ("items", "orders"):
        stream = world.make_stream(
            "orders", table=table, primary_key=["id"], time_column="t",
            message={"key": "id", "value": {"json": ["id"]}}, identity={"row": "id", "message": "key"},
        )  # fmt: skip
        messages = read_messages(spark, store.url, stream, **store.settings)
        assert Counter(m["p0"] for m in messages) == Counter(str(n) for n in range(20)), table


@pytest.mark.parametrize("store", SERVERS, indirect=True)
def test_nothing_is_written_not_even_by_a_function(spark: SparkSession, store: Store) -> None:
    store.run("CREATE TABLE marks (id INTEGER)")
    if store.kind == "postgresql":
        store.run(
            "CREATE FUNCTION mark() RETURNS text LANGUAGE sql AS "
            "'INSERT INTO marks VALUES (1) RETURNING id::text'"
        )
    else:
        store.run(
            "CREATE FUNCTION mark() RETURNS INT MODIFIES SQL DATA "
            "BEGIN INSERT INTO marks VALUES (1); RETURN 1; END"
        )
    store.run(
        "CREATE TABLE items (id INTEGER, t {stamp})",
        "INSERT INTO items VALUES (1, '2026-01-01 00:00:00{utc}')",
        "CREATE VIEW orders AS SELECT id, t, mark() AS txt FROM items",
    )
    with pytest.raises(SourceError, match=r"(?i)read.only"):
        store.read(spark, ["txt"], ["id"])
    engine = open_engine(world.make_source(store.url), "shop")
    with pytest.raises(Exception, match=r"(?i)read.only"), engine.connect() as connection:
        connection.exec_driver_sql("INSERT INTO marks VALUES (1)")
    engine.dispose()


@pytest.mark.parametrize("store", SERVERS, indirect=True)
def test_a_statement_takes_no_longer_than_it_may(spark: SparkSession, store: Store) -> None:
    store.run(
        "CREATE TABLE items (id INTEGER, t {stamp})",
        "INSERT INTO items VALUES (1, '2026-01-01 00:00:00{utc}')",
        "CREATE VIEW orders AS SELECT id, t, {sleep} AS txt FROM items",
    )
    with pytest.raises(SourceError, match=r"(?i)timeout|interrupted|max_statement_time|cancel"):
        store.read(spark, ["txt"], ["id"], limits={"statement_timeout": "1s"})
    limited = world.make_source(store.url, limits={"statement_timeout": "1s"})
    engine = open_engine(limited, "shop")
    with (
        pytest.raises(Exception, match=r"(?i)timeout|interrupted|max_statement_time"),
        engine.connect() as connection,
    ):
        connection.exec_driver_sql("SELECT txt FROM orders").all()
    engine.dispose()


def test_fault_185_the_drivers_own_parameters_arrive(spark: SparkSession, pg_url: str) -> None:
    """Spark writes names of properties in small letters where it reads in ranges."""
    world.run_sql(
        pg_url,
        "CREATE VIEW orders AS SELECT 1 AS id, now() AS t, "
        "current_setting('application_name') AS txt",
    )
    made = read_messages(
        spark, f"{pg_url}?application_name=night%20plan", make_stream(["txt"], ["id"])
    )
    assert values_of(made) == {"1": {"txt": "night plan"}}


def test_a_table_or_column_that_is_not_there_is_named_with_the_nearest(store: Store) -> None:
    store.run("CREATE TABLE orders (id INTEGER, t {stamp})")
    engine = open_engine(world.make_source(store.url), "shop")
    for name, hint in (("ordres", "did you mean 'orders'?"), ("a.x", "its tables are orders")):
        with pytest.raises(ConfigurationError, match=f"has no table '{name}'") as told:
            reflect_table(engine, "shop", name)
        assert hint in told.value.hint
    engine.dispose()


@pytest.mark.parametrize("store", [kind for kind in KINDS if kind != "postgresql"], indirect=True)
def test_a_broken_view_is_told(spark: SparkSession, store: Store) -> None:
    """In the database's own words, without its URL. PostgreSQL keeps the tables of a view."""
    store.run("CREATE TABLE items (id INTEGER, t {stamp})")
    store.run("CREATE VIEW orders AS SELECT id, t FROM items")
    store.run("DROP TABLE items")
    with pytest.raises(BacklogError) as told:
        store.read(spark, ["id"], ["id"])
    assert "orders" in str(told.value) or "items" in str(told.value)
