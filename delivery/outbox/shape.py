"""Whether the table is there as this version needs it: an application's migrations may be older."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection, inspect
from sqlalchemy.schema import CreateIndex

from delivery.outbox.databases import Database, OutboxDatabaseError
from delivery.outbox.tables import messages


@dataclass(frozen=True, slots=True)
class Shape:
    """What is missing; `indexes` are the statements that make them.

    Attributes:
        is_there: whether there is a table at all.
        database: the kind and version of the database, such as `MariaDB 10.5`.
        can_skip_locked: whether senders pass by rows that another holds.
    """

    is_there: bool
    columns: tuple[str, ...]
    indexes: tuple[str, ...]
    database: str
    can_skip_locked: bool


def read_shape(database: Database) -> Shape:
    """Compares the table with `tables.py`; reads no row.

    Raises:
        OutboxDatabaseError: the database does not answer.
    """
    with database.begin() as connection:
        is_there = inspect(connection).has_table(messages.name)
        return Shape(
            is_there,
            _find_columns(connection) if is_there else (),
            _find_indexes(connection) if is_there else (),
            _describe(connection),
            database.can_skip_locked(connection),
        )


def require_shape(database: Database) -> None:
    """Whether rows of the table can be claimed and marked.

    Raises:
        OutboxDatabaseError: there is no table, it lacks columns, or the database does not answer.
    """
    shape = read_shape(database)
    if not shape.is_there:
        why, hint = "its table is missing", database.make_tables_hint
    elif shape.columns:
        why = f"its table is of an older version, without {', '.join(shape.columns)}"
        hint = "add these columns of delivery/outbox/tables.py by the application's migrations"
    else:
        return
    raise OutboxDatabaseError(why, subject=database.label, hint=hint)


def _find_columns(connection: Connection) -> tuple[str, ...]:
    there = {column["name"] for column in inspect(connection).get_columns(messages.name)}
    return tuple(column.name for column in messages.c if column.name not in there)


def _find_indexes(connection: Connection) -> tuple[str, ...]:
    """By their columns: a migration may have named them otherwise."""
    there = [index["column_names"] for index in inspect(connection).get_indexes(messages.name)]
    missing = (
        index
        for index in messages.indexes
        if not any(names[: len(index.columns)] == list(index.columns.keys()) for names in there)
    )
    statements = (CreateIndex(index).compile(dialect=connection.dialect) for index in missing)
    return tuple(sorted(" ".join(str(one).split()) for one in statements))


def _describe(connection: Connection) -> str:
    dialect = connection.dialect
    is_mariadb = getattr(dialect, "is_mariadb", False)
    names = {"postgresql": "PostgreSQL", "mysql": "MySQL", "sqlite": "SQLite"}
    name = "MariaDB" if is_mariadb else names.get(dialect.name, dialect.name)
    version = ".".join(str(part) for part in (dialect.server_version_info or ())[:2])
    return f"{name} {version}".strip()
