"""What differs between the databases of sources: one class each, of these methods."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, ClassVar
from urllib.parse import quote as quote_part
from urllib.parse import urlencode
from zoneinfo import ZoneInfo

import sqlalchemy as sa
from pyspark.sql import types as T  # noqa: N812
from sqlalchemy import types
from sqlalchemy.engine import URL, Dialect, Engine

from backlogctl.config import Source, SourceLimits
from backlogctl.spark_backfill.spark.frames import quote

TIME_FORMAT = "yyyy-MM-dd'T'HH:mm:ss.SSSSSS'Z'"
TIME_SHAPE = (
    r"^\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}(:\d{2}([.]\d{1,6})?)?( ?([Zz]|[+-]\d{2}(:?\d{2})?))?$"
)
_ZONED_SHAPE = r"([Zz]|[+-]\d{2}(:?\d{2})?)$"
# A server that has not even refused a statement this long after its timeout has vanished.
ANSWER_SECONDS = 60


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


_SPARK_TYPES: dict[ColumnKind, T.DataType] = {
    ColumnKind.INTEGER: T.LongType(),
    ColumnKind.BOOLEAN: T.BooleanType(),
    ColumnKind.FLOAT: T.FloatType(),
    ColumnKind.DOUBLE: T.DoubleType(),
    ColumnKind.BYTES: T.BinaryType(),
}


@dataclass(frozen=True, slots=True)
class SourceColumn:
    """A column. `precision` and `scale` are those of a declared decimal; `is_uuid`: of a type for
    them, which is read as text; `is_unsigned`: whole numbers up to 2^64 - 1; `is_listed`: words of
    a list, in whose order they are sorted."""

    name: str
    kind: ColumnKind
    nullable: bool = True
    zoned: bool = False
    precision: int | None = None
    scale: int | None = None
    is_uuid: bool = False
    is_unsigned: bool = False
    is_listed: bool = False

    @property
    def spark_type(self) -> T.DataType:
        """The type under which SQL expressions of the configuration see it."""
        if self.is_unsigned:
            return T.DecimalType(20, 0)
        return _SPARK_TYPES.get(self.kind, T.StringType())


@dataclass(frozen=True, slots=True)
class JdbcAccess:
    """How Spark reads a source. The password is a property, never a part of the URL.

    The driver's own parameters are part of it: where ranges are given Spark passes the names of
    properties in small letters, and drivers do not know them (fault 185).
    """

    url: str
    properties: Mapping[str, str] = field(repr=False)
    secrets: tuple[str, ...] = field(repr=False, default=())


class SourceDatabase(ABC):
    """How a database's columns leave it as exact text, and how it is reached, read only.

    SQL is passed and returned as text; `q` is a column's quoted name.
    """

    name: ClassVar[str]
    dialect: ClassVar[Dialect]
    integer_type: ClassVar[str]  # in CAST
    text_type: ClassVar[str]
    compares_times: ClassVar[bool] = True  # whether its time columns are times to it, too
    has_uuids: ClassVar[bool] = True  # as a type of its own

    def quote_name(self, name: str) -> str:
        """An identifier, always quoted, by the database's own rules."""
        return str(self.dialect.identifier_preparer.quote_identifier(name))

    def quote_text(self, text: str) -> str:
        """Text as a literal."""
        literal = sa.literal(text, types.String())
        return str(literal.compile(dialect=self.dialect, compile_kwargs={"literal_binds": True}))

    @abstractmethod
    def open_engine(self, url: URL, database: str, limits: SourceLimits) -> Engine:
        """An engine whose connections read only, with the statement timeout."""

    @abstractmethod
    def make_access(self, url: URL, database: str, source: Source) -> JdbcAccess:
        """The same for Spark.

        Raises:
            ConfigurationError: something in the URL has no counterpart in JDBC.
        """

    def list_views(self, inspector: Any, schema: str | None) -> list[str]:
        """Names of what is read as a table, and is none."""
        return list(inspector.get_view_names(schema))

    def read_column(self, item: Mapping[str, Any]) -> SourceColumn:
        """A column as SQLAlchemy's inspector describes it."""
        kind = item["type"]
        found = self.find_kind(kind)
        is_decimal = found is ColumnKind.DECIMAL
        return SourceColumn(
            name=item["name"],
            kind=found,
            nullable=bool(item.get("nullable", True)),
            zoned=self.is_zoned(kind),
            precision=getattr(kind, "precision", None) if is_decimal else None,
            scale=getattr(kind, "scale", None) if is_decimal else None,
            is_uuid=self.has_uuids and isinstance(kind, types.Uuid),
            is_unsigned=found is ColumnKind.INTEGER and self.is_unsigned(kind),
        )

    def find_kind(self, kind: types.TypeEngine[Any]) -> ColumnKind:
        """How a column of this type is read."""
        match kind:
            case types.Boolean():
                return ColumnKind.BOOLEAN
            case types.Integer():
                return ColumnKind.INTEGER
            case types.Float() | types.REAL() | types.Double():
                return ColumnKind.DOUBLE
            case types.Numeric():
                return ColumnKind.DECIMAL
            case types.DateTime():
                return ColumnKind.TIME
            case types.Date():
                return ColumnKind.DATE
            case types.LargeBinary() | types.BINARY() | types.VARBINARY():
                return ColumnKind.BYTES
            case types.Enum() | types.ARRAY():
                return ColumnKind.OTHER
            case types.String():
                return ColumnKind.TEXT
        return ColumnKind.OTHER

    def is_zoned(self, kind: types.TypeEngine[Any]) -> bool:
        """Whether a column of times says instants, not what a clock on a wall shows."""
        return bool(getattr(kind, "timezone", False))

    def is_unsigned(self, kind: types.TypeEngine[Any]) -> bool:
        """Whether its whole numbers go beyond 63 bits."""
        return False

    @abstractmethod
    def render(self, column: SourceColumn, q: str, timezone: str) -> str:
        """The column's value as it leaves the database."""

    @abstractmethod
    def flag(self, column: SourceColumn, q: str) -> str:
        """A condition: the value cannot be read exactly. "" where all can."""

    @abstractmethod
    def explain_flag(self, column: SourceColumn) -> str:
        """What `flag` found."""

    def wire_type(self, column: SourceColumn) -> str:
        """Spark's type of what `render` gives."""
        return column.spark_type.simpleString()

    def normalise(self, column: SourceColumn, raw: str, timezone: str) -> tuple[str, list[str]]:
        """Spark SQL of the value in its normal form, and of why it has none."""
        return raw, []

    @abstractmethod
    def quote_value(self, column: SourceColumn, q: str) -> str:
        """SQL that makes a literal of each value."""

    def compare_text(self, q: str, text: str) -> str:
        """A condition on a column that is read as text."""
        return f"CAST({q} AS {self.text_type}) = {self.quote_text(text)}"

    def compare_boolean(self, q: str, wanted: bool) -> str:
        """A condition on a column of true and false."""
        return f"{q} = {int(wanted):d}"

    def compare_time(
        self, column: SourceColumn, q: str, sign: str, at: datetime, timezone: str
    ) -> Iterator[str]:
        """Conditions that an index can serve, on the safe side. Only where it compares times."""
        raise NotImplementedError

    def is_undated(self, column: SourceColumn, q: str) -> str:
        """A condition: the row's time says nothing, so that it lies in no bounds."""
        return f"{q} IS NULL"

    def has_number(self, q: str) -> str:
        """A condition: the column of whole numbers holds one."""
        return f"{q} IS NOT NULL"

    def find_instant(self, column: SourceColumn, q: str, timezone: str) -> str:
        """SQL of an instant that `read_instant` takes."""
        return q

    def read_instant(self, column: SourceColumn, value: datetime, timezone: str) -> datetime:
        """The instant in UTC that the engine gave for `find_instant`."""
        return value.astimezone(UTC)

    def find_renderer(self, column: SourceColumn) -> Callable[[bytes], str | None] | None:
        """What makes a literal of an identity in the log, to look rows up by; it gives None for one
        that no row can have. None where rows cannot be looked up by this column."""
        if column.is_uuid:
            return self._render_uuid
        match column.kind:
            case ColumnKind.INTEGER:
                return _render_unsigned if column.is_unsigned else _render_integer
            case ColumnKind.TEXT:
                return self._render_text
        return None

    def _render_uuid(self, identity: bytes) -> str | None:
        # As the database prints it: in other forms no row has it.
        found = re.fullmatch(rb"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", identity)
        return self.quote_text(identity.decode()) if found else None

    def _render_text(self, identity: bytes) -> str | None:
        try:
            text = identity.decode()
        except UnicodeDecodeError:
            return None
        return None if "\0" in text else self.quote_text(text)


def _render_integer(identity: bytes) -> str | None:
    try:
        number = int(identity)
    except ValueError:
        return None  # no row can have it
    return str(number) if -(2**63) <= number < 2**63 else None


def _render_unsigned(identity: bytes) -> str | None:
    return identity.decode() if identity.isdigit() and int(identity) < 2**64 else None


def make_jdbc_url(kind: str, url: URL, port: int, parameters: Mapping[str, str]) -> str:
    """JDBC's URL of a server, without user and password; see `JdbcAccess` for the parameters."""
    host = url.host or "localhost"
    host = f"[{host}]" if ":" in host and not host.startswith("[") else host
    name = quote_part(url.database or "", safe="")
    query = urlencode(parameters, quote_via=quote_part)
    return f"jdbc:{kind}://{host}:{url.port or port}/{name}{f'?{query}' if query else ''}"


def list_login(url: URL) -> dict[str, str]:
    """User and password as properties, as far as the URL has them."""
    found = {"user": url.username, "password": url.password}
    return {name: str(value) for name, value in found.items() if value}


def show_wall(at: datetime, timezone: str, slack: timedelta) -> str:
    """What a clock on a wall shows then, so much later."""
    return (at + slack).astimezone(ZoneInfo(timezone)).replace(tzinfo=None).isoformat(" ")


def parse_time_text(text: str, timezone: str) -> str:
    """Spark SQL of text in ISO 8601 in the normal form; without a zone it is wall clock in
    `timezone`.

    NULL where it is none. The session's time zone is UTC.
    """
    shaped = f"CASE WHEN {text} RLIKE {quote(TIME_SHAPE)} THEN {text} END"
    at, zoned = f"try_to_timestamp({shaped})", f"{shaped} RLIKE {quote(_ZONED_SHAPE)}"
    utc = f"CASE WHEN {zoned} THEN {at} ELSE to_utc_timestamp({at}, {quote(timezone)}) END"
    return f"date_format({utc}, {quote(TIME_FORMAT)})"


def tell_lost(before: str, after: str, reason: str) -> str:
    """Spark SQL: the reason where there was a value, and none is left."""
    return f"CASE WHEN {before} IS NOT NULL AND {after} IS NULL THEN {quote(reason)} END"
