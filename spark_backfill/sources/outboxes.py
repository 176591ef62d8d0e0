"""Outboxes of other projects, known by the columns of their table: `init` writes their `source`.

What is known of each stands in `outboxes.yaml`, and nowhere else.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import sqlalchemy as sa
import yaml
from pydantic import TypeAdapter
from sqlalchemy.engine import Engine
from sqlalchemy.exc import DBAPIError

from backlogctl.config.template import FILL_IN, is_topic, write_text
from backlogctl.errors import Refused
from backlogctl.spark_backfill.failures import translating
from backlogctl.spark_backfill.sources.databases import ColumnKind
from backlogctl.spark_backfill.sources.reflection import (
    SourceTable,
    reflect_table,
    telling_access,
)

_FILE = Path(__file__).with_suffix(".yaml")
# More topics than a person would want as streams.
MOST_TOPICS = 50
_SYSTEM = ("information_schema", "pg_catalog")
_PLACE = re.compile(r"<(\w+)>")
_IN_SQL = re.compile(r"`<(\w+)>`")


@dataclass(frozen=True, slots=True)
class KnownOutbox:
    """An entry of `outboxes.yaml`, whose head says what each means."""

    name: str
    project: str
    columns: frozenset[str]
    without: frozenset[str] = frozenset()
    topic_column: str = ""
    topic_prefix: str = ""
    time: str = ""
    stream: str = ""
    source: str = ""
    check: tuple[str, ...] = ()
    why_not: str = ""

    def fits(self, columns: Iterable[str]) -> bool:
        names = set(map(str.lower, columns))
        return self.columns <= names and not self.without & names


@dataclass(frozen=True, slots=True)
class FoundOutbox:
    """A table of such an outbox.

    Attributes:
        names: its columns by what the entry calls them.
        time: the column of a stream's time; "" where the table has none, or several.
        kinds: what its `topic_column` holds; None where that is unknown, or it has none.
        is_empty: whether it has no row.
    """

    known: KnownOutbox
    database: str
    table: str
    names: Mapping[str, str]
    time: str
    kinds: tuple[str, ...] | None
    is_empty: bool

    @property
    def why_not(self) -> str:
        """Why nothing can be rebuilt from it; "" where that is not known."""
        return self.known.why_not or (_EMPTY if self.is_empty else "")

    @property
    def is_complete(self) -> bool:
        """Whether the stream of a topic can be written as it is."""
        return bool(self.known.topic_column) and FILL_IN not in self.render_source("topic")

    @property
    def topics(self) -> tuple[str, ...]:
        """Those that Kafka takes: to others nothing was ever sent."""
        topics = (self.known.topic_prefix + kind for kind in self.kinds or ())
        return tuple(topic for topic in topics if is_topic(topic))

    def render_source(self, topic: str = FILL_IN) -> str:
        """What stands under `source` of the stream of a topic, as lines of YAML."""
        places = {
            **self.names,
            "database": self.database,
            "table": self.table,
            "topic": topic,
            "kind": topic.removeprefix(self.known.topic_prefix),
            "time": self.time or FILL_IN,
        }
        # In backticks stands a name within SQL.
        text = _IN_SQL.sub(lambda at: f"`{places[at[1]]}`", self.known.source)
        return _PLACE.sub(lambda at: write_text(places[at[1]]), text)

    def list_checks(self) -> list[str]:
        """What a person must look at; sentences."""
        is_missing = "<time>" in self.known.source and not self.time
        return [*([_NO_TIME] if is_missing else []), *self.known.check]


_EMPTY = (
    "it has no rows now. If each is deleted once it is sent, that stays so: nothing of them is "
    "left. Else look again when it has some."
)
_NO_TIME = (
    "The table has no column that alone is a time, and a rebuild needs one: add one that is set as "
    "a row is written (created_at timestamptz NOT NULL DEFAULT now()). Older rows have none of "
    "their own."
)


@cache
def list_known() -> tuple[KnownOutbox, ...]:
    """All entries, in the order of the file."""
    entries = yaml.safe_load(_FILE.read_text(encoding="utf-8"))
    return TypeAdapter(tuple[KnownOutbox, ...]).validate_python(entries)


def find_outboxes(engine: Engine, database: str) -> list[FoundOutbox]:
    """The outboxes in a database: in each schema that its user sees.

    Raises:
        ConfigurationError: the URL names a wrong database, user or password.
        SourceError: the database could not be read.
        Refused: none is known by its columns.
    """
    found = []
    with (
        translating("look for outboxes", subject=f"database {database}", hint="is it reachable?"),
        telling_access(engine, database),
    ):
        inspector = sa.inspect(engine)
        schemas: list[str | None] = [None]
        # What other databases name so are databases of their own.
        if engine.dialect.name == "postgresql":
            own = inspector.default_schema_name
            schemas += [one for one in inspector.get_schema_names() if one not in (own, *_SYSTEM)]
        for schema in schemas:
            for (_, table), columns in inspector.get_multi_columns(schema=schema).items():
                names = [column["name"] for column in columns]
                known = next((one for one in list_known() if one.fits(names)), None)
                if known is not None:
                    found.append((known, table if schema is None else f"{schema}.{table}"))
    if not found:
        told = ", ".join(one.name for one in list_known())
        raise Refused(
            "no table has the columns of an outbox that is known",
            subject=f"database {database}",
            hint=f"known are {told}; another one is described by hand: docs/messages.md",
        )
    return [_describe(engine, known, reflect_table(engine, database, at)) for known, at in found]


def _describe(engine: Engine, known: KnownOutbox, table: SourceTable) -> FoundOutbox:
    names = {column.name.lower(): column.name for column in table.columns}
    times = [column.name for column in table.columns if column.kind is ColumnKind.TIME]
    time = names[known.time] if known.time else times[0] if len(times) == 1 else ""
    rows = sa.select().select_from(sa.table(table.name, schema=table.schema))
    some = _read(engine, rows.add_columns(sa.literal(1)).limit(1))
    kinds = None
    if known.topic_column:
        kind: sa.ColumnClause[Any] = sa.column(names[known.topic_column])
        asked = rows.add_columns(kind).where(kind.is_not(None)).distinct()
        kinds = _read(engine, asked.limit(MOST_TOPICS + 1))
        if kinds is not None and len(kinds) > MOST_TOPICS:
            kinds = None
    return FoundOutbox(known, table.database, table.label, names, time, kinds, some == ())


def _read(engine: Engine, asked: sa.Select[Any]) -> tuple[str, ...] | None:
    """The values of the first column; None where the database does not say in time."""
    try:
        with engine.connect() as connection:
            return tuple(sorted(map(str, connection.scalars(asked))))
    except DBAPIError:
        return None
