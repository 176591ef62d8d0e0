"""Data frames that Spark makes by itself.

Statements are SQL text where they can be: a column of PySpark's own is some calls over the bridge
to the JVM for each name and operator in it, a statement about four and four for each frame that it
names, whatever its length. A frame that is given to one must not be cached: Spark lets go of the
cache with the name that the statement had for it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812

from backlogctl.values import OffsetRange


def make_empty(spark: SparkSession, schema: str | T.StructType) -> DataFrame:
    """No rows: a join with it is optimised away. `createDataFrame([])` is an RDD that Python
    workers read."""
    kind = T.StructType.fromDDL(schema) if isinstance(schema, str) else schema
    java = spark._jsparkSession
    jvm = spark._jvm
    assert jvm is not None
    return DataFrame(
        java.createDataFrame(jvm.java.util.ArrayList(), java.parseDataType(kind.json())), spark
    )


def make_rows(spark: SparkSession, rows: Sequence[Sequence[Any]], schema: str) -> DataFrame:
    """A few rows of numbers, text and NULLs. `createDataFrame` would start Python workers."""
    if not rows:
        return make_empty(spark, schema)
    names = [part.split()[0] for part in schema.split(",")]
    text = quote(json.dumps([dict(zip(names, row, strict=True)) for row in rows]))
    return spark.sql(f"SELECT inline(from_json({text}, 'array<struct<{schema}>>'))")


def quote(text: str) -> str:
    """Text as a literal of Spark SQL."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def quote_column(name: str) -> str:
    """A column by its exact name, whatever characters it has."""
    return "`" + name.replace("`", "``") + "`"


def freeze(frame: DataFrame, path: str, **options: str) -> DataFrame:
    """Writes the frame as Parquet, over what is there, and reads it back; its schema is known, so
    that no job looks it up.

    Args:
        options: of the Parquet writer.
    """
    frame.write.options(**options).mode("overwrite").parquet(path)
    return read_frozen(frame.sparkSession, frame.schema, path)


# Bytes of Parquet that one task reads in less time than it takes to start two.
_SMALL = 8 * 1024 * 1024


def read_frozen(spark: SparkSession, schema: str | T.StructType, path: str) -> DataFrame:
    """What was written as Parquet. A small copy is one partition, and is said to be: within it no
    step of a statement sends rows to another one, so that Spark starts a third fewer jobs."""
    frame = spark.read.schema(schema).parquet(path)
    size = sum(file.stat().st_size for file in Path(path).glob("*.parquet"))
    # Without a size it is none that can be looked at from here.
    return frame.coalesce(1) if 0 < size < _SMALL else frame


def mark_within(
    frame: DataFrame, ranges: Iterable[OffsetRange], name: str, *, partition: str, offset: str
) -> DataFrame:
    """Adds the boolean `name`, a new one: whether an offset lies in one of the ranges; false for
    NULL.

    A join: a thousand ranges as one expression would exhaust the stack.
    """
    apart: list[tuple[int, int, int]] = []
    for item in sorted(ranges, key=lambda r: (r.partition, r.start)):
        first, end = item.start, item.end
        # Ranges that overlap would double the rows.
        if apart and apart[-1][0] == item.partition and apart[-1][2] >= first:
            _, first, last = apart.pop()
            end = max(end, last)
        apart.append((item.partition, first, end))
    home, low, high = (f"{name}_{part}" for part in ("home", "first", "end"))
    rows = make_rows(frame.sparkSession, apart, f"{home} int, {low} long, {high} long")
    inside = f"{partition} = {home} AND {offset} >= {low} AND {offset} < {high}"
    return frame.sparkSession.sql(
        f"SELECT /*+ BROADCAST(r) */ f.*, {home} IS NOT NULL AS {name} "
        f"FROM {{frame}} f LEFT JOIN {{rows}} r ON {inside}",
        frame=frame,
        rows=rows,
    )


def last_header(name: str) -> Column:
    """The value of a message's last header of this name; NULL without one. Without a lambda: Spark
    interprets those, row by row."""
    place = F.array_position(F.reverse(F.col("headers.name")), name)
    found = F.nullif(place, F.lit(0).cast("long")).cast("int")
    return F.try_element_at(F.reverse(F.col("headers.value")), found)
