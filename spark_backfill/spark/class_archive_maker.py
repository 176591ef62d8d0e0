"""Makes the archive of Spark's classes, by starting Spark once."""

from __future__ import annotations

import hashlib
import os
import sqlite3
import subprocess
import tempfile
import zipfile
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from py4j.protocol import Py4JError  # type: ignore[import-untyped]

from backlogctl.config import SparkSection
from backlogctl.errors import BacklogError
from backlogctl.formats import print_line
from backlogctl.spark_backfill.spark.session import (
    DRIVER_OPTIONS,
    ensure_spark_jars,
    find_class_archive,
    open_session,
)

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

    archive = find_class_archive()
    archive.parent.mkdir(parents=True, exist_ok=True)
    fresh = archive.with_suffix(".new")
    with suppress(FileNotFoundError):
        fresh.unlink()
    conf = {DRIVER_OPTIONS: f"-XX:ArchiveClassesAtExit={fresh}"}
    session = open_session(SparkSection(master="local[2]", conf=conf), "backlogctl class archive")
    _work(session)
    _load_kafka(session)
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
    from pyspark.sql import Window
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
    with tempfile.TemporaryDirectory() as scratch:
        database, copy = f"{scratch}/source.db", f"{scratch}/copy"
        with closing(sqlite3.connect(database)) as connection:
            connection.execute("CREATE TABLE source (id INTEGER)")
        session.read.jdbc(f"jdbc:sqlite:{database}", "source").count()
        joined.write.parquet(copy)
        newest = Window.partitionBy("slot").orderBy(F.desc("time"))
        read = session.read.parquet(copy).withColumn("slot", F.col("id") % 7)
        read.withColumn("row", F.row_number().over(newest)).where("row = 1").collect()


def _load_kafka(session: SparkSession) -> None:
    """All classes of Kafka's client and of its connector: there is no broker to read from."""
    jvm = session._jvm
    assert jvm is not None
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    for path in ensure_spark_jars():
        if "kafka" not in path.name:
            continue
        with zipfile.ZipFile(path) as jar:
            names = [name for name in jar.namelist() if name.endswith(".class")]
        for name in names:
            # Some need libraries that are not here, and are not used either.
            with suppress(Py4JError):
                jvm.java.lang.Class.forName(
                    name.removesuffix(".class").replace("/", "."), False, loader
                )


def describe_inputs() -> str:
    """What an archive is made of: this Java, Spark's jars and the connectors."""
    import pyspark

    java = Path(os.environ["JAVA_HOME"], "bin", "java") if "JAVA_HOME" in os.environ else "java"
    version = subprocess.run([java, "-version"], capture_output=True, text=True, check=True).stderr
    jars = [*Path(pyspark.__file__).parent.glob("jars/*.jar"), *ensure_spark_jars()]
    seen = [(jar.name, jar.stat().st_size, jar.stat().st_mtime_ns) for jar in sorted(jars)]
    return hashlib.sha256(repr((version, seen)).encode()).hexdigest()


def main() -> None:
    """Makes the archive, unless there is one of the same Java and the same jars."""
    inputs = find_class_archive().with_suffix(".inputs")
    try:
        now = describe_inputs()
        if find_class_archive().is_file() and inputs.is_file() and inputs.read_text() == now:
            return
        archive = make_archive()
        inputs.write_text(now)
    except (BacklogError, OSError, subprocess.SubprocessError) as error:
        raise SystemExit(f"class archive: {error}") from None
    print_line(f"class archive: {archive}, {archive.stat().st_size / 1e6:.0f} MB")


if __name__ == "__main__":
    main()
