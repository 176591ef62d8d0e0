"""PostgreSQL as a source."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy import types
from sqlalchemy.dialects.postgresql.base import PGDialect
from sqlalchemy.engine import URL, Engine

from backlogctl.clock import format_time
from backlogctl.config import Source, SourceLimits
from backlogctl.errors import ConfigurationError
from backlogctl.spark_backfill.sources.databases import (
    ANSWER_SECONDS,
    ColumnKind,
    JdbcAccess,
    SourceColumn,
    SourceDatabase,
    list_login,
    make_jdbc_url,
    show_wall,
)
from backlogctl_delivery.database import add_liveness

# libpq's parameters that pgjdbc knows under the same name; others are named in an error.
_SAME = frozenset(["sslmode", "sslrootcert", "sslcert", "sslkey", "channel_binding"])
_RENAMED = {
    "connect_timeout": "connectTimeout",
    "application_name": "ApplicationName",
    "target_session_attrs": "targetServerType",
}
_TARGETS = {"read-write": "primary", "primary": "primary", "any": "any", "standby": "secondary"}
_FORMAT = """'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'"""
_NUMBERS = (ColumnKind.DECIMAL, ColumnKind.FLOAT, ColumnKind.DOUBLE)
_TIMES = (ColumnKind.TIME, ColumnKind.DATE)


class PostgreSql(SourceDatabase):
    """Its own functions write times and numbers."""

    name = "postgresql"
    # Rendered for JDBC, so `%` must not be doubled as psycopg wants it.
    dialect = PGDialect(paramstyle="named")  # type: ignore[no-untyped-call]
    integer_type, text_type = "integer", "text"

    def open_engine(self, url: URL, database: str, limits: SourceLimits) -> Engine:
        plain = url.set(drivername="postgresql+psycopg").difference_update_query(["options"])
        return sa.create_engine(
            add_liveness(plain),
            connect_args={"options": _list_options(limits, url), "connect_timeout": 10},
            hide_parameters=True,
            pool_size=1,
            max_overflow=0,
        )

    def make_access(self, url: URL, database: str, source: Source) -> JdbcAccess:
        timeout = int(source.limits.statement_timeout.total_seconds()) + ANSWER_SECONDS
        parameters = {
            "connectTimeout": "10",
            **_translate_query(url, database),
            "options": _list_options(source.limits, url),
            "tcpKeepAlive": "true",
            "socketTimeout": str(timeout),
        }
        named = url.set(database=url.database or url.username or "postgres")
        login = list_login(url)
        return JdbcAccess(
            url=make_jdbc_url("postgresql", named, 5432, parameters),
            properties={"driver": "org.postgresql.Driver", **login},
            secrets=tuple(login[name] for name in ("password",) if name in login),
        )

    def list_views(self, inspector: Any, schema: str | None) -> list[str]:
        materialized = inspector.get_materialized_view_names(schema)
        return [*super().list_views(inspector, schema), *materialized]

    def find_kind(self, kind: types.TypeEngine[Any]) -> ColumnKind:
        return ColumnKind.FLOAT if isinstance(kind, types.REAL) else super().find_kind(kind)

    def render(self, column: SourceColumn, q: str, timezone: str) -> str:
        match column.kind:
            case ColumnKind.INTEGER:
                return f"CAST({q} AS bigint)"
            case ColumnKind.DECIMAL | ColumnKind.OTHER:
                return f"CAST({q} AS text)"
            case ColumnKind.TIME:
                at = q if column.zoned else f"({q} AT TIME ZONE {self.quote_text(timezone)})"
                text = f"to_char({at} AT TIME ZONE 'UTC', {_FORMAT})"
                return f"CASE WHEN NOT ({_is_strange_time(q)}) THEN {text} END"
            case ColumnKind.DATE:
                text = f"to_char({q}, 'YYYY-MM-DD')"
                return f"CASE WHEN NOT ({_is_strange_time(q)}) THEN {text} END"
        return q

    def flag(self, column: SourceColumn, q: str) -> str:
        if column.kind in _NUMBERS:
            return f"CAST({q} AS text) IN ('NaN', 'Infinity', '-Infinity')"
        return _is_strange_time(q) if column.kind in _TIMES else ""

    def explain_flag(self, column: SourceColumn) -> str:
        return "infinite or out of range" if column.kind in _TIMES else "NaN or infinite"

    def quote_value(self, column: SourceColumn, q: str) -> str:
        # `character` alone would be character(1).
        kind = f"pg_typeof({q})::text"
        safe = f"CASE {kind} WHEN 'character' THEN 'bpchar' ELSE {kind} END"
        return f"quote_literal(CAST({q} AS text)) || '::' || {safe}"

    def compare_boolean(self, q: str, wanted: bool) -> str:
        return q if wanted else f"NOT {q}"

    def compare_time(
        self, column: SourceColumn, q: str, sign: str, at: datetime, timezone: str
    ) -> Iterator[str]:
        exact = f"CAST({self.quote_text(format_time(at))} AS timestamptz)"
        if column.zoned:
            yield f"{q} {sign} {exact}"
            return
        # An index serves the first; the second is right in the doubled hour too.
        slack = timedelta(hours=-2 if sign == ">=" else 2)
        rough = self.quote_text(show_wall(at, timezone, slack))
        yield f"{q} {sign} CAST({rough} AS timestamp)"
        yield f"({q} AT TIME ZONE {self.quote_text(timezone)}) {sign} {exact}"

    def find_instant(self, column: SourceColumn, q: str, timezone: str) -> str:
        is_wall = column.kind is ColumnKind.TIME and not column.zoned
        return f"{q} AT TIME ZONE {self.quote_text(timezone)}" if is_wall else q


def _list_options(limits: SourceLimits, url: URL) -> str:
    """Server settings of each connection: read only, and no statement above the timeout."""
    given = url.query.get("options", "")
    own = f"-c statement_timeout={int(limits.statement_timeout.total_seconds() * 1000)}"
    return " ".join(
        part for part in (str(given), own, "-c default_transaction_read_only=on") if part
    )


def _is_strange_time(q: str) -> str:
    return f"NOT isfinite({q}) OR {q} < '0002-01-01' OR {q} >= '9999-12-31'"


def _translate_query(url: URL, database: str) -> dict[str, str]:
    subject = f"sources.{database}.url"
    found: dict[str, str] = {}
    for name, value in url.query.items():
        text = value if isinstance(value, str) else ",".join(value)
        if name == "options":
            continue
        if name == "host":
            raise ConfigurationError(
                "a Unix socket or several hosts cannot be read over JDBC",
                subject=subject,
                hint="write one host and its TCP port",
            )
        if name == "target_session_attrs":
            text = _TARGETS.get(text, "any")
        if name not in _SAME and name not in _RENAMED:
            raise ConfigurationError(
                f"the parameter {name} is not supported",
                subject=subject,
                hint=f"known ones are {', '.join(sorted({*_SAME, *_RENAMED, 'options'}))}",
            )
        found[_RENAMED.get(name, name)] = text
    return found
