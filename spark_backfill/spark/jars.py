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

# For object stores that speak S3: hadoop-aws of Spark's own Hadoop, and of Amazon's SDK what that
# uses. The SDK in one piece, which hadoop-aws asks for, has 550 MB.
_SDK = (
    "annotations",
    "apache-client",
    "arns",
    "auth",
    "aws-core",
    "aws-query-protocol",
    "aws-xml-protocol",
    "checksums",
    "checksums-spi",
    "crt-core",
    "endpoints-spi",
    "http-auth",
    "http-auth-aws",
    "http-auth-spi",
    "http-client-spi",
    "identity-spi",
    "json-utils",
    "metrics-spi",
    "netty-nio-client",
    "profiles",
    "protocol-core",
    "regions",
    "s3",
    "s3-transfer-manager",
    "sdk-core",
    "sts",
    "third-party-jackson-core",
    "utils",
)
S3_ARTIFACTS = (
    Artifact("org.apache.hadoop", "hadoop-aws", "3.4.1"),
    *(Artifact("software.amazon.awssdk", name, "2.25.53") for name in _SDK),
    Artifact("software.amazon.eventstream", "eventstream", "1.0.1"),
    Artifact("org.reactivestreams", "reactive-streams", "1.0.4"),
)


def find_spark_jars() -> Path:
    """Their directory; it is there once they were fetched."""
    return find_jars("spark", SPARK_ARTIFACTS)


def ensure_spark_jars(progress: Say | None = None) -> tuple[Path, ...]:
    """The jars for `spark.jars`: the Kafka connector and the JDBC drivers."""
    return ensure_jars("spark", SPARK_ARTIFACTS, progress)


def ensure_s3_jars(progress: Say | None = None) -> tuple[Path, ...]:
    """What Spark needs to reach `s3a:` locations."""
    return ensure_jars("s3", S3_ARTIFACTS, progress)
