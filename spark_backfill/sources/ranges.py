"""Ranges of a key that are read in parallel: each row is in exactly one of them (fault 29).

The database itself finds the boundaries, in its own order of the key, and quotes them as literals;
so text in any collation, composite keys and SQLite's mixed types are cut where it says.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy.engine import Connection

from spark_backfill.sources.reflection import POSTGRESQL, SourceTable, quote_name, quote_table

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
    return cut_ranges(aliases, boundaries, nullable)


def cut_ranges(
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
    quoted = [quote_name(table.dialect, name) for name in key]
    filled = " AND ".join(f"{name} IS NOT NULL" for name in quoted)
    condition = f"({where}) AND {filled}" if where else filled
    at = sorted({1 + rows * i // wanted for i in range(1, wanted)})
    literals = ", ".join(_quote_value(table.dialect, f"s.{name}") for name in quoted)
    statement = (
        f"SELECT {literals} FROM (SELECT {', '.join(quoted)}, "
        f"row_number() OVER (ORDER BY {', '.join(quoted)}) AS backlog_row "
        f"FROM {quote_table(table)} WHERE {condition}) AS s "
        f"WHERE backlog_row IN ({', '.join(map(str, at))}) ORDER BY backlog_row"
    )
    found = connection.exec_driver_sql(statement, execution_options={"no_parameters": True}).all()
    rendered = (f"({', '.join(row)})" if len(key) > 1 else row[0] for row in found)
    return tuple(dict.fromkeys(rendered))


def _quote_value(dialect: str, name: str) -> str:
    if dialect == POSTGRESQL:
        # `character` alone would be character(1).
        kind = f"pg_typeof({name})::text"
        safe = f"CASE {kind} WHEN 'character' THEN 'bpchar' ELSE {kind} END"
        return f"quote_literal(CAST({name} AS text)) || '::' || {safe}"
    return f"quote({name})"
