"""A row's headers: those that it lists itself, then those that the stream's rules name."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812

HEADERS = "array<struct<name:string,value:binary>>"
BROKEN = "its headers are no JSON list of [name, value in base64 or null]"


def parse_list(text: Column) -> Column:
    """Headers of a JSON list of `[name, value in base64 or null]`, in their order.

    No text is no headers. NULL where it is something else.
    """
    pairs = F.from_json(text, "array<array<string>>")
    whole = F.forall(pairs, lambda pair: F.coalesce(_is_pair(pair), F.lit(False)))
    parsed = F.transform(
        pairs, lambda pair: F.struct(F.get(pair, 0).alias("name"), _decode(pair).alias("value"))
    ).cast(HEADERS)
    none = F.coalesce(text, F.lit("")) == ""
    return F.when(none, F.array().cast(HEADERS)).when(whole, parsed)


def join_headers(names: Sequence[str], *, listed: bool) -> Column:
    """All headers of a message of `build_messages`, as one list.

    Args:
        names: those of the columns `header_values`.
        listed: whether there is a column `header_list`.
    """
    named = F.array(
        *(
            F.struct(F.lit(name).alias("name"), F.element_at("header_values", i).alias("value"))
            for i, name in enumerate(names, 1)
        )
    ).cast(HEADERS)
    return F.concat("header_list", named) if listed else named


def measure_list(headers: Column) -> Column:
    """Its bytes in a record, at most."""
    sizes = F.transform(
        headers,
        lambda item: (
            F.octet_length(item["name"]) + F.coalesce(F.octet_length(item["value"]), F.lit(0)) + 8
        ),
    )
    return F.coalesce(F.aggregate(sizes, F.lit(0), lambda total, size: total + size), F.lit(0))


def _is_pair(pair: Column) -> Column:
    value = F.get(pair, 1)
    is_value = value.isNull() | _decode(pair).isNotNull()
    return (F.size(pair) == 2) & F.get(pair, 0).isNotNull() & is_value


def _decode(pair: Column) -> Column:
    return F.try_to_binary(F.get(pair, 1), F.lit("base64"))
