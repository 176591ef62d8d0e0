"""The log of each partition beside the files staged for it: equal, byte for byte, or not."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import functions as F  # noqa: N812

from backlogctl.kafka.raw_fetch import RawFetch
from backlogctl.manifests import Manifest, read_chunk
from backlogctl.spark_backfill.injection.newer import drop_rows
from backlogctl.values import Chunk, OffsetRange
from backlogctl.wire import explain_absence
from backlogctl_delivery.stamps import MESSAGE_ID, RECOVERY_ID

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOG = logging.getLogger(__name__)
LeftOut = Mapping[tuple[int, int], Sequence[int]]
_LOOK_SECONDS = 1.0


def count_exact(
    spark: SparkSession,
    *,
    properties: Mapping[str, str],
    topic: str,
    ranges: Sequence[OffsetRange],
    manifest: Manifest,
    directory: Path,
    left_out: LeftOut,
) -> int | None:
    """How many messages are staged and there, if all is exact: each partition has what was staged
    for it, in its order, each once, and nothing else with our headers. None: not so, or not known.

    A task for each partition goes through both side by side, and gives back a number for each id:
    two equal ones may be one id that was staged twice.

    Args:
        ranges: of all partitions; slots are partitions.
        left_out: by slot and number of a chunk its rows that were not sent.
    """
    if not manifest.chunks or explain_absence(properties):
        return None
    chunks: dict[int, list[Chunk]] = {one.partition: [] for one in ranges}
    for chunk in sorted(manifest.chunks, key=lambda one: (one.slot, one.number)):
        chunks[chunk.slot].append(chunk)
    work = [(one, own) for one in ranges if (own := chunks[one.partition]) or one.count]

    def match(batches: Any) -> Any:
        import pyarrow as pa

        for batch in batches:
            for number in batch["id"].to_pylist():
                place, own = work[number]
                try:
                    for hashes in _match(properties, topic, place, directory, own, left_out):
                        yield pa.RecordBatch.from_arrays([pa.array(hashes)], ["hash"])
                except Exception:  # noqa: BLE001 - as a value: Spark would begin the task again
                    yield pa.RecordBatch.from_arrays([pa.array([None], pa.int64())], ["hash"])

    try:
        frame = spark.range(0, len(work), 1, len(work)).mapInArrow(match, "hash bigint")
        each = frame.repartition("hash").groupBy("hash").agg(F.count(F.lit(1)).alias("times"))
        columns = {
            "count": F.sum("times"),
            "most": F.max("times"),
            "differs": F.max(F.col("hash").isNull()),
        }
        row = each.agg(*(column.alias(name) for name, column in columns.items())).collect()[0]
    except (PySparkException, Py4JJavaError) as error:  # the latter: a worker that ended
        # What could not be read is told by those that compare message by message.
        LOG.info("the log was not compared with what was staged: %s", type(error).__name__)
        return None
    return int(row["count"]) if row["most"] == 1 and row["differs"] is False else None


class NotExact(Exception):
    """A partition's log is not what was staged for it."""


def _match(
    properties: Mapping[str, str],
    topic: str,
    place: OffsetRange,
    directory: Path,
    chunks: Sequence[Chunk],
    left_out: LeftOut,
) -> Iterator[Any]:
    """Numbers of ids, chunk by chunk. Raises NotExact."""
    from backlogctl.wire.matching import RowMatcher, hash_column

    hashes: list[Any] = []

    def read() -> Iterator[Any]:
        for chunk in chunks:
            rows = left_out.get((chunk.slot, chunk.number), ())
            table = drop_rows(read_chunk(directory, chunk), rows)
            hashes.append(hash_column(table, "message_id"))
            yield table

    matcher = RowMatcher(read(), (MESSAGE_ID, RECOVERY_ID))
    fetch = RawFetch(properties, topic, [place], "read_committed")
    try:
        while not fetch.is_done:
            for found in fetch.read(_LOOK_SECONDS):
                if found.old_format or found.passed_over:
                    raise NotExact
                if not matcher.take(found.headers, found.data, place, f"topic {topic}"):
                    raise NotExact
            while hashes:
                yield hashes.pop()
        if not matcher.is_at_end():
            raise NotExact
    finally:
        fetch.close()
    yield from hashes
