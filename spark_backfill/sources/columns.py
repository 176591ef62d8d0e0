"""How each column leaves the database: in exact text, so that no driver can round or shift it.

Times arrive as `YYYY-MM-DDTHH:MM:SS.ffffffZ`, decimals as their digits, integers, booleans and
floats as such, bytes as bytes, everything else as text. What cannot be read exactly is flagged by
the database itself or by Spark right after the read, and ends in quarantine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame
from sqlalchemy.engine import Connection

from backlogctl.spark_backfill.sources.databases import SourceColumn
from backlogctl.spark_backfill.sources.reflection import SourceTable
from backlogctl.spark_backfill.spark.frames import quote, quote_column

# Ranges of a key that are read in parallel: each row is in exactly one of them (fault 29).
#
# The database itself finds the boundaries, in its own order of the key, and quotes them as
# literals; so text in any collation, composite keys and SQLite's mixed types are cut where it
# says.

EVERYTHING = "1 = 1"
# Below this a second connection costs more than it brings.
MIN_ROWS = 5_000


def list_ranges(
    connection: Connection,
    table: SourceTable,
    key: Sequence[str],
    where: str,
    rows: int,
    count: int,
    *,
    min_rows: int = MIN_ROWS,
) -> tuple[str, ...]:
    """Predicates over the key's aliases `k0..` that share the rows out.

    Args:
        where: what the rows are, over the table's own quoted names; may be empty.
        rows: how many there are.
        count: predicates at most, the one for NULLs included.
    """
    aliases = [f"k{i}" for i in range(len(key))]
    nullable = [
        alias for alias, name in zip(aliases, key, strict=True) if table.column(name).nullable
    ]
    wanted = min(count - bool(nullable), rows // max(1, min_rows))
    if wanted < 2:
        return (EVERYTHING,)
    boundaries = _find_boundaries(connection, table, key, where, rows, wanted)
    return split_by_value(aliases, boundaries, nullable)


def split_by_value(
    aliases: Sequence[str], boundaries: Sequence[str], nullable: Sequence[str] = ()
) -> tuple[str, ...]:
    """Half-open ranges between row values that are given as SQL text, plus one for NULLs.

    `(1, NULL) < (2, 5)` is true in SQL, so the ranges exclude NULLs by name.
    """
    row = f"({', '.join(aliases)})" if len(aliases) > 1 else aliases[0]
    lowers: list[str | None] = [None, *boundaries]
    uppers: list[str | None] = [*boundaries, None]
    filled = [f"{alias} IS NOT NULL" for alias in nullable]
    ranges = []
    for lower, upper in zip(lowers, uppers, strict=True):
        parts = list(filled)
        if lower is not None:
            parts.append(f"{row} >= {lower}")
        if upper is not None:
            parts.append(f"{row} < {upper}")
        ranges.append(" AND ".join(parts) or EVERYTHING)
    if nullable:
        ranges.append(" OR ".join(f"{alias} IS NULL" for alias in nullable))
    return tuple(ranges)


def _find_boundaries(
    connection: Connection,
    table: SourceTable,
    key: Sequence[str],
    where: str,
    rows: int,
    wanted: int,
) -> tuple[str, ...]:
    database = table.engine
    quoted = [database.quote_name(name) for name in key]
    filled = " AND ".join(f"{name} IS NOT NULL" for name in quoted)
    condition = f"({where}) AND {filled}" if where else filled
    at = sorted({1 + rows * i // wanted for i in range(1, wanted)})
    literals = ", ".join(
        database.quote_value(table.column(name), f"s.{its}")
        for name, its in zip(key, quoted, strict=True)
    )
    statement = (
        f"SELECT {literals} FROM (SELECT {', '.join(quoted)}, "
        f"row_number() OVER (ORDER BY {', '.join(quoted)}) AS backlog_row "
        f"FROM {table.quoted} WHERE {condition}) AS s "
        f"WHERE backlog_row IN ({', '.join(map(str, at))}) ORDER BY backlog_row"
    )
    found = connection.exec_driver_sql(statement, execution_options={"no_parameters": True}).all()
    rendered = (f"({', '.join(row)})" if len(key) > 1 else row[0] for row in found)
    return tuple(dict.fromkeys(rendered))


FLAG = "__flag"  # number of the first column that the database says cannot be read exactly
REASON = "__reason"


@dataclass(frozen=True, slots=True)
class Projection:
    """A subquery that reads some columns of a table under safe names.

    `c0..` are the columns' values, `k0..` the raw key for ranges, `__flag` as above.
    """

    table: SourceTable
    columns: tuple[SourceColumn, ...]
    key: tuple[str, ...]
    timezone: str

    def select(self, where: str = "") -> str:
        """The subquery's text; `where` is over the table's own (quoted) names."""
        database, quoted = self.table.engine, self.table.engine.quote_name
        values = [
            f"{database.render(c, quoted(c.name), self.timezone)} AS c{i}"
            for i, c in _number(self.columns)
        ]
        keys = [f"{quoted(name)} AS k{i}" for i, name in enumerate(self.key)]
        flags = [
            f"WHEN {condition} THEN {i}"
            for i, c in _number(self.columns)
            if (condition := database.flag(c, quoted(c.name)))
        ]
        flag = f"CASE {' '.join(flags)} END" if flags else "NULL"
        items = ", ".join([*values, *keys, f"CAST({flag} AS {database.integer_type}) AS {FLAG}"])
        return f"SELECT {items} FROM {self.table.quoted}{_where(where)}"

    def count(self, where: str = "") -> str:
        """A statement that counts the rows."""
        return f"SELECT count(*) FROM {self.table.quoted}{_where(where)}"

    def schema(self) -> str:
        """The subquery's columns as Spark reads them (`customSchema`)."""
        wire = ", ".join(f"c{i} {self.table.engine.wire_type(c)}" for i, c in _number(self.columns))
        return f"{wire}, {FLAG} INT"

    def finish(self, frame: DataFrame) -> DataFrame:
        """Gives what was read its own names and normal forms, and adds `__reason`."""
        database = self.table.engine
        named, reasons = [], []
        for i, column in _number(self.columns):
            value, reason = database.normalise(column, f"c{i}", self.timezone)
            named.append(f"{value} AS {quote_column(column.name)}")
            reasons += reason
        flags = [
            f"WHEN {i} THEN {quote(f'column {c.name}: {database.explain_flag(c)}')}"
            for i, c in _number(self.columns)
        ]
        flagged = f"CASE {FLAG} {' '.join(flags)} END" if flags else "CAST(NULL AS string)"
        return frame.selectExpr(*named, f"coalesce({', '.join([flagged, *reasons])}) AS {REASON}")


def _number(columns: Sequence[SourceColumn]) -> list[tuple[int, SourceColumn]]:
    return list(enumerate(columns))


def _where(condition: str) -> str:
    return f" WHERE {condition}" if condition else ""
