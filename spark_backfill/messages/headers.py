"""A row's headers: those that it lists itself, then those that the stream's rules name."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812

HEADERS = "array<struct<name:string,value:binary>>"
# Spark reads a number as text, and nothing that stands behind the list. No quantifier gives
# anything back: a long text would exhaust the stack.
_NAME = r'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_ONE = "[A-Za-z0-9+/]"
_VALUE = rf'(?:"(?:{_ONE}{{4}})*+(?:{_ONE}{{2}}==|{_ONE}{{3}}=)?+"|null)'
_PAIR = rf"\s*+\[\s*+{_NAME}\s*+,\s*+{_VALUE}\s*+\]\s*+"
_LIST = rf"^\s*+\[(?:{_PAIR}(?:,{_PAIR})*+)?+\s*+\]\s*+$"
BROKEN = "its headers are no JSON list of [name, value in base64 or null]"


def parse_list(text: Column) -> Column:
    """Headers of a JSON list of `[name, value in base64 or null]`, in their order.

    No text is no headers. NULL where it is something else.
    """
    pairs = F.from_json(text, "array<array<string>>")
    parsed = F.transform(
        pairs,
        lambda pair: F.struct(
            F.get(pair, 0).alias("name"),
            F.try_to_binary(F.get(pair, 1), F.lit("base64")).alias("value"),
        ),
    ).cast(HEADERS)
    none = F.coalesce(text, F.lit("")) == ""
    return F.when(none, F.array().cast(HEADERS)).when(text.rlike(_LIST), parsed)


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
