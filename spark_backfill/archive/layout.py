"""How an archived message is written: its columns, and the fingerprint that both sides compare."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812

if TYPE_CHECKING:
    from pyspark.sql import Column

# A folder for each, so that the files themselves lack this column.
PARTITION = "partition"
_HEADERS = "array<struct<name:string,value:binary>>"
ARCHIVE_SCHEMA = (
    "partition int, offset long, timestamp long, timestamp_type tinyint, key binary, value binary, "
    f"headers {_HEADERS}"
)
COLUMNS = (PARTITION, "offset", "timestamp", "timestamp_type", "key", "value", "headers")


def select_columns() -> list[Column]:
    """Of a message as Spark reads it from a topic."""
    return [
        F.col("partition"),
        F.col("offset"),
        F.unix_millis("timestamp").alias("timestamp"),
        F.col("timestampType").cast("tinyint").alias("timestamp_type"),
        F.col("key"),
        F.col("value"),
        # Spark gives NULL for no headers. The cast only names the fields.
        F.coalesce("headers", F.array().cast("array<struct<key:string,value:binary>>"))
        .cast(_HEADERS)
        .alias("headers"),
    ]


def summarize() -> list[Column]:
    """What is compared of the messages of one file: written, and read back.

    `fingerprint` does not depend on the order: that is looked at when they are read back.
    """
    time = F.when(F.col("timestamp_type") >= 0, F.col("timestamp"))
    return [
        F.count(F.lit(1)).alias("count"),
        F.min("offset").alias("first"),
        F.max("offset").alias("last"),
        F.min(time).alias("first_time"),
        F.max(time).alias("last_time"),
        F.bit_xor(_fingerprint()).alias("fingerprint"),
    ]


def _fingerprint() -> Column:
    # The hash passes over NULL: so it is said which are, and how many headers there are.
    return F.xxhash64(
        "offset",
        "timestamp",
        "timestamp_type",
        F.isnull("key"),
        "key",
        F.isnull("value"),
        "value",
        F.size("headers"),
        "headers",
    )
