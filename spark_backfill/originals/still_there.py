"""Where messages that were put back are in the topic now, as far as they still are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812

from backlog.values import OffsetRange
from backlogctl_delivery import stamps
from spark_backfill.evidence.injected import Places, list_places
from spark_backfill.originals.frame import last_header
from spark_backfill.originals.reading import read_log

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark_backfill.request import PriorChunk


@dataclass(frozen=True, slots=True)
class StillThere:
    """The messages of some chunks, in the topic."""

    spark: SparkSession
    properties: Mapping[str, str]
    topic: str
    starts: Mapping[int, int]
    prior: Sequence[PriorChunk]

    def locate_ours(self, partitions: Sequence[int]) -> Places:
        """Where each of them is."""
        ranges: dict[int, OffsetRange] = {}
        for chunk in self.prior:
            if chunk.slot not in partitions or chunk.first_offset is None:
                continue
            first = max(chunk.first_offset, self.starts.get(chunk.slot, 0))
            end = (chunk.last_offset or 0) + 1
            known = ranges.get(chunk.slot, OffsetRange(chunk.slot, first, end))
            if end > first:
                ranges[chunk.slot] = OffsetRange(
                    chunk.slot, min(first, known.start), max(end, known.end)
                )
        frame = read_log(self.spark, self.properties, self.topic, list(ranges.values()))
        stamp = last_header(stamps.MESSAGE_ID).cast("string").alias("stamp")
        found = frame.select("source_partition", stamp, "source_offset")
        return list_places(tuple(row) for row in found.where(F.col("stamp").isNotNull()).collect())
