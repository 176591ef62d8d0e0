"""JSON as its text says it: numbers to the digit, fields in their order, repeated names kept."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Number:
    """A number as it is written: `12.50` is not `12.5`, and no digit is lost."""

    text: str


@dataclass(frozen=True, slots=True)
class Members:
    """An object: its names and values."""

    pairs: tuple[tuple[str, Any], ...]


def read_json(text: str) -> Any:
    """Numbers are `Number`, objects are `Members`; all else is as `json` reads it.

    Raises:
        ValueError: it is no JSON.
        RecursionError: it is too deep.
    """
    return json.loads(
        text,
        parse_float=Number,
        parse_int=Number,
        parse_constant=Number,
        object_pairs_hook=lambda pairs: Members(tuple(pairs)),
    )


def write_json(value: Any, *, indent: int | None = None, depth: int = 0) -> str:
    """What `read_json` read, as `json` writes it: in one line, or in lines with this indent."""
    match value:
        case Number():
            return value.text
        case Members():
            signs, items = "{}", [
                f"{json.dumps(name, ensure_ascii=False)}: "
                f"{write_json(item, indent=indent, depth=depth + 1)}"
                for name, item in value.pairs
            ]  # fmt: skip
        case list():
            signs, items = "[]", [write_json(i, indent=indent, depth=depth + 1) for i in value]
        case _:
            return json.dumps(value, ensure_ascii=False)
    if indent is None or not items:
        return f"{signs[0]}{', '.join(items)}{signs[1]}"
    end = "\n" + " " * indent * depth
    begin = end + " " * indent
    return f"{signs[0]}{begin}{f',{begin}'.join(items)}{end}{signs[1]}"


def sort_members(value: Any) -> Any:
    """With the fields of all objects in the order of their names; those of one name stay as they
    are."""
    match value:
        case Members():
            pairs = ((name, sort_members(item)) for name, item in value.pairs)
            return Members(tuple(sorted(pairs, key=lambda pair: pair[0])))
        case list():
            return [sort_members(item) for item in value]
    return value
