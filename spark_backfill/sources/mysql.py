"""MariaDB and MySQL as a source.

Of the column types: https://mariadb.com/kb/en/data-types/. All numbers leave by a cast, so that
neither driver makes true or false of a TINYINT(1), or a date of a YEAR.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import sqlalchemy as sa
from sqlalchemy import types
from sqlalchemy.dialects import mysql
from sqlalchemy.engine import URL, Engine

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
    parse_time_text,
    show_wall,
    tell_lost,
)

# Times are those of UTC, and a backslash in text is one character.
_SESSION = {"time_zone": "+00:00", "sql_mode": "NO_BACKSLASH_ESCAPES"}
# To Spark "c0" is a name; SQLAlchemy reads tables with the other quotes.
_SPARK_SESSION = {**_SESSION, "sql_mode": "ANSI_QUOTES,NO_BACKSLASH_ESCAPES"}
_READ_ONLY = "SET SESSION TRANSACTION READ ONLY"
# Parameters of PyMySQL, and what MariaDB's Java driver calls them; MySQL's reads no PEM of a CA.
_RENAMED = {"ssl_ca": "serverSslCert", "connect_timeout": "connectTimeout"}
_IGNORED = frozenset(["charset", "ssl_verify_identity", "ssl_verify_cert"])
# Spark knows no type UUID.
_MARIADB = {"uuidAsString": "true"}
# Else Connector/J holds all rows of a statement at once.
_CONNECTOR_J = {"useCursorFetch": "true"}
_DRIVERS = {"mariadb": "org.mariadb.jdbc.Driver", "mysql": "com.mysql.cj.jdbc.Driver"}
_TIMES = (ColumnKind.TIME, ColumnKind.DATE)
_FORMAT = "'%Y-%m-%dT%H:%i:%s.%f'"


class MySql(SourceDatabase):
    """A session of our own: its time zone and its reading of quotes are set, not the server's."""

    name = "mysql"
    # Rendered for JDBC, so `%` must not be doubled as PyMySQL wants it.
    dialect = mysql.dialect(paramstyle="named")
    integer_type, text_type = "SIGNED", "CHAR"

    def quote_text(self, text: str) -> str:
        # The session takes no backslash for an escape.
        return "'" + text.replace("'", "''") + "'"

    def open_engine(self, url: URL, database: str, limits: SourceLimits) -> Engine:
        milliseconds = int(limits.statement_timeout.total_seconds() * 1000)
        engine = sa.create_engine(
            url.set(drivername=f"{url.get_backend_name()}+pymysql"),
            connect_args={
                "connect_timeout": 10,
                "read_timeout": milliseconds // 1000 + ANSWER_SECONDS,
                "init_command": _READ_ONLY,
            },
            hide_parameters=True,
            pool_size=1,
            max_overflow=0,
        )

        @sa.event.listens_for(engine, "connect")
        def prepare(connection: Any, _: Any) -> None:
            is_mariadb = "MariaDB" in connection.get_server_info()
            limit = (
                f"max_statement_time = {milliseconds / 1000}"
                if is_mariadb
                else f"max_execution_time = {milliseconds}"
            )
            session = ", ".join(f"{name} = '{value}'" for name, value in _SESSION.items())
            with connection.cursor() as cursor:
                cursor.execute(f"SET SESSION {session}, {limit}")

        return engine

    def make_access(self, url: URL, database: str, source: Source) -> JdbcAccess:
        timeout = int(source.limits.statement_timeout.total_seconds() + ANSWER_SECONDS) * 1000
        is_mariadb = source.java_driver == "mariadb"
        parameters = {
            "connectTimeout": "10000",
            **_translate_query(url, database, is_mariadb=is_mariadb),
            **(_MARIADB if is_mariadb else _CONNECTOR_J),
            "socketTimeout": str(timeout),
            "sessionVariables": ",".join(f"{k}='{v}'" for k, v in _SPARK_SESSION.items()),
        }
        login = list_login(url)
        spark = {"driver": _DRIVERS[source.java_driver], "sessionInitStatement": _READ_ONLY}
        # MariaDB's driver knows names in small letters, and does not decode what is in a URL.
        beside = parameters if is_mariadb else {}
        return JdbcAccess(
            url=make_jdbc_url(source.java_driver, url, 3306, {} if is_mariadb else parameters),
            properties={**beside, **spark, **login},
            secrets=tuple(login[name] for name in ("password",) if name in login),
        )

    def find_kind(self, kind: types.TypeEngine[Any]) -> ColumnKind:
        match kind:
            case mysql.BIT():
                return ColumnKind.BOOLEAN if kind.length in (None, 1) else ColumnKind.INTEGER
            case mysql.YEAR():
                return ColumnKind.INTEGER
            case types.Boolean():
                return ColumnKind.INTEGER  # it is a TINYINT(1), which holds other numbers, too
            case mysql.FLOAT():
                return ColumnKind.FLOAT
            case mysql.TINYBLOB() | mysql.MEDIUMBLOB() | mysql.LONGBLOB():
                return ColumnKind.BYTES  # SQLAlchemy's own type for bytes is a BLOB only
        return super().find_kind(kind)

    def read_column(self, item: Mapping[str, Any]) -> SourceColumn:
        is_listed = isinstance(item["type"], (mysql.ENUM, mysql.SET))
        return replace(super().read_column(item), is_listed=is_listed)

    def is_zoned(self, kind: types.TypeEngine[Any]) -> bool:
        return isinstance(kind, types.TIMESTAMP)

    def is_unsigned(self, kind: types.TypeEngine[Any]) -> bool:
        is_wide = isinstance(kind, types.BigInteger) and bool(getattr(kind, "unsigned", False))
        return is_wide or (isinstance(kind, mysql.BIT) and kind.length == 64)

    def render(self, column: SourceColumn, q: str, timezone: str) -> str:
        match column.kind:
            case ColumnKind.INTEGER | ColumnKind.BOOLEAN:
                return f"CAST({q} AS {'UNSIGNED' if column.is_unsigned else 'SIGNED'})"
            case ColumnKind.FLOAT:
                return f"{q} + 0e0"  # as text it would have six digits
            case ColumnKind.TIME:
                return f"CASE WHEN NOT ({_is_strange_time(q)}) THEN DATE_FORMAT({q}, {_FORMAT}) END"
            case ColumnKind.DATE:
                return f"CASE WHEN NOT ({_is_strange_time(q)}) THEN CAST({q} AS CHAR) END"
            case ColumnKind.DECIMAL | ColumnKind.TEXT | ColumnKind.OTHER:
                # Of a column that is CHAR Spark would make its full length.
                return f"CAST({q} AS CHAR)"
        return q

    def flag(self, column: SourceColumn, q: str) -> str:
        return _is_strange_time(q) if column.kind in _TIMES else ""

    def explain_flag(self, column: SourceColumn) -> str:
        return "a zero date or out of range"

    def wire_type(self, column: SourceColumn) -> str:
        match column.kind:
            case ColumnKind.BOOLEAN:
                return "BIGINT"
            case ColumnKind.FLOAT:
                return "DOUBLE"
        return super().wire_type(column)

    def normalise(self, column: SourceColumn, raw: str, timezone: str) -> tuple[str, list[str]]:
        match column.kind:
            case ColumnKind.BOOLEAN:
                return f"{raw} = 1", []
            case ColumnKind.FLOAT:
                return f"CAST({raw} AS float)", []
            case ColumnKind.TIME:
                # Its own tables of time zones are empty in most installations.
                time = parse_time_text(raw, "UTC" if column.zoned else timezone)
                return time, [tell_lost(raw, time, f"column {column.name}: not a time")]
        return raw, []

    def quote_value(self, column: SourceColumn, q: str) -> str:
        if column.is_listed:
            return f"CAST({q} + 0 AS CHAR)"  # a word would be compared by its letters
        match column.kind:
            case ColumnKind.BYTES:
                return f"CONCAT('X''', HEX({q}), '''')"
            case ColumnKind.INTEGER | ColumnKind.BOOLEAN:
                return f"CAST({self.render(column, q, '')} AS CHAR)"
        return f"CONCAT('''', REPLACE(CAST({q} AS CHAR), '''', ''''''), '''')"

    def compare_text(self, q: str, text: str) -> str:
        return f"CAST({q} AS CHAR) = {self.quote_text(text)}"

    def compare_time(
        self, column: SourceColumn, q: str, sign: str, at: datetime, timezone: str
    ) -> Iterator[str]:
        # Of what a clock on a wall shows Spark filters the rest.
        hours = 0 if column.zoned else (-2 if sign == ">=" else 2)
        wall = show_wall(at, "UTC" if column.zoned else timezone, timedelta(hours=hours))
        yield f"{q} {sign} {self.quote_text(wall)}"

    def find_instant(self, column: SourceColumn, q: str, timezone: str) -> str:
        is_time = column.kind is ColumnKind.TIME
        return f"CASE WHEN NOT ({_is_strange_time(q)}) THEN {q} END" if is_time else q

    def is_undated(self, column: SourceColumn, q: str) -> str:
        is_time = column.kind is ColumnKind.TIME
        return f"{q} IS NULL OR {q} < '0001-01-01'" if is_time else super().is_undated(column, q)

    def read_instant(self, column: SourceColumn, value: datetime, timezone: str) -> datetime:
        zone = UTC if column.zoned else ZoneInfo(timezone)
        return value.replace(tzinfo=zone).astimezone(UTC)


def _is_strange_time(q: str) -> str:
    return f"YEAR({q}) < 2 OR YEAR({q}) >= 9999 OR MONTH({q}) = 0 OR DAYOFMONTH({q}) = 0"


def _translate_query(url: URL, database: str, *, is_mariadb: bool) -> dict[str, str]:
    renamed = {k: v for k, v in _RENAMED.items() if is_mariadb or k != "ssl_ca"}
    found: dict[str, str] = {}
    for name, value in url.query.items():
        text = value if isinstance(value, str) else ",".join(value)
        if name in _IGNORED:
            continue
        if name not in renamed:
            raise ConfigurationError(
                f"the parameter {name} is not supported",
                subject=f"sources.{database}.url",
                hint=f"known ones are {', '.join(sorted({*renamed, *_IGNORED}))}",
            )
        if name == "connect_timeout":
            text = str(int(float(text) * 1000))
        found[renamed[name]] = text
    if "serverSslCert" in found:
        is_named = str(url.query.get("ssl_verify_identity", "true")).lower() != "false"
        found["sslMode"] = "verify-full" if is_named else "verify-ca"
    return found
