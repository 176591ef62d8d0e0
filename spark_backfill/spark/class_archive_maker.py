"""Makes the archive of Spark's classes, by starting Spark once."""

from __future__ import annotations

import subprocess
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from backlog.config import SparkSection
from backlog.errors import BacklogError
from backlog.progress import print_line
from spark_backfill.spark.class_archive import DRIVER_OPTIONS, find_archive
from spark_backfill.spark.session import open_session

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pyarrow as pa
    from pyspark.sql import SparkSession

_DUMP_SECONDS = 300


def make_archive() -> Path:
    """Starts Spark, works a little, and keeps the classes that this needed.

    Raises:
        BacklogError: Spark did not start, or Java wrote no archive.
    """
    from pyspark import SparkContext

    archive = find_archive()
    archive.parent.mkdir(parents=True, exist_ok=True)
    fresh = archive.with_suffix(".new")
    with suppress(FileNotFoundError):
        fresh.unlink()
    conf = {DRIVER_OPTIONS: f"-XX:ArchiveClassesAtExit={fresh}"}
    session = open_session(SparkSection(master="local[2]", conf=conf), "backlogctl class archive")
    _work(session)
    session.stop()
    gateway = SparkContext._gateway
    assert gateway is not None
    # The JVM ends with its stdin, and writes the archive then.
    gateway.proc.stdin.close()
    with suppress(subprocess.TimeoutExpired):
        gateway.proc.wait(_DUMP_SECONDS)
    if gateway.proc.poll() is None or not fresh.is_file():
        raise BacklogError(
            "Java wrote no archive of Spark's classes",
            subject=str(archive),
            hint="everything works without it; Spark only takes longer to start",
        )
    fresh.replace(archive)
    return archive


def _work(session: SparkSession) -> None:
    """What planning makes of Spark: SQL with its generated code, and Python workers with Arrow."""
    from pyspark.sql import functions as F  # noqa: N812

    def pass_on(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        yield from batches

    left = session.range(2000).select(
        "id",
        F.concat(F.lit("k"), F.col("id").cast("string")).alias("key"),
        F.to_json(F.struct("id")).alias("value"),
        F.timestamp_seconds("id").alias("time"),
    )
    right = session.range(0, 4000, 3).select(F.col("id").alias("other")).hint("shuffle_hash")
    joined = left.join(right, left["id"] == right["other"], "left").cache()
    counts = joined.groupBy((F.col("id") % 7).alias("slot")).agg(
        F.count("*"), F.countDistinct("key"), F.min("time"), F.sha2(F.max("value"), 256)
    )
    counts.orderBy("slot").collect()
    routed = joined.drop("other").repartition(4, "id").sortWithinPartitions("time", "key")
    passed = routed.mapInArrow(pass_on, routed.schema)
    passed.filter("id >= 0").dropDuplicates(["key"]).count()


def main() -> None:
    try:
        archive = make_archive()
    except (BacklogError, OSError) as error:
        raise SystemExit(f"class archive: {error}") from None
    print_line(f"class archive: {archive}, {archive.stat().st_size / 1e6:.0f} MB")


if __name__ == "__main__":
    main()
