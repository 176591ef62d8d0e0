"""JSON with a schema: rows to its text, and back; each value is checked by jsonschema."""

from __future__ import annotations

import json
import math
from base64 import b64encode
from collections.abc import Mapping
from datetime import date, datetime
from decimal import Decimal
from typing import Any

from jsonschema.exceptions import SchemaError, best_match
from jsonschema.validators import validator_for
from referencing import Registry, Resource
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT7

from backlogctl.errors import ConfigurationError
from backlogctl.json_text import read_json
from backlogctl.schemas.frames import Unfit, Unreadable
from backlogctl.schemas.registry import WriterSchema
from backlogctl.schemas.shapes import TEXT, Items, Shape


class JsonCodec:
    """One schema.

    Args:
        spaced: rows are written as Python's `json.dumps` does, not as Java's Jackson.

    Raises:
        ConfigurationError: the schema is none.
    """

    def __init__(self, schema: WriterSchema, *, spaced: bool) -> None:
        try:
            main = _read(schema.text)
            kind = validator_for(main)
            kind.check_schema(main)
            others: Registry[Any] = Registry().with_resources(
                (name, Resource.from_contents(_read(text), default_specification=DRAFT7))
                for name, text in schema.references
            )
        except (ValueError, TypeError, LookupError, AttributeError, SchemaError) as error:
            told = str(error).partition("\n")[0]
            raise ConfigurationError(
                f"the schema is no JSON Schema: {told}", subject="schema"
            ) from None
        self._main = main if isinstance(main, Mapping) else {}
        self._validator = kind(main, registry=others)
        self._spaced = spaced

    @property
    def required(self) -> frozenset[str]:
        """Fields that the schema requires."""
        return frozenset(self._main.get("required", ()))

    @property
    def shape(self) -> Shape:
        """What its `properties` say; what a `$ref` or several types describe is text."""
        return _find_shape(self._main)

    def encode(self, value: Any) -> bytes:
        """The text of a row. A text is JSON already, and sent as it is.

        Raises:
            Unfit: names the field that the schema does not take.
        """
        if isinstance(value, str):
            try:
                plain = json.loads(value)
            except ValueError:
                raise Unfit("the value: is no JSON") from None
            self._check(_to_checked(plain))
            return value.encode()
        plain = _to_plain(value)
        self._check(_to_checked(plain))
        return _write(plain, spaced=self._spaced).encode()

    def decode(self, raw: bytes) -> Any:
        """The value as it is written: numbers are `Number`, objects `Members`.

        Raises:
            Unreadable
        """
        try:
            return read_json(raw.decode())
        except (ValueError, RecursionError):
            raise Unreadable("it is no JSON") from None

    def encode_again(self, raw: bytes) -> bytes:
        """What this library writes for the same value."""
        return _write(json.loads(raw, parse_float=Decimal), spaced=self._spaced).encode()

    def _check(self, plain: Any) -> None:
        try:
            if self._validator.is_valid(plain):
                return
            error = best_match(self._validator.iter_errors(plain))
        except Unresolvable:
            raise Unfit("the schema refers to one that its registry does not name") from None
        except (ArithmeticError, TypeError, RecursionError) as failure:
            raise Unfit(f"the schema does not take it ({type(failure).__name__})") from None
        assert error is not None
        place = ".".join(str(part) for part in error.absolute_path)
        # Its message quotes the value, which is data.
        name = f"field {place}" if place else "the value"
        if error.validator == "required":
            lacking = [one for one in error.validator_value if one not in error.instance]
            raise Unfit(f"field {'.'.join(filter(None, (place, lacking[0])))}: the row has none")
        raise Unfit(f"{name}: the schema's `{error.validator}` does not take it")


def _read(text: str) -> Any:
    return json.loads(text, parse_float=Decimal)


_PLAIN = {"integer": "decimal(38,0)", "number": "double", "boolean": "boolean"}


def _find_shape(schema: Any) -> Shape:
    if not isinstance(schema, Mapping):
        return TEXT
    kind = schema.get("type")
    if isinstance(kind, list):
        kinds = [one for one in kind if one != "null"]
        kind = kinds[0] if len(kinds) == 1 else None
    properties, items = schema.get("properties"), schema.get("items")
    if kind in ("object", None) and isinstance(properties, Mapping) and properties:
        return {str(name): _find_shape(one) for name, one in properties.items()}
    if kind == "array" and isinstance(items, Mapping):
        return Items(_find_shape(items))
    return _PLAIN.get(str(kind), TEXT)


def _to_plain(value: Any) -> Any:
    match value:
        case Mapping():
            return {name: _to_plain(item) for name, item in value.items()}
        case list() | tuple():
            return [_to_plain(item) for item in value]
        case bytes():
            return b64encode(value).decode()
        case datetime() | date():
            return value.isoformat()
        case float() if not math.isfinite(value):
            raise Unfit("a number: it is not finite, and JSON has no such")
    return value


def _to_checked(value: Any) -> Any:
    """As the validator knows it: a decimal without digits behind its point is a whole number."""
    match value:
        case Mapping():
            return {name: _to_checked(item) for name, item in value.items()}
        case list():
            return [_to_checked(item) for item in value]
        case float():
            return Decimal(repr(value))
        case Decimal() if value == value.to_integral_value():
            return int(value)
    return value


def _write(value: Any, *, spaced: bool) -> str:
    comma, colon = (", ", ": ") if spaced else (",", ":")
    match value:
        case Mapping():
            inside = comma.join(
                f"{json.dumps(name, ensure_ascii=spaced)}{colon}{_write(item, spaced=spaced)}"
                for name, item in value.items()
            )
            return f"{{{inside}}}"
        case list():
            return f"[{comma.join(_write(item, spaced=spaced) for item in value)}]"
        case Decimal():  # keeps its digits
            return format(value, "f")
        case float() if not spaced and value and not 1e-3 <= abs(value) < 1e7:
            # 1.0E7, 10000000.0, 10000000: as many ways as languages, and survivors may lack them.
            raise Unfit(
                "a number: languages write one below 0.001, or from ten million on, in different "
                "ways; let `sql` make the text of the JSON, or give a decimal"
            )
    return json.dumps(value, ensure_ascii=spaced)
