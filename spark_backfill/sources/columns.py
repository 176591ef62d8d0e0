"""How each column leaves the database: in exact text, so that no driver can round or shift it.

Times arrive as `YYYY-MM-DDTHH:MM:SS.ffffffZ`, decimals as their digits, integers, booleans and
floats as such, bytes as bytes, everything else as text. What cannot be read exactly is flagged by
the database itself or by Spark right after the read, and ends in quarantine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import types as T  # noqa: N812
from sqlalchemy.engine import Connection

from backlogctl.spark_backfill.sources.reflection import (
    POSTGRESQL,
    SQLITE,
    ColumnKind,
    SourceColumn,
    SourceTable,
    quote_name,
    quote_table,
    quote_text,
)
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


FLAG = "__flag"  # number of the first column that the database says cannot be read exactly
REASON = "__reason"
TIME_FORMAT = "yyyy-MM-dd'T'HH:mm:ss.SSSSSS'Z'"
TIME_SHAPE = (
    r"^\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}(:\d{2}([.]\d{1,6})?)?( ?([Zz]|[+-]\d{2}(:?\d{2})?))?$"
)
_ZONED_SHAPE = r"([Zz]|[+-]\d{2}(:?\d{2})?)$"
_PG_FORMAT = """'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'"""

_SPARK_TYPES: dict[ColumnKind, T.DataType] = {
    ColumnKind.INTEGER: T.LongType(),
    ColumnKind.BOOLEAN: T.BooleanType(),
    ColumnKind.FLOAT: T.FloatType(),
    ColumnKind.DOUBLE: T.DoubleType(),
    ColumnKind.BYTES: T.BinaryType(),
}


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
        dialect, quoted = self.table.dialect, self._quoted
        values = [f"{_render(c, quoted(c.name), self)} AS c{i}" for i, c in _number(self.columns)]
        keys = [f"{quoted(name)} AS k{i}" for i, name in enumerate(self.key)]
        flags = [
            f"WHEN {condition} THEN {i}"
            for i, c in _number(self.columns)
            if (condition := _flag_condition(c, quoted(c.name), dialect))
        ]
        flag = f"CASE {' '.join(flags)} END" if flags else "NULL"
        integer = "integer" if dialect == POSTGRESQL else "INTEGER"
        items = ", ".join([*values, *keys, f"CAST({flag} AS {integer}) AS {FLAG}"])
        return f"SELECT {items} FROM {quote_table(self.table)}{_where(where)}"

    def count(self, where: str = "") -> str:
        """A statement that counts the rows."""
        return f"SELECT count(*) FROM {quote_table(self.table)}{_where(where)}"

    def schema(self) -> str:
        """The subquery's columns as Spark reads them (`customSchema`)."""
        wire = ", ".join(f"c{i} {self._wire_type(c)}" for i, c in _number(self.columns))
        return f"{wire}, {FLAG} INT"

    def finish(self, frame: DataFrame) -> DataFrame:
        """Gives what was read its own names and normal forms, and adds `__reason`."""
        named, reasons = [], []
        for i, column in _number(self.columns):
            value, reason = self._normalise(column, f"c{i}")
            named.append(f"{value} AS {quote_column(column.name)}")
            reasons += reason
        flags = [
            f"WHEN {i} THEN {quote(f'column {c.name}: {_flag_reason(c, self.table.dialect)}')}"
            for i, c in _number(self.columns)
        ]
        flagged = f"CASE {FLAG} {' '.join(flags)} END" if flags else "CAST(NULL AS string)"
        return frame.selectExpr(*named, f"coalesce({', '.join([flagged, *reasons])}) AS {REASON}")

    def _wire_type(self, column: SourceColumn) -> str:
        if self.table.dialect == SQLITE:
            if column.kind is ColumnKind.BOOLEAN:
                return "BIGINT"
            if column.kind not in _SPARK_TYPES and column.kind is not ColumnKind.DECIMAL:
                return "BINARY"
        return spark_type(column).simpleString()

    def _normalise(self, column: SourceColumn, raw: str) -> tuple[str, list[str]]:
        """Spark SQL of its value, and of why it has none."""
        if self.table.dialect != SQLITE:
            return raw, []
        match column.kind:
            case ColumnKind.BOOLEAN:
                return f"{raw} = 1", []
            case ColumnKind.TIME | ColumnKind.DATE | ColumnKind.TEXT | ColumnKind.OTHER:
                text = f"try_validate_utf8(CAST({raw} AS string))"
                wrong = _tell_lost(raw, text, f"column {column.name}: not UTF-8")
                if column.kind is not ColumnKind.TIME:
                    return text, [wrong]
                time = parse_time_text(text, self.timezone)
                unread = f"column {column.name}: not a time in ISO 8601 to the microsecond"
                return time, [wrong, _tell_lost(text, time, unread)]
        return raw, []

    def _quoted(self, name: str) -> str:
        return quote_name(self.table.dialect, name)


def spark_type(column: SourceColumn) -> T.DataType:
    """The type under which SQL expressions of the configuration see a column."""
    return _SPARK_TYPES.get(column.kind, T.StringType())


def parse_time_text(text: str, timezone: str) -> str:
    """Spark SQL of text in ISO 8601 in the normal form; without a zone it is wall clock in
    `timezone`.

    NULL where it is none. The session's time zone is UTC.
    """
    shaped = f"CASE WHEN {text} RLIKE {quote(TIME_SHAPE)} THEN {text} END"
    at, zoned = f"try_to_timestamp({shaped})", f"{shaped} RLIKE {quote(_ZONED_SHAPE)}"
    utc = f"CASE WHEN {zoned} THEN {at} ELSE to_utc_timestamp({at}, {quote(timezone)}) END"
    return f"date_format({utc}, {quote(TIME_FORMAT)})"


def _tell_lost(before: str, after: str, reason: str) -> str:
    return f"CASE WHEN {before} IS NOT NULL AND {after} IS NULL THEN {quote(reason)} END"


def _number(columns: Sequence[SourceColumn]) -> list[tuple[int, SourceColumn]]:
    return list(enumerate(columns))


def _where(condition: str) -> str:
    return f" WHERE {condition}" if condition else ""


def _render(column: SourceColumn, q: str, projection: Projection) -> str:
    if projection.table.dialect == SQLITE:
        return _render_sqlite(column, q)
    match column.kind:
        case ColumnKind.INTEGER:
            return f"CAST({q} AS bigint)"
        case ColumnKind.DECIMAL | ColumnKind.OTHER:
            return f"CAST({q} AS text)"
        case ColumnKind.TIME:
            zone = quote_text(POSTGRESQL, projection.timezone)
            at = q if column.zoned else f"({q} AT TIME ZONE {zone})"
            text = f"to_char({at} AT TIME ZONE 'UTC', {_PG_FORMAT})"
            return f"CASE WHEN NOT ({_pg_strange_time(q)}) THEN {text} END"
        case ColumnKind.DATE:
            text = f"to_char({q}, 'YYYY-MM-DD')"
            return f"CASE WHEN NOT ({_pg_strange_time(q)}) THEN {text} END"
    return q


def _render_sqlite(column: SourceColumn, q: str) -> str:
    match column.kind:
        case ColumnKind.INTEGER:
            # The driver reads text as 0, which is a time as well.
            return f"CASE WHEN typeof({q}) = 'integer' THEN {q} END"
        case ColumnKind.BOOLEAN | ColumnKind.DOUBLE | ColumnKind.FLOAT:
            return q
        case ColumnKind.DECIMAL:
            return f"CASE WHEN typeof({q}) = 'null' THEN NULL ELSE {_sqlite_decimal(column, q)} END"
    return f"CAST({q} AS BLOB)"


def _sqlite_decimal(column: SourceColumn, q: str) -> str:
    if column.scale:
        return f"printf('%.{int(column.scale)}f', {q})"
    if column.precision is not None:
        return f"CAST(CAST({q} AS INTEGER) AS TEXT)"
    short = f"printf('%!.15g', {q})"
    real = f"CASE WHEN CAST({short} AS REAL) = {q} THEN {short} ELSE printf('%!.17g', {q}) END"
    return f"CASE typeof({q}) WHEN 'integer' THEN CAST({q} AS TEXT) ELSE {real} END"


def _pg_strange_time(q: str) -> str:
    return f"NOT isfinite({q}) OR {q} < '0002-01-01' OR {q} >= '9999-12-31'"


def _flag_condition(column: SourceColumn, q: str, dialect: str) -> str:
    if dialect == POSTGRESQL:
        match column.kind:
            case ColumnKind.DECIMAL | ColumnKind.FLOAT | ColumnKind.DOUBLE:
                return f"CAST({q} AS text) IN ('NaN', 'Infinity', '-Infinity')"
            case ColumnKind.TIME | ColumnKind.DATE:
                return _pg_strange_time(q)
        return ""
    match column.kind:
        case ColumnKind.INTEGER:
            return f"typeof({q}) NOT IN ('integer', 'null')"
        case ColumnKind.BOOLEAN:
            return f"typeof({q}) <> 'null' AND (typeof({q}) <> 'integer' OR {q} NOT IN (0, 1))"
        case ColumnKind.FLOAT | ColumnKind.DOUBLE:
            return (
                f"typeof({q}) NOT IN ('real', 'integer', 'null') "
                f"OR abs({q}) > 1.7976931348623157e308"
            )
        case ColumnKind.DECIMAL:
            return _sqlite_decimal_flag(column, q)
        case ColumnKind.TEXT | ColumnKind.OTHER:
            return f"typeof({q}) = 'blob'"
    return ""


def _sqlite_decimal_flag(column: SourceColumn, q: str) -> str:
    odd = [f"typeof({q}) NOT IN ('integer', 'real', 'null')", f"abs({q}) > 1.797e308"]
    if column.precision is not None:
        scale = int(column.scale or 0)
        digits = int(column.precision) - scale
        odd.append(f"abs({q}) >= 1e{digits}")
        # A REAL holds 15 digits; above that its text would be invented.
        odd.append(f"(typeof({q}) = 'real' AND abs({q}) >= 1e{15 - scale})")
        odd.append(f"CAST({_sqlite_decimal(column, q)} AS REAL) <> {q}")
    return " OR ".join(odd)


def _flag_reason(column: SourceColumn, dialect: str) -> str:
    if dialect == POSTGRESQL:
        return (
            "infinite or out of range"
            if column.kind in (ColumnKind.TIME, ColumnKind.DATE)
            else ("NaN or infinite")
        )
    match column.kind:
        case ColumnKind.DECIMAL if column.precision is not None:
            return f"not an exact NUMERIC({column.precision}, {column.scale or 0})"
        case ColumnKind.TEXT | ColumnKind.OTHER:
            return "holds bytes, not text"
    return f"not a valid {column.kind}"
