"""The jars that Spark needs beside its own."""

from __future__ import annotations

from pathlib import Path

from backlog.jars import Artifact, ensure_jars, find_jars
from backlog.progress import Say

# Spelled out instead of resolved: the rest of what the connector needs is in Spark's own jars, and
# a second Scala library or Spark core on the class path breaks it.
SPARK_ARTIFACTS = (
    Artifact("org.apache.spark", "spark-sql-kafka-0-10_2.13", "4.0.0"),
    Artifact("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", "4.0.0"),
    Artifact("org.apache.kafka", "kafka-clients", "3.9.0"),
    Artifact("org.apache.commons", "commons-pool2", "2.12.0"),
    Artifact("org.postgresql", "postgresql", "42.7.5"),
    Artifact("org.xerial", "sqlite-jdbc", "3.49.1.0"),
)


def find_spark_jars() -> Path:
    """Their directory; it is there once they were fetched."""
    return find_jars("spark", SPARK_ARTIFACTS)


def ensure_spark_jars(progress: Say | None = None) -> tuple[Path, ...]:
    """The jars for `spark.jars`: the Kafka connector and the JDBC drivers."""
    return ensure_jars("spark", SPARK_ARTIFACTS, progress)
