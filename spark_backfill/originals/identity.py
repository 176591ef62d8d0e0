"""By what a message that exists is known: where it lay (P9), and what its stream says."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812

from spark_backfill.messages.rules import hash_message_id
from spark_backfill.originals.frame import last_header

if TYPE_CHECKING:
    from pyspark.sql import Column


def hash_original_id(topic_id: str, partition: Column, offset: Column) -> Column:
    """`stamps.make_original_id` in Spark SQL, bit for bit; partition and offset are not NULL."""
    return hash_message_id(
        topic_id, [partition.cast("string")], offset.cast("string").cast("binary")
    )


def identify(header: str | None) -> Column:
    """As the survivors of a rebuild are known; consumers do not note tombstones as handled."""
    identity = F.col("key") if header is None else last_header(header)
    return F.when(F.col("value").isNotNull(), identity)
