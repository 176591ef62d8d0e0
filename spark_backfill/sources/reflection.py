"""Source tables as their database describes them: names are checked, then quoted, never pasted."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import URL, Engine, Inspector, make_url
from sqlalchemy.exc import DBAPIError

from backlogctl.config import Source, Stream, StreamSource
from backlogctl.errors import ConfigurationError, SourceError
from backlogctl.spark_backfill.failures import translating
from backlogctl.spark_backfill.sources.databases import JdbcAccess, SourceColumn, SourceDatabase
from backlogctl.spark_backfill.sources.mysql import MySql
from backlogctl.spark_backfill.sources.postgresql import PostgreSql
from backlogctl.spark_backfill.sources.sqlite import Sqlite
from backlogctl_delivery.database_failures import Trouble, explain_refusal, find_trouble

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
        has_state = bool(getattr(original, "sqlstate", None))
        if has_state and find_trouble(error, engine.url) is not Trouble.LOGIN:
            raise
        found = explain_refusal(str(original), engine.url, key)
        if found is None:
            raise
        if found.is_wrong_url:
            raise ConfigurationError(found.message, subject=key, hint=found.hint) from None
        raise SourceError(
            found.message, subject=f"database {database}", hint=found.hint, retryable=True
        ) from None


# MariaDB's dialect is one of MySQL's.
_DATABASES: Mapping[str, SourceDatabase] = {
    "postgresql": PostgreSql(),
    "sqlite": Sqlite(),
    "mysql": MySql(),
    "mariadb": MySql(),
}


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

    @property
    def engine(self) -> SourceDatabase:
        """The database that holds it."""
        return _DATABASES[self.dialect]

    @property
    def quoted(self) -> str:
        """Its name for SQL."""
        parts = [self.schema, self.name] if self.schema else [self.name]
        return ".".join(self.engine.quote_name(part) for part in parts if part)

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


def open_engine(source: Source, database: str) -> Engine:
    """A read-only engine of a source, with its statement timeout.

    Raises:
        ConfigurationError: the URL is wrong, or of a database that is not supported.
    """
    url = parse_source_url(source.reveal_url(), database)
    return _DATABASES[url.get_backend_name()].open_engine(url, database, source.limits)


def make_access(source: Source, database: str) -> JdbcAccess:
    """Turns a SQLAlchemy URL into JDBC's.

    Raises:
        ConfigurationError: something in it has no counterpart in JDBC.
    """
    url = parse_source_url(source.reveal_url(), database)
    access = _DATABASES[url.get_backend_name()].make_access(url, database, source)
    common = {
        "fetchsize": str(source.limits.fetch_size),
        "queryTimeout": str(max(1, int(source.limits.statement_timeout.total_seconds()))),
    }
    return replace(access, properties={**common, **access.properties})


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
    if backend not in _DATABASES:
        known = ", ".join(_DATABASES)
        raise ConfigurationError(
            f"{backend} is not supported yet", subject=subject, hint=f"use one of {known}"
        )
    return url


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
        read = _DATABASES[engine.dialect.name].read_column
        columns = tuple(read(item) for item in inspector.get_columns(table, schema))
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
        views = _DATABASES[inspector.dialect.name].list_views(inspector, within)
        names = [*inspector.get_table_names(within), *views]
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


def _is_partial(index: Any) -> bool:
    options = index.get("dialect_options") or {}
    return any(name.endswith("_where") and value is not None for name, value in options.items())
