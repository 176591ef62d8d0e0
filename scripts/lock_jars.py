"""Writes the lists of Java libraries to fetch, by PySpark's Ivy:

python -m scripts.lock_jars [LIST...]
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import pyspark

from backlogctl.jars import find_java
from backlogctl.sandbox.embedded import KAFKA_VERSION


class Wanted(NamedTuple):
    """What a list is resolved from; `transitive` takes what it needs at run time as well."""

    file: str
    coordinates: tuple[str, ...]
    transitive: bool = False


OTHER_BROKERS = ("3.7.2", "3.9.2", "4.4.0")
_BROKER = "org.apache.kafka:kafka_2.13"
_SLF4J = "org.slf4j:slf4j-simple:1.7.36"
# hadoop-aws is of Spark's own Hadoop, and takes of Amazon's SDK these; in one piece it has 550 MB.
_SDK = (
    "annotations apache-client arns auth aws-core aws-query-protocol aws-xml-protocol checksums "
    "checksums-spi crt-core endpoints-spi http-auth http-auth-aws http-auth-spi http-client-spi "
    "identity-spi json-utils metrics-spi netty-nio-client profiles protocol-core regions s3 "
    "s3-transfer-manager sdk-core sts third-party-jackson-core utils"
)
# Of Flink what a MiniCluster needs that reads Kafka: all of it would be 90 MB.
_FLINK = (
    "annotations clients connector-base connector-datagen core core-api datastream datastream-api "
    "metrics-core queryable-state-client-java rpc-akka-loader rpc-core runtime streaming-java"
)
_FLINK_SHADED = "asm-9:9.6 guava:33.4.0-jre jackson:2.18.2 netty:4.1.100.Final"
_CONNECT = (
    "connect-api connect-json connect-mirror connect-mirror-client connect-runtime "
    "connect-transforms"
)
_SPRING = "aop beans context core expression messaging tx"
LISTS = (
    Wanted("sandbox/kafka.jars", (f"{_BROKER}:{KAFKA_VERSION}", _SLF4J), True),
    # The brokers that people still run: `make test-kafka-versions`.
    *(
        Wanted(f"tests/kit/kafka-{version}.jars", (f"{_BROKER}:{version}", _SLF4J), True)
        for version in OTHER_BROKERS
    ),
    Wanted(
        "tests/kit/kafka-tools.jars",
        (f"org.apache.kafka:kafka-tools:{KAFKA_VERSION}", _SLF4J),
        True,
    ),
    # Beside those of the tools, which have the rest of Connect.
    # Its licence lets users bring it, not us.
    Wanted("tests/kit/mysql.jars", ("com.mysql:mysql-connector-j:9.7.0",)),
    Wanted(
        "benchmarks/mirror.jars",
        tuple(f"org.apache.kafka:connect-mirror{name}:{KAFKA_VERSION}" for name in ("", "-client")),
    ),
    # Beside those of the broker. Spelled out: no web server of Connect's, no RocksDB of Streams's.
    Wanted(
        "tests/clients/java/clients.jars",
        (
            *(f"org.apache.kafka:{name}:{KAFKA_VERSION}" for name in _CONNECT.split()),
            "com.fasterxml.jackson.module:jackson-module-blackbird:2.21.2",
            "org.apache.maven:maven-artifact:3.9.15",
            f"org.apache.kafka:kafka-streams:{KAFKA_VERSION}",
            "org.springframework.kafka:spring-kafka:4.1.2",
            *(f"org.springframework:spring-{name}:7.0.10" for name in _SPRING.split()),
            "io.micrometer:micrometer-commons:1.17.2",
            "io.micrometer:micrometer-observation:1.17.2",
            "org.apache.flink:flink-connector-kafka:5.0.0-2.2",
            *(f"org.apache.flink:flink-{name}:2.2.0" for name in _FLINK.split()),
            *(f"org.apache.flink:flink-shaded-{name}-20.0" for name in _FLINK_SHADED.split()),
            "com.esotericsoftware:kryo:5.6.2",
            "com.esotericsoftware:minlog:1.3.1",
            "com.esotericsoftware:reflectasm:1.11.9",
            "org.objenesis:objenesis:3.4",
            "commons-cli:commons-cli:1.5.0",
            "commons-io:commons-io:2.15.1",
            "org.apache.commons:commons-compress:1.26.0",
            "org.apache.commons:commons-lang3:3.18.0",
            "org.apache.commons:commons-math3:3.6.1",
            "org.apache.commons:commons-text:1.10.0",
            "org.javassist:javassist:3.24.0-GA",
            "org.snakeyaml:snakeyaml-engine:2.6",
        ),
    ),
    # Spelled out: the rest of what the connector needs is in Spark's own jars, and a second Scala
    # library or Spark core on the class path breaks it.
    Wanted(
        "spark_backfill/spark/spark.jars",
        (
            "org.apache.spark:spark-sql-kafka-0-10_2.13:4.0.0",
            "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
            "org.apache.kafka:kafka-clients:3.9.0",
            "org.apache.commons:commons-pool2:2.12.0",
            "org.mariadb.jdbc:mariadb-java-client:3.5.6",
            "org.postgresql:postgresql:42.7.5",
            "org.xerial:sqlite-jdbc:3.49.1.0",
        ),
    ),
    Wanted(
        "spark_backfill/spark/s3.jars",
        (
            "org.apache.hadoop:hadoop-aws:3.4.1",
            *(f"software.amazon.awssdk:{name}:2.25.53" for name in _SDK.split()),
            "software.amazon.eventstream:eventstream:1.0.1",
            "org.reactivestreams:reactive-streams:1.0.4",
        ),
    ),
)


def resolve(wanted: Wanted) -> str:
    """The lines of a list."""
    needs = "".join(
        '<dependency org="{}" name="{}" rev="{}" transitive="{}" conf="default->default"/>'.format(
            *coordinate.split(":"), str(wanted.transitive).lower()
        )
        for coordinate in wanted.coordinates
    )
    (ivy,) = Path(pyspark.__path__[0], "jars").glob("ivy-*.jar")
    with tempfile.TemporaryDirectory() as scratch:
        work = Path(scratch)
        (work / "ivy.xml").write_text(
            '<ivy-module version="2.0"><info organisation="backlogctl" module="jars"/>'
            f'<configurations><conf name="default"/></configurations>'
            f"<dependencies>{needs}</dependencies></ivy-module>"
        )
        (work / "settings.xml").write_text(
            '<ivysettings><settings defaultResolver="maven"/><resolvers>'
            '<ibiblio name="maven" m2compatible="true"/></resolvers></ivysettings>'
        )
        command = [str(find_java()), "-jar", str(ivy), "-settings", str(work / "settings.xml")]
        command += ["-ivy", str(work / "ivy.xml"), "-cache", str(work / "cache"), "-confs"]
        # OSGi bundles are jars under another name: snappy and the Scala logger come as such.
        command += ["default", "-types", "jar", "bundle", "-retrieve"]
        command += [str(work / "jars" / "[organisation]:[artifact]:[revision].[ext]")]
        subprocess.run(command, check=True, stdout=sys.stderr)
        return "".join(
            f"{jar.name.removesuffix('.jar')} {hashlib.sha256(jar.read_bytes()).hexdigest()} "
            f"{jar.stat().st_size}\n"
            for jar in sorted((work / "jars").iterdir())
        )


if __name__ == "__main__":
    asked = sys.argv[1:]
    for one in LISTS:
        if asked and one.file not in asked:
            continue
        Path(one.file).write_text(resolve(one))
