"""Ranges of a key: each row in exactly one of them, in both databases."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from backlogctl.spark_backfill.sources.columns import list_ranges, split_by_value
from backlogctl.spark_backfill.sources.reflection import open_engine, reflect_table
from tests.spark_backfill import world

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


@pytest.mark.parametrize("kind", ["integer", "text"])
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
