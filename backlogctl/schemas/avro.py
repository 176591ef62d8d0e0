"""Avro: rows to its bytes, and back, by fastavro; each value goes straight to its own type."""

from __future__ import annotations

import json
import re
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime, time
from decimal import Context, Decimal, Inexact, InvalidOperation
from io import BytesIO
from typing import Any, NoReturn
from uuid import UUID

import fastavro
from fastavro.schema import SchemaParseException

from backlogctl.errors import ConfigurationError
from backlogctl.schemas.frames import Unfit, Unreadable
from backlogctl.schemas.registry import WriterSchema
from backlogctl.schemas.shapes import DEEPEST, TEXT, Entries, Items, Shape

Convert = Callable[[Any], Any]
_WHOLE = re.compile(r"[+-]?\d+")
_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_EXACT = Context(prec=1000, traps=[Inexact, InvalidOperation])
_RANGES = {"int": 2**31, "long": 2**63}
_NAMED = ("record", "error", "enum", "fixed")
# What libraries raise of JSON that is no schema.
_NO_SCHEMA = (ValueError, TypeError, LookupError, AttributeError)


class AvroCodec:
    """One schema, parsed once.

    Raises:
        ConfigurationError: the schema is none.
    """

    def __init__(self, schema: WriterSchema) -> None:
        named: dict[str, Any] = {}
        try:
            for _, text in schema.references:
                fastavro.parse_schema(json.loads(text), named)
            self._schema = fastavro.parse_schema(json.loads(schema.text), named)
            self._named = named
            self._made: dict[str, Convert] = {}
            self._convert = self._compile(self._schema, "")
        except (*_NO_SCHEMA, SchemaParseException) as error:
            raise ConfigurationError(
                f"the schema is no Avro that can be read: {type(error).__name__} {error}".strip(),
                subject="schema",
            ) from None

    @property
    def required(self) -> frozenset[str]:
        """Fields without a default; none where the schema is no record."""
        fields = self._schema.get("fields", ()) if isinstance(self._schema, dict) else ()
        return frozenset(one["name"] for one in fields if "default" not in one)

    @property
    def shape(self) -> Shape:
        """What `decode` gives."""
        return self._find_shape(self._schema, 0)

    def _find_shape(self, schema: Any, depth: int) -> Shape:
        if isinstance(schema, list):
            others = [one for one in schema if one != "null"]
            return self._find_shape(others[0], depth) if len(others) == 1 else TEXT
        if isinstance(schema, str):
            named = self._named.get(schema)
            schema = {"type": schema} if named is None else named
        kind = schema["type"]
        if isinstance(kind, list | dict):
            return self._find_shape(kind, depth)
        if depth > DEEPEST:
            return TEXT
        match kind:
            case "record" | "error":
                fields = schema["fields"]
                return {one["name"]: self._find_shape(one["type"], depth + 1) for one in fields}
            case "array":
                return Items(self._find_shape(schema["items"], depth + 1))
            case "map":
                return Entries(self._find_shape(schema["values"], depth + 1))
        logical = schema.get("logicalType")
        if logical == "decimal":
            return f"decimal(38,{schema.get('scale', 0)})"
        if kind in self._named and kind not in _SCALARS:
            return self._find_shape(self._named[kind], depth)
        return TEXT if logical else _SHAPES.get(kind, TEXT)

    def encode(self, value: Any) -> bytes:
        """The bytes of a row.

        Raises:
            Unfit: names the field that the schema does not take.
        """
        datum = self._convert(value)
        buffer = BytesIO()
        try:
            fastavro.schemaless_writer(buffer, self._schema, datum)
        except (ValueError, TypeError, OverflowError, KeyError) as error:
            raise Unfit(f"the schema does not take it ({type(error).__name__})") from None
        return buffer.getvalue()

    def decode(self, raw: bytes) -> Any:
        """A value as JSON can say it: decimals are their digits, times ISO 8601, bytes base64.

        Raises:
            Unreadable
        """
        return _show(self._read(raw))

    def encode_again(self, raw: bytes) -> bytes:
        """What this library writes for the same datum."""
        buffer = BytesIO()
        fastavro.schemaless_writer(buffer, self._schema, self._read(raw))
        return buffer.getvalue()

    def _read(self, raw: bytes) -> Any:
        buffer = BytesIO(raw)
        try:
            found = fastavro.schemaless_reader(buffer, self._schema, None)
        except (EOFError, ValueError, IndexError, TypeError, OverflowError, KeyError) as error:
            raise Unreadable(f"it is not of its schema: {type(error).__name__}") from None
        if left := len(raw) - buffer.tell():
            raise Unreadable(f"it has {left} bytes more than its schema")
        return found

    def _compile(self, schema: Any, path: str) -> Convert:
        if isinstance(schema, list):
            return self._compile_union(schema, path)
        if isinstance(schema, str):
            if schema in self._named:
                return self._by_name(schema, path)
            schema = {"type": schema}
        kind = schema["type"]
        if isinstance(kind, list | dict):
            return self._compile(kind, path)
        if kind in _NAMED and schema["name"] not in self._named:
            self._named[schema["name"]] = schema
        match kind:
            case "record" | "error":
                return self._compile_record(schema, path)
            case "array":
                return _make_list(self._compile(schema["items"], path), path)
            case "map":
                return _make_map(self._compile(schema["values"], path), path)
            case "enum":
                return _make_choice(schema["symbols"], path)
        if kind in self._named and kind not in _SCALARS:
            return self._by_name(kind, path)
        return _find_scalar(kind, schema, path)

    def _by_name(self, name: str, path: str) -> Convert:
        """Of a type that is defined elsewhere, perhaps around this place."""

        def convert(value: Any) -> Any:
            if name not in self._made:
                self._made[name] = self._compile(self._named[name], path)
            return self._made[name](value)

        return convert

    def _compile_record(self, schema: Mapping[str, Any], path: str) -> Convert:
        fields = []
        known = frozenset(one["name"] for one in schema["fields"])
        for one in schema["fields"]:
            name = one["name"]
            here = f"{path}.{name}" if path else name
            has = "default" in one
            made = self._compile(one["type"], here)
            fields.append((name, here, made, has, _read_default(one) if has else None))

        def convert(value: Any) -> dict[str, Any]:
            if not isinstance(value, Mapping):
                raise _unfit(path, value, "a record")
            datum = {}
            if strange := [name for name in value if name not in known]:
                raise Unfit(f"field {path + '.' if path else ''}{strange[0]}: the schema has none")
            for name, here, made, has_default, default in fields:
                if name in value:
                    datum[name] = made(value[name])
                elif has_default:
                    datum[name] = default
                else:
                    raise Unfit(f"field {here}: the row has none, and the schema no default")
            return datum

        return convert

    def _compile_union(self, branches: Sequence[Any], path: str) -> Convert:
        takes_null = "null" in branches
        others = [one for one in branches if one != "null"]
        made = [self._compile(one, path) for one in others]
        if len(made) == 1:
            only = made[0]

            def convert_one(value: Any) -> Any:
                if value is None and takes_null:
                    return None
                return only(value)

            return convert_one
        names = [one.get("name", one["type"]) if isinstance(one, dict) else one for one in others]
        ways = list(zip(names, made, strict=True))
        # Text that looks like a number, too, is text where the schema has that.
        of_text = sorted(ways, key=lambda way: way[0] != "string")

        def convert(value: Any) -> Any:
            if value is None and takes_null:
                return None
            for name, one in of_text if isinstance(value, str) else ways:
                try:
                    found = one(value)
                except Unfit:
                    continue
                return (name, found) if isinstance(found, dict) else found
            raise _unfit(path, value, f"one of {', '.join(map(str, names))}")

        return convert


def _unfit(path: str, value: Any, wanted: str) -> Unfit:
    """Values are data: they are not quoted."""
    name = f"field {path}" if path else "the value"
    if value is None:
        return Unfit(f"{name}: is NULL, and the schema takes none")
    return Unfit(f"{name}: the schema has {wanted}, the row {type(value).__name__}")


def _read_default(field: Mapping[str, Any]) -> Any:
    """As the writer takes it: JSON writes bytes as text, one letter a byte."""
    kind = field["type"]
    if isinstance(kind, list):
        kind = kind[0] if kind else kind
    name = kind.get("type") if isinstance(kind, dict) else kind
    default = field["default"]
    if name in ("bytes", "fixed") and isinstance(default, str):
        return default.encode("iso-8859-1")
    return default


def _make_list(item: Convert, path: str) -> Convert:
    def convert(value: Any) -> list[Any]:
        if not isinstance(value, list | tuple):
            raise _unfit(path, value, "an array")
        return [item(one) for one in value]

    return convert


def _make_map(item: Convert, path: str) -> Convert:
    def convert(value: Any) -> dict[str, Any]:
        # Arrow gives maps as pairs, and structs as mappings.
        pairs = value.items() if isinstance(value, Mapping) else value
        if not isinstance(value, Mapping | list):
            raise _unfit(path, value, "a map")
        return {name: item(one) for name, one in pairs}

    return convert


def _make_choice(symbols: Sequence[str], path: str) -> Convert:
    known = frozenset(symbols)

    def convert(value: Any) -> str:
        if not isinstance(value, str) or value not in known:
            raise (
                _unfit(path, value, "an enum")
                if value is None
                else Unfit(f"field {path}: is no symbol of the enum")
            )
        return value

    return convert


def _find_scalar(kind: str, schema: Mapping[str, Any], path: str) -> Convert:
    logical = schema.get("logicalType")
    make = _LOGICAL.get((logical, kind)) if isinstance(logical, str) else None
    read = make(schema) if make else _SCALARS[kind](schema)
    wanted = f"{kind} ({logical})" if make else kind

    def convert(value: Any) -> Any:
        try:
            return read(value)
        except (ValueError, TypeError, ArithmeticError):
            raise _unfit(path, value, wanted) from None

    return convert


def _refuse(value: Any) -> NoReturn:
    raise TypeError(type(value).__name__)


def _read_number(kind: str) -> Convert:
    limit = _RANGES[kind]

    def read(value: Any) -> int:
        if type(value) is not int:
            digits = isinstance(value, str) and _WHOLE.fullmatch(value)
            whole = isinstance(value, Decimal) and value == value.to_integral_value()
            if not (digits or whole):
                _refuse(value)
        number = int(value)
        return number if -limit <= number < limit else _refuse(value)

    return read


def _read_float(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, float | int | str | Decimal):
        _refuse(value)
    return float(value)


def _read_decimal(schema: Mapping[str, Any]) -> Convert:
    unit = Decimal(1).scaleb(-int(schema.get("scale", 0)))

    def read(value: Any) -> Decimal:
        if isinstance(value, bool) or not isinstance(value, str | int | Decimal):
            _refuse(value)
        # No digit is lost: what has more than the schema's scale does not fit.
        return Decimal(value).quantize(unit, context=_EXACT)

    return read


def read_moment(value: Any) -> datetime:
    """A point in time; text without a zone is UTC, as the database's times are here."""
    if isinstance(value, str):
        value = datetime.fromisoformat(value)
    if not isinstance(value, datetime):
        _refuse(value)
    return value if value.tzinfo is not None else value.replace(tzinfo=UTC)


def _read_count(read: Convert) -> Convert:
    """A number is what the schema counts; anything else is read."""
    return lambda value: value if type(value) is int else read(value)


def read_date(value: Any) -> date:
    """A day."""
    if isinstance(value, str):
        return date.fromisoformat(value)
    return _refuse(value) if isinstance(value, datetime) or not isinstance(value, date) else value


def _read_clock(value: Any) -> time:
    return time.fromisoformat(value) if isinstance(value, str) else _only(time)(value)


def _only(*kinds: type) -> Convert:
    return lambda value: value if type(value) in kinds else _refuse(value)


def _read_uuid(value: Any) -> str:
    if _UUID.fullmatch(value) is None:
        raise ValueError
    return str(value)  # as it is written


def _read_fixed(schema: Mapping[str, Any]) -> Convert:
    size = schema["size"]
    return lambda value: value if type(value) is bytes and len(value) == size else _refuse(value)


_SCALARS: Mapping[str, Callable[[Mapping[str, Any]], Convert]] = {
    "null": lambda _: _only(type(None)),
    "boolean": lambda _: _only(bool),
    "int": lambda _: _read_number("int"),
    "long": lambda _: _read_number("long"),
    "float": lambda _: _read_float,
    "double": lambda _: _read_float,
    "string": lambda _: _only(str),
    "bytes": lambda _: _only(bytes),
    "fixed": _read_fixed,
}
_SHAPES: Mapping[str, Shape] = {
    "boolean": "boolean",
    "int": "bigint",
    "long": "bigint",
    "float": "double",
    "double": "double",
}
_MOMENT = _read_count(read_moment)
_LOCAL = _read_count(lambda value: read_moment(value).replace(tzinfo=None))
_LOGICAL: Mapping[tuple[str, str], Callable[[Mapping[str, Any]], Convert]] = {
    ("decimal", "bytes"): _read_decimal,
    ("decimal", "fixed"): _read_decimal,
    ("date", "int"): lambda _: _read_count(read_date),
    ("time-millis", "int"): lambda _: _read_count(_read_clock),
    ("time-micros", "long"): lambda _: _read_count(_read_clock),
    ("timestamp-millis", "long"): lambda _: _MOMENT,
    ("timestamp-micros", "long"): lambda _: _MOMENT,
    ("local-timestamp-millis", "long"): lambda _: _LOCAL,
    ("local-timestamp-micros", "long"): lambda _: _LOCAL,
    ("uuid", "string"): lambda _: _read_uuid,
}


def _show(value: Any) -> Any:
    match value:
        case dict():
            return {str(name): _show(item) for name, item in value.items()}
        case list() | tuple():
            return [_show(item) for item in value]
    return show_scalar(value)


def show_scalar(value: Any) -> Any:
    """What JSON has no type for, as text."""
    match value:
        case Decimal() | UUID():
            return str(value)
        case datetime() | date() | time():
            return value.isoformat()
        case bytes():
            return b64encode(value).decode()
    return value
