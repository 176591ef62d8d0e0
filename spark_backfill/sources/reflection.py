"""Source tables as their database describes them: names are checked, then quoted, never pasted."""

from __future__ import annotations

import difflib
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from typing import Any
from urllib.parse import quote

import sqlalchemy as sa
from sqlalchemy import types
from sqlalchemy.dialects.postgresql.base import PGDialect
from sqlalchemy.dialects.sqlite.base import SQLiteDialect
from sqlalchemy.engine import URL, Dialect, Engine, Inspector, make_url
from sqlalchemy.exc import DBAPIError

from backlogctl.config import Source, Stream, StreamSource
from backlogctl.errors import ConfigurationError, SourceError
from backlogctl.spark_backfill.failures import translating
from backlogctl_delivery.database import add_liveness
from backlogctl_delivery.database_failures import explain_refusal

# A source that does not let us in: said by the part of its URL that is wrong.


@contextmanager
def telling_access(engine: Engine, database: str) -> Iterator[None]:
    """Turns a failed connection inside into a sentence about the URL; other errors stay.

    Raises:
        ConfigurationError: database, user, password or file are wrong.
        SourceError: the server cannot be reached now.
    """
    key = f"sources.{database}.url"
    try:
        yield
    except DBAPIError as error:
        original = error.orig
        if getattr(original, "sqlite_errorname", "") == "SQLITE_NOTADB":
            raise ConfigurationError(
                "the file is not an SQLite database", subject=key, hint="name another file"
            ) from None
        if getattr(original, "sqlstate", None):
            raise
        found = explain_refusal(str(original), engine.url, key)
        if found is None:
            raise
        if found.is_wrong_url:
            raise ConfigurationError(found.message, subject=key, hint=found.hint) from None
        raise SourceError(
            found.message, subject=f"database {database}", hint=found.hint, retryable=True
        ) from None


POSTGRESQL = "postgresql"
SQLITE = "sqlite"


class ColumnKind(StrEnum):
    """How a column is read."""

    INTEGER = "integer"
    BOOLEAN = "boolean"
    FLOAT = "float"  # 4 bytes
    DOUBLE = "double"
    DECIMAL = "decimal"
    TIME = "time"
    DATE = "date"
    TEXT = "text"
    BYTES = "bytes"
    OTHER = "other"  # read as the database writes it as text


@dataclass(frozen=True, slots=True)
class SourceColumn:
    """A column. `precision` and `scale` are those of a declared decimal; `is_uuid`: PostgreSQL's
    own type, which is read as text."""

    name: str
    kind: ColumnKind
    nullable: bool = True
    zoned: bool = False
    precision: int | None = None
    scale: int | None = None
    is_uuid: bool = False


@dataclass(frozen=True, slots=True)
class SourceTable:
    """A table or view. `unique` holds the column sets that the database keeps unique."""

    database: str
    dialect: str
    schema: str | None
    name: str
    columns: tuple[SourceColumn, ...]
    unique: tuple[frozenset[str], ...]
    indexed: frozenset[str]  # columns that lead an index

    def column(self, name: str) -> SourceColumn:
        """The column of that name; it is known to be there."""
        return next(column for column in self.columns if column.name == name)

    def is_unique(self, names: Iterable[str]) -> bool:
        """Whether the database itself keeps these columns unique and not NULL."""
        wanted = frozenset(names)
        known = {column.name: column for column in self.columns}
        return any(
            key <= wanted and all(not known[name].nullable for name in key) for key in self.unique
        )

    @property
    def label(self) -> str:
        """The table for people."""
        return f"{self.schema}.{self.name}" if self.schema else self.name


_DIALECTS: dict[str, Dialect] = {
    # Rendered for JDBC, so `%` must not be doubled as psycopg wants it.
    POSTGRESQL: PGDialect(paramstyle="named"),  # type: ignore[no-untyped-call]
    SQLITE: SQLiteDialect(paramstyle="named"),
}


def quote_name(dialect: str, name: str) -> str:
    """An identifier, always quoted, by the database's own rules."""
    return str(_DIALECTS[dialect].identifier_preparer.quote_identifier(name))


def quote_table(table: SourceTable) -> str:
    parts = [table.schema, table.name] if table.schema else [table.name]
    return ".".join(quote_name(table.dialect, part) for part in parts if part)


def quote_text(dialect: str, text: str) -> str:
    return str(
        sa.literal(text, types.String()).compile(
            dialect=_DIALECTS[dialect], compile_kwargs={"literal_binds": True}
        )
    )


def open_engine(source: Source, database: str) -> Engine:
    """A read-only engine of a source, with its statement timeout.

    Raises:
        ConfigurationError: the URL is wrong, or of a database that is not supported yet.
    """
    url = parse_source_url(source.reveal_url(), database)
    if url.get_backend_name() == SQLITE:
        path = find_sqlite_file(url, database)

        def connect() -> sqlite3.Connection:
            return sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True, timeout=30)

        return sa.create_engine("sqlite://", creator=connect, hide_parameters=True)
    options = postgresql_options(source.limits.statement_timeout, url)
    plain = url.set(drivername="postgresql+psycopg").difference_update_query(["options"])
    return sa.create_engine(
        add_liveness(plain),
        connect_args={"options": options, "connect_timeout": 10},
        hide_parameters=True,
        pool_size=1,
        max_overflow=0,
    )


def postgresql_options(timeout: timedelta, url: URL) -> str:
    """Server settings of each connection: read only, and no statement above the timeout."""
    given = url.query.get("options", "")
    own = f"-c statement_timeout={int(timeout.total_seconds() * 1000)}"
    return " ".join(
        part for part in (str(given), own, "-c default_transaction_read_only=on") if part
    )


def parse_source_url(text: str, database: str) -> URL:
    subject = f"sources.{database}.url"
    try:
        url = make_url(text)
        backend = url.get_backend_name()
    except (sa.exc.ArgumentError, ValueError):
        raise ConfigurationError(
            "is not a database URL",
            subject=subject,
            hint="write it as postgresql+psycopg://user@host:5432/name or sqlite:////path/file.db",
        ) from None
    if backend not in (POSTGRESQL, SQLITE):
        raise ConfigurationError(
            f"{backend} is not supported yet", subject=subject, hint="use postgresql or sqlite"
        )
    return url


def find_sqlite_file(url: URL, database: str) -> Path:
    subject = f"sources.{database}.url"
    if not url.database or url.database == ":memory:":
        raise ConfigurationError("an in-memory SQLite database cannot be read", subject=subject)
    path = Path(url.database.removeprefix("file:")).absolute()
    if not path.is_file():
        raise ConfigurationError(f"there is no file {path}", subject=subject)
    return path


def require_tables(sources: Mapping[str, Source], stream: Stream) -> None:
    """Looks a stream's tables up: before Spark, which takes long to start.

    Raises:
        ConfigurationError, SourceError: see `reflect_table`.
    """
    assert stream.source is not None
    places = [(stream.source.database, stream.source.table)]
    if (consumed := stream.source.consumed) is not None:
        places.append((consumed.database, consumed.table))
    for database, table in places:
        engine = open_engine(sources[database], database)
        try:
            reflect_table(engine, database, table)
        finally:
            engine.dispose()


def reflect_table(engine: Engine, database: str, name: str) -> SourceTable:
    """Looks a table or view up: `name`, or `schema.name`.

    Raises:
        ConfigurationError: there is none of that name, and the nearest is named; or the URL names
            a wrong database, user or password.
        SourceError: the database could not be read.
    """
    with translating("look the table up", subject=f"database {database}", hint="is it reachable?"):
        with telling_access(engine, database):
            inspector = sa.inspect(engine)
            # SQLite reads its file with the first statement only.
            schema, table = _find_table(inspector, database, name)
        columns = tuple(_read_column(engine, item) for item in inspector.get_columns(table, schema))
        primary = inspector.get_pk_constraint(table, schema).get("constrained_columns") or []
        indexes = inspector.get_indexes(table, schema)
        constraints = inspector.get_unique_constraints(table, schema)
    unique = [frozenset(primary)] if primary else []
    unique += [frozenset(item["column_names"]) for item in constraints]
    unique += [
        frozenset(name for name in item["column_names"] if name)
        for item in indexes
        if item.get("unique")
        and item["column_names"]
        and None not in item["column_names"]
        and not _is_partial(item)
    ]
    leading = {item["column_names"][0] for item in indexes if item["column_names"]}
    return SourceTable(
        database=database,
        dialect=engine.dialect.name,
        schema=schema,
        name=table,
        columns=columns,
        unique=tuple(dict.fromkeys(key for key in unique if key)),
        indexed=frozenset(n for n in (*leading, *primary[:1]) if n is not None),
    )


def check_columns(
    table: SourceTable, names: Iterable[str], subject: str, *, more: str = ""
) -> None:
    """Raises ConfigurationError for the first name that is no column of the table.

    Args:
        more: what the hint ends with.
    """
    known = [column.name for column in table.columns]
    for name in names:
        if name not in known:
            raise ConfigurationError(
                f"the table {table.label} has no column {name!r}",
                subject=subject,
                hint=_suggest(name, known, "its columns are") + more,
            )


def list_named_columns(source: StreamSource, at: str) -> Iterator[tuple[str, Sequence[str]]]:
    """Where a stream's `source` names columns as they are, and which; SQL is for Spark to check.

    Args:
        at: where the section stands in the file.
    """
    message = source.message
    yield f"{at}.primary_key", source.primary_key
    yield f"{at}.time_column", [source.time_column]
    yield f"{at}.order_by", source.order_by
    yield f"{at}.where", list(source.where)
    yield f"{at}.message.value.json", message.value.json_columns or ()
    for name, column in (
        ("message.key", message.key and message.key.column),
        ("message.partition", message.partition),
        ("message.value.column", message.value.column),
        ("message.header_list", message.header_list and message.header_list.column),
        ("identity.row", source.identity.row.column),
    ):
        yield f"{at}.{name}", [column] if column else ()


def _find_table(inspector: Inspector, database: str, name: str) -> tuple[str | None, str]:
    tries: list[tuple[str | None, str]] = [(None, name)]
    if "." in name:
        schema, _, table = name.partition(".")
        tries.append((schema, table))
    schemas = set(inspector.get_schema_names())
    seen: list[str] = []
    for within, table in tries:
        if within is not None and within not in schemas:
            continue
        names = [*inspector.get_table_names(within), *inspector.get_view_names(within)]
        if inspector.dialect.name == POSTGRESQL:
            names += inspector.get_materialized_view_names(within)
        if table in names:
            return within, table
        seen += [f"{within}.{item}" if within else item for item in names]
    raise ConfigurationError(
        f"the database {database} has no table {name!r}",
        subject=f"sources.{database}",
        hint=_suggest(name, seen, "its tables are"),
    )


def _suggest(name: str, known: Sequence[str], otherwise: str) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    if near:
        return f"did you mean {near[0]!r}?"
    shown = ", ".join(sorted(known)[:12])
    return f"{otherwise} {shown}{', ...' if len(known) > 12 else ''}" if known else ""


def _read_column(engine: Engine, item: Any) -> SourceColumn:
    kind = item["type"]
    found = _find_kind(kind, engine.dialect.name)
    decimal = found is ColumnKind.DECIMAL
    return SourceColumn(
        name=item["name"],
        kind=found,
        nullable=bool(item.get("nullable", True)),
        zoned=bool(getattr(kind, "timezone", False)),
        precision=getattr(kind, "precision", None) if decimal else None,
        scale=getattr(kind, "scale", None) if decimal else None,
        is_uuid=isinstance(kind, types.Uuid) and engine.dialect.name == POSTGRESQL,
    )


def _find_kind(kind: Any, dialect: str) -> ColumnKind:
    match kind:
        case types.Boolean():
            return ColumnKind.BOOLEAN
        case types.Integer():
            return ColumnKind.INTEGER
        case types.REAL() if dialect == POSTGRESQL:
            return ColumnKind.FLOAT
        case types.Float() | types.REAL() | types.Double():
            return ColumnKind.DOUBLE
        case types.Numeric():
            return ColumnKind.DECIMAL
        case types.DateTime():
            return ColumnKind.TIME
        case types.Date():
            return ColumnKind.DATE
        case types.LargeBinary():
            return ColumnKind.BYTES
        case types.Enum() | types.ARRAY():
            return ColumnKind.OTHER
        case types.String():
            return ColumnKind.TEXT
    return ColumnKind.OTHER


def _is_partial(index: Any) -> bool:
    options = index.get("dialect_options") or {}
    return any(name.endswith("_where") and value is not None for name, value in options.items())


# JDBC's view of a source: the URL without secrets, and the properties of a connection.

# libpq's parameters that pgjdbc knows under the same name; others are named in an error.
_SAME = frozenset(["sslmode", "sslrootcert", "sslcert", "sslkey", "channel_binding"])
_RENAMED = {
    "connect_timeout": "connectTimeout",
    "application_name": "ApplicationName",
    "target_session_attrs": "targetServerType",
}
# A server that has not even refused a statement this long after its timeout has vanished.
_ANSWER_SECONDS = 60
_TARGETS = {"read-write": "primary", "primary": "primary", "any": "any", "standby": "secondary"}


@dataclass(frozen=True, slots=True)
class JdbcAccess:
    """How Spark reads a source. The password is a property, never a part of the URL."""

    url: str
    properties: Mapping[str, str] = field(repr=False)
    secrets: tuple[str, ...] = field(repr=False, default=())


def make_access(source: Source, database: str) -> JdbcAccess:
    """Turns a SQLAlchemy URL into JDBC's.

    Raises:
        ConfigurationError: something in it has no counterpart in JDBC.
    """
    url = parse_source_url(source.reveal_url(), database)
    limits = source.limits
    common = {
        "fetchsize": str(limits.fetch_size),
        "queryTimeout": str(max(1, int(limits.statement_timeout.total_seconds()))),
    }
    if url.get_backend_name() == SQLITE:
        return JdbcAccess(
            url=f"jdbc:sqlite:{find_sqlite_file(url, database)}",
            properties={**common, "driver": "org.sqlite.JDBC", "open_mode": "1"},
        )
    password = str(url.password) if url.password is not None else ""
    properties = {
        **common,
        **_translate_query(url, database),
        "driver": "org.postgresql.Driver",
        "options": postgresql_options(limits.statement_timeout, url),
        "tcpKeepAlive": "true",
        "socketTimeout": str(int(limits.statement_timeout.total_seconds()) + _ANSWER_SECONDS),
    }
    properties.setdefault("connectTimeout", "10")
    if url.username:
        properties["user"] = url.username
    if password:
        properties["password"] = password
    host = url.host or "localhost"
    host = f"[{host}]" if ":" in host and not host.startswith("[") else host
    name = quote(url.database or url.username or "postgres", safe="")
    return JdbcAccess(
        url=f"jdbc:postgresql://{host}:{url.port or 5432}/{name}",
        properties=properties,
        secrets=(password,) if password else (),
    )


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
