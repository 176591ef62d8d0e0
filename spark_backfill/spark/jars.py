"""The jars that Spark needs beside its own."""

from __future__ import annotations

from pathlib import Path

from backlog.jars import ensure_jars, find_jars
from backlog.progress import Say

SPARK_JARS = Path(__file__).with_name("spark.jars")
_S3_JARS = Path(__file__).with_name("s3.jars")


def find_spark_jars() -> Path:
    """Their directory; it is there once they were fetched."""
    return find_jars(SPARK_JARS)


def ensure_spark_jars(progress: Say | None = None) -> tuple[Path, ...]:
    """The jars for `spark.jars`: the Kafka connector and the JDBC drivers."""
    return ensure_jars(SPARK_JARS, progress)


def ensure_s3_jars(progress: Say | None = None) -> tuple[Path, ...]:
    """What Spark needs to reach `s3a:` locations."""
    return ensure_jars(_S3_JARS, progress)
