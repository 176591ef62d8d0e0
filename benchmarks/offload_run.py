"""The archive's benchmark: one run of each way to get a topic into files, and what came out."""

from __future__ import annotations

import shutil
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from backlog.kafka.admin import list_offsets, read_topic_id
from backlog.kafka.clients import make_admin
from backlog.values import OffsetRange
from benchmarks.relay_run import PARTITIONS, SOURCE, Usage, measured
from sandbox.embedded import EmbeddedKafka
from spark_backfill.archive.job import ArchiveJob, ArchiveProgress
from spark_backfill.archive.reading import read_archive
from spark_backfill.archive.writing import write_archive

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from backlog.archive import ArchiveManifest


@dataclass
class Run:
    """The whole topic, once.

    Attributes:
        bytes: of the files.
        write, check: seconds of writing, and of reading back and hashing; None where it is not
            done, or not apart.
        exact: whether as many messages are in the files as in the topic.
    """

    usage: Usage = field(default_factory=Usage)
    bytes: int = 0
    write: float | None = None
    check: float | None = None
    exact: bool = False

    def to_json(self, messages: int, payload: float) -> dict[str, Any]:
        usage = self.usage
        return {
            "seconds": round(usage.seconds, 2),
            "per_second": round(messages / usage.seconds),
            "write_per_second": self.write and round(messages / self.write),
            "check_per_second": self.check and round(messages / self.check),
            "reader_cpu_seconds": round(usage.copier, 2),
            "broker_cpu_seconds": round(usage.broker, 2),
            "bytes_per_message": round(self.bytes / messages, 1),
            "bytes_ratio": round(self.bytes / (messages * payload), 3),
            "exact": self.exact,
        }


def archive(
    spark: SparkSession, kafka: EmbeddedKafka, messages: int, payload: float, place: Path
) -> tuple[Run, ArchiveManifest]:
    """Ours, reading back included; its files stay."""
    properties = {"bootstrap.servers": kafka.bootstrap}
    admin = make_admin(properties)
    ends = list_offsets(admin, SOURCE, range(PARTITIONS), "latest", "read_committed")
    job = ArchiveJob(
        recovery_id="r-20000101-0001",
        stream=SOURCE,
        cluster="main",
        topic=SOURCE,
        topic_id=read_topic_id(admin, SOURCE)[0],
        group="bench",
        partitions=PARTITIONS,
        plan_hash="0" * 64,
        made_by="bench",
        location=str(place),
        ranges=tuple(OffsetRange(p, 0, end) for p, end in ends.items()),
        properties=properties,
        bytes_per_message=payload,
    )
    told: list[ArchiveProgress] = []
    run = Run()
    with measured(kafka.pid) as run.usage:
        before = _cpu_of_spark(spark)
        manifest = write_archive(spark, job, on_progress=told.append)
    run.usage.copier = _cpu_of_spark(spark) - before
    run.write, run.check = told[-1].write_seconds, told[-1].check_seconds
    run.bytes = manifest.bytes
    run.exact = manifest.count == read_archive(spark, str(place), manifest).count() == messages
    return run, manifest


def write_plainly(spark: SparkSession, kafka: EmbeddedKafka, messages: int, place: Path) -> Run:
    """Spark's own way, with its defaults: uncommitted messages too, no headers, no look back."""
    run = Run()
    with measured(kafka.pid) as run.usage:
        before = _cpu_of_spark(spark)
        (
            spark.read.format("kafka")
            .option("kafka.bootstrap.servers", kafka.bootstrap)
            .option("subscribe", SOURCE)
            .option("startingOffsets", "earliest")
            .option("endingOffsets", "latest")
            .load()
            .write.parquet(str(place))
        )
    run.usage.copier = _cpu_of_spark(spark) - before
    run.write = run.usage.seconds
    run.bytes = sum(file.stat().st_size for file in place.glob("*.parquet"))
    run.exact = spark.read.parquet(str(place)).count() == messages
    shutil.rmtree(place)
    return run


def dump(kafka: EmbeddedKafka, messages: int, place: Path) -> Run:
    """kcat into a file: keys and values in lines of text."""
    words = ["kcat", "-C", "-b", kafka.bootstrap, "-t", SOURCE, "-o", "beginning", "-e", "-q"]
    words += ["-K", r"\t", "-X", "fetch.wait.max.ms=50"]
    run = Run()
    with place.open("wb") as file, measured(kafka.pid) as run.usage:
        subprocess.run(words, stdout=file, check=True)
    run.write = run.usage.seconds
    run.bytes = place.stat().st_size
    with place.open("rb") as file:
        run.exact = sum(1 for _ in file) == messages
    place.unlink()
    time.sleep(1.0)  # the broker is quiet
    return run


def _cpu_of_spark(spark: SparkSession) -> float:
    gateway: Any = spark.sparkContext._gateway
    used = psutil.Process(gateway.proc.pid).cpu_times()
    return float(used.user + used.system)
