"""The one frame of messages that exist, whatever they are read from."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812

from backlogctl_delivery import stamps
from spark_backfill.messages.headers import HEADERS

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

ORIGINALS_SCHEMA = (
    "source_partition int, source_offset long, timestamp long, timestamp_type tinyint, "
    f"key binary, value binary, headers {HEADERS}"
)
_TIME = r"^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}\.\d{6}Z$"
_TIME_LENGTH = 27
_LAST_MS = 253_402_300_799_999
COLUMNS = (
    "source_partition",
    "source_offset",
    "timestamp",
    "timestamp_type",
    "key",
    "value",
    "headers",
)


def as_originals(archived: DataFrame) -> DataFrame:
    """What `read_archive` gives."""
    return archived.select(
        F.col("partition").alias("source_partition"),
        F.col("offset").alias("source_offset"),
        *COLUMNS[2:],
    )


def format_message_time() -> Column:
    """The message's own timestamp, as everywhere here: `2026-11-20T12:00:00.123000Z`. NULL where it
    has none, or one beyond the year 9999.

    Of one that an earlier recovery put back, the time that it stamped: its own is that of the
    recovery.
    """
    known = (F.col("timestamp_type") >= 0) & F.col("timestamp").between(0, _LAST_MS)
    at = F.timestamp_millis(F.when(known, F.col("timestamp")))
    own = F.date_format(at, "yyyy-MM-dd'T'HH:mm:ss.SSS'000Z'")
    raw = last_header(stamps.ORIGINAL_TIME)
    stamped = F.when(F.octet_length(raw) == _TIME_LENGTH, raw.cast("string"))
    return F.coalesce(F.when(stamped.rlike(_TIME), stamped), own)


def last_header(name: str) -> Column:
    """The value of a message's last header of this name; NULL without one."""
    place = F.array_position(F.reverse(F.col("headers.name")), name)
    found = F.nullif(place, F.lit(0).cast("long")).cast("int")
    return F.try_element_at(F.reverse(F.col("headers.value")), found)
