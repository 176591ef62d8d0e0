"""The message id of a message that exists: where it lay (P9)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_backfill.messages.rules import hash_message_id

if TYPE_CHECKING:
    from pyspark.sql import Column


def hash_original_id(topic_id: str, partition: Column, offset: Column) -> Column:
    """`stamps.make_original_id` in Spark SQL, bit for bit; partition and offset are not NULL."""
    return hash_message_id(
        topic_id, [partition.cast("string")], offset.cast("string").cast("binary")
    )
