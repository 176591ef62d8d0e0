"""Where a message that exists goes, how often it was put back, and how large it will be (P9)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812

from backlogctl_delivery import stamps
from spark_backfill.messages.partitioners import PLACES
from spark_backfill.messages.rules import OVERHEAD_BYTES
from spark_backfill.originals.frame import last_header

if TYPE_CHECKING:
    from pyspark.sql import Column


def place_originals(
    partition: Column, *, of: int, partitioner: str, partitions: int, fallback: Column | None = None
) -> Column:
    """The target partition: the same number where the target has as many as the source topic.

    Else by the key; without a key the number modulo the target's.

    Args:
        partition: where the message was; NULL where that is unknown.
        of: how many partitions the source topic had.
        partitions: how many the target has.
        fallback: a number that a message without partition and key is spread by.
    """
    spread = F.coalesce(partition, F.lit(0) if fallback is None else fallback)
    spread = F.pmod(spread.cast("long"), F.lit(partitions)).cast("int")
    by_key = F.coalesce(PLACES[partitioner](F.col("key"), partitions).cast("int"), spread)
    if of != partitions:
        return by_key
    inside = partition.isNotNull() & (partition >= 0) & (partition < partitions)
    return F.when(inside, partition.cast("int")).otherwise(by_key)


def count_replays() -> Column:
    """How often a message was put back before: its `backlog-replays`, else 0."""
    said = last_header(stamps.REPLAYS).cast("string").try_cast("int")
    return F.greatest(F.coalesce(said, F.lit(0)), F.lit(0))


def measure_originals() -> Column:
    """Bytes of the record as it will be sent, with room for what the broker adds."""
    total = F.lit(OVERHEAD_BYTES).cast("long")
    for part in ("key", "value"):
        total = total + F.coalesce(F.octet_length(part), F.lit(0))
    # Joined, not folded: Spark interprets a function of each value, row by row.
    names = F.octet_length(F.array_join(F.col("headers.name"), ""))
    values = F.octet_length(F.array_join(F.col("headers.value").cast("array<string>"), ""))
    return total + names + values + F.size("headers") * 10
