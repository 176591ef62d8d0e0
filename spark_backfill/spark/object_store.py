"""Object stores that speak S3: what a location on one needs of Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError  # type: ignore[import-untyped]

from spark_backfill.spark.cluster import SparkFailure

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_CLASS = "org.apache.hadoop.fs.s3a.S3AFileSystem"


def needs_s3(location: str) -> bool:
    """Whether Spark reaches this location only with the jars of hadoop-aws."""
    return location.startswith("s3a:")


def has_s3(spark: SparkSession) -> bool:
    """Whether this Spark was started with them."""
    jvm: Any = spark._jvm
    try:
        jvm.org.apache.spark.util.Utils.classForName(_CLASS, False, False)
    except Py4JError:
        return False
    return True


def require_s3(spark: SparkSession, location: str) -> None:
    """The jars must be there before Spark's JVM starts.

    Raises:
        SparkFailure: this process has a Spark without them.
    """
    if not has_s3(spark):
        raise SparkFailure(
            "this process runs Spark without what reaches an object store (hadoop-aws)",
            subject=location,
            hint="start it in a process of its own",
        )
