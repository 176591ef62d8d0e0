"""SQLite as a source: each value has a type of its own, whatever its column says."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from urllib.parse import quote

import sqlalchemy as sa
from sqlalchemy.dialects.sqlite.base import SQLiteDialect
from sqlalchemy.engine import URL, Engine

from backlogctl.config import Source, SourceLimits
from backlogctl.errors import ConfigurationError
from backlogctl.spark_backfill.sources.databases import (
    ColumnKind,
    JdbcAccess,
    SourceColumn,
    SourceDatabase,
    parse_time_text,
    tell_lost,
)

# Kinds that leave it as bytes of text.
_TEXTS = (ColumnKind.TIME, ColumnKind.DATE, ColumnKind.TEXT, ColumnKind.OTHER)


class Sqlite(SourceDatabase):
    """Text leaves as bytes, and what is no text is told."""

    name = "sqlite"
    dialect = SQLiteDialect(paramstyle="named")
    integer_type, text_type = "INTEGER", "TEXT"
    compares_times = has_uuids = False

    def open_engine(self, url: URL, database: str, limits: SourceLimits) -> Engine:
        path = _find_file(url, database)

        def connect() -> sqlite3.Connection:
            return sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True, timeout=30)

        return sa.create_engine("sqlite://", creator=connect, hide_parameters=True)

    def make_access(self, url: URL, database: str, source: Source) -> JdbcAccess:
        properties = {"driver": "org.sqlite.JDBC", "open_mode": "1"}
        return JdbcAccess(f"jdbc:sqlite:{_find_file(url, database)}", properties)

    def render(self, column: SourceColumn, q: str, timezone: str) -> str:
        match column.kind:
            case ColumnKind.INTEGER:
                # The driver reads text as 0, which is a time as well.
                return f"CASE WHEN typeof({q}) = 'integer' THEN {q} END"
            case ColumnKind.BOOLEAN | ColumnKind.DOUBLE | ColumnKind.FLOAT:
                return q
            case ColumnKind.DECIMAL:
                digits = _write_decimal(column, q)
                return f"CASE WHEN typeof({q}) = 'null' THEN NULL ELSE {digits} END"
        return f"CAST({q} AS BLOB)"

    def flag(self, column: SourceColumn, q: str) -> str:
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
                return _flag_decimal(column, q)
            case ColumnKind.TEXT | ColumnKind.OTHER:
                return f"typeof({q}) = 'blob'"
        return ""

    def explain_flag(self, column: SourceColumn) -> str:
        match column.kind:
            case ColumnKind.DECIMAL if column.precision is not None:
                return f"not an exact NUMERIC({column.precision}, {column.scale or 0})"
            case ColumnKind.TEXT | ColumnKind.OTHER:
                return "holds bytes, not text"
        return f"not a valid {column.kind}"

    def wire_type(self, column: SourceColumn) -> str:
        if column.kind is ColumnKind.BOOLEAN:
            return "BIGINT"
        return "BINARY" if column.kind in _TEXTS else super().wire_type(column)

    def normalise(self, column: SourceColumn, raw: str, timezone: str) -> tuple[str, list[str]]:
        if column.kind is ColumnKind.BOOLEAN:
            return f"{raw} = 1", []
        if column.kind not in _TEXTS:
            return raw, []
        text = f"try_validate_utf8(CAST({raw} AS string))"
        wrong = tell_lost(raw, text, f"column {column.name}: not UTF-8")
        if column.kind is not ColumnKind.TIME:
            return text, [wrong]
        time = parse_time_text(text, timezone)
        unread = f"column {column.name}: not a time in ISO 8601 to the microsecond"
        return time, [wrong, tell_lost(text, time, unread)]

    def quote_value(self, column: SourceColumn, q: str) -> str:
        return f"quote({q})"

    def has_number(self, q: str) -> str:
        return f"typeof({q}) = 'integer'"


def _find_file(url: URL, database: str) -> Path:
    subject = f"sources.{database}.url"
    if not url.database or url.database == ":memory:":
        raise ConfigurationError("an in-memory SQLite database cannot be read", subject=subject)
    path = Path(url.database.removeprefix("file:")).absolute()
    if not path.is_file():
        raise ConfigurationError(f"there is no file {path}", subject=subject)
    return path


def _write_decimal(column: SourceColumn, q: str) -> str:
    if column.scale:
        return f"printf('%.{int(column.scale)}f', {q})"
    if column.precision is not None:
        return f"CAST(CAST({q} AS INTEGER) AS TEXT)"
    short = f"printf('%!.15g', {q})"
    real = f"CASE WHEN CAST({short} AS REAL) = {q} THEN {short} ELSE printf('%!.17g', {q}) END"
    return f"CASE typeof({q}) WHEN 'integer' THEN CAST({q} AS TEXT) ELSE {real} END"


def _flag_decimal(column: SourceColumn, q: str) -> str:
    odd = [f"typeof({q}) NOT IN ('integer', 'real', 'null')", f"abs({q}) > 1.797e308"]
    if column.precision is not None:
        scale = int(column.scale or 0)
        digits = int(column.precision) - scale
        odd.append(f"abs({q}) >= 1e{digits}")
        # A REAL holds 15 digits; above that its text would be invented.
        odd.append(f"(typeof({q}) = 'real' AND abs({q}) >= 1e{15 - scale})")
        odd.append(f"CAST({_write_decimal(column, q)} AS REAL) <> {q}")
    return " OR ".join(odd)
