"""Which rows of a table are read, as SQL that the database can serve from an index."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

from backlog.clock import format_time
from backlog.errors import ConfigurationError
from spark_backfill.sources.reflection import (
    POSTGRESQL,
    SQLITE,
    ColumnKind,
    SourceColumn,
    SourceTable,
    check_columns,
    quote_name,
    quote_text,
)

if TYPE_CHECKING:
    from backlog.config import StreamSource
    from spark_backfill.messages.windows import Bounds

Wanted = bool | int | str

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_UNITS = {"s": timedelta(seconds=1), "ms": timedelta(milliseconds=1)}
_KINDS: Mapping[ColumnKind, type[Wanted]] = {
    ColumnKind.TEXT: str,
    ColumnKind.OTHER: str,
    ColumnKind.INTEGER: int,
    ColumnKind.BOOLEAN: bool,
}
_WORDS: Mapping[type[Wanted], str] = {str: "text", int: "a whole number", bool: "true or false"}
# No database holds a larger one.
_LARGEST = 2**63


def join_conditions(*conditions: str) -> str:
    """All of them; empty ones ask for nothing."""
    return " AND ".join(f"({condition})" for condition in conditions if condition)


def filter_wanted(table: SourceTable, where: Mapping[str, Wanted]) -> str:
    """The rows whose columns have these values; see `check_wanted`."""
    return " AND ".join(
        _render_wanted(table.dialect, table.column(name), value) for name, value in where.items()
    )


def check_wanted(table: SourceTable, where: Mapping[str, Wanted], subject: str) -> None:
    """Refuses values that a column cannot have.

    Raises:
        ConfigurationError: names the column.
    """
    check_columns(table, where, subject)
    for name, value in where.items():
        kind = table.column(name).kind
        wanted = _KINDS.get(kind)
        if wanted is None:
            raise ConfigurationError(
                f"the column {name!r} is {kind}, and cannot be compared exactly",
                subject=subject,
                hint="name columns of text, whole numbers or booleans",
            )
        if type(value) is not wanted:
            raise ConfigurationError(
                f"the column {name!r} is {kind}",
                subject=f"{subject}.{name}",
                hint=f"write {_WORDS[wanted]}" + (", quoted" if wanted is str else ""),
            )
        if isinstance(value, str) and "\0" in value:
            raise ConfigurationError("no text holds a NUL", subject=f"{subject}.{name}")
        if isinstance(value, int) and not -_LARGEST <= value < _LARGEST:
            raise ConfigurationError("no column holds such a number", subject=f"{subject}.{name}")


def is_indexable(table: SourceTable, time_column: str) -> bool:
    """Whether the database can compare the column's times: else Spark reads the whole table."""
    kind = table.column(time_column).kind
    return kind is ColumnKind.INTEGER or (table.dialect == POSTGRESQL and kind is ColumnKind.TIME)


def filter_times(table: SourceTable, source: StreamSource, bounds: Bounds, timezone: str) -> str:
    """The bounds as SQL that an index can serve; empty where Spark has to filter.

    Rows without a time are kept, where that says nothing of their message: they are candidates
    until evidence explains them.
    """
    if not is_indexable(table, source.time_column):
        return ""
    column = table.column(source.time_column)
    q = quote_name(table.dialect, column.name)
    if column.kind is ColumnKind.INTEGER:
        assert source.time_unit is not None
        parts = list(_compare_numbers(q, bounds, _UNITS[source.time_unit]))
    else:
        parts = list(_compare_times(q, column, bounds, timezone))
    if source.sent_time:
        # Not sent yet: its sender will send it. A partial index of what was sent serves this.
        parts = parts or [f"{q} IS NOT NULL"]
    if not parts:
        return ""
    found = [" AND ".join(parts)]
    if not source.sent_time:
        found.append(f"{q} IS NULL")
    if table.dialect == SQLITE:
        # A number column holds text as well, which sorts behind all numbers: to be told as wrong.
        found.append(f"{q} >= ''")
    return " OR ".join(f"({part})" for part in found)


def find_number_time(number: object, source: StreamSource) -> datetime | None:
    """The time that a column of whole numbers says; None where it is none."""
    assert source.time_unit is not None
    try:
        return _EPOCH + int(number) * _UNITS[source.time_unit] if isinstance(number, int) else None
    except OverflowError:
        return None


def _render_wanted(dialect: str, column: SourceColumn, value: Wanted) -> str:
    q = quote_name(dialect, column.name)
    match column.kind:
        case ColumnKind.TEXT:
            return f"{q} = {quote_text(dialect, str(value))}"
        case ColumnKind.OTHER:
            kind = "text" if dialect == POSTGRESQL else "TEXT"
            return f"CAST({q} AS {kind}) = {quote_text(dialect, str(value))}"
        case ColumnKind.BOOLEAN if dialect == POSTGRESQL:
            return q if value else f"NOT {q}"
    return f"{q} = {int(value):d}"


def _compare_numbers(q: str, bounds: Bounds, unit: timedelta) -> Iterator[str]:
    if bounds.lower is not None:
        yield f"{q} >= {(bounds.lower - _EPOCH) // unit:d}"
    if bounds.upper is not None:
        yield f"{q} <= {-((_EPOCH - bounds.upper) // unit):d}"


def _compare_times(q: str, column: SourceColumn, bounds: Bounds, timezone: str) -> Iterator[str]:
    for at, sign, slack in ((bounds.lower, ">=", -1), (bounds.upper, "<=", 1)):
        if at is None:
            continue
        exact = f"CAST({quote_text(POSTGRESQL, format_time(at))} AS timestamptz)"
        if column.zoned:
            yield f"{q} {sign} {exact}"
            continue
        # An index serves the first; the second is right in the doubled hour too.
        wall = (at + timedelta(hours=2 * slack)).astimezone(ZoneInfo(timezone))
        rough = quote_text(POSTGRESQL, wall.replace(tzinfo=None).isoformat(" "))
        zone = quote_text(POSTGRESQL, timezone)
        yield f"{q} {sign} CAST({rough} AS timestamp)"
        yield f"({q} AT TIME ZONE {zone}) {sign} {exact}"
