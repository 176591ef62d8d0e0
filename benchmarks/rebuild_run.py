"""One measured rebuild, in a process of its own: plan, stage, inject, verify; then Spark's sink.

Run by `benchmarks.rebuild`; reads its orders as JSON from standard input, writes JSON to stdout.
"""

from __future__ import annotations

import json
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from backlog.config import Config
from backlog.kafka.admin import create_topic, describe_topic
from backlog.kafka.clients import make_admin, make_producer
from backlog.manifest import read_manifest
from backlog.values import Cause, Certainty, Gap, GapState
from benchmarks.memory import MemoryWatch
from spark_backfill.injection.brakes import InjectionProgress
from spark_backfill.injection.job import InjectionJob
from spark_backfill.injection.ledger_topic import ensure_ledger_topic, snapshot_ledger
from spark_backfill.injection.targets import record_target_ends
from spark_backfill.injection.verification import verify
from spark_backfill.injection.waves import inject
from spark_backfill.messages.staging import CANARY_CHUNKS
from spark_backfill.rebuild import plan_rebuild
from spark_backfill.request import RebuildOutcome, RebuildRequest
from spark_backfill.spark.session import open_session

RECOVERY = "r-20261121-0001"


def make_gaps(lost: dict[str, int], topic: str, topic_id: str) -> tuple[Gap, ...]:
    """One gap a partition, as wide as the messages that were never published."""
    now = datetime.now(UTC)
    return tuple(
        Gap(
            id=f"g-{partition}",
            stream="orders",
            cluster="main",
            topic=topic,
            group="order-service",
            topic_id=topic_id,
            partition=int(partition),
            start=0,
            end=count,
            cause=Cause.EXPIRED,
            certainty=Certainty.EXACT,
            state=GapState.OPEN,
            first_time=None,
            last_time=None,
            detected_at=now,
        )
        for partition, count in lost.items()
    )


def run_rebuild(order: dict[str, Any]) -> dict[str, Any]:
    """Plans, injects and verifies; seconds, rates and peak memory."""
    config = Config.from_text(order["config"], Path(order["directory"]), {"SHOP": order["url"]})
    stream = config.stream("orders")
    properties = dict(config.clusters["main"].client_properties())
    admin = make_admin(properties)
    info = describe_topic(admin, stream.topic)
    spark = open_session(config.spark, "bench")
    with MemoryWatch() as memory:
        ensure_ledger_topic(admin)
        ledger = snapshot_ledger(admin)
        ends = record_target_ends(admin, stream.topic, info.partitions)
        request = RebuildRequest(
            recovery_id=RECOVERY,
            stream=stream,
            sources=config.sources,
            client_properties=properties,
            partitions=info.partitions,
            topic_config=info.config,
            gaps=make_gaps(order["lost"], stream.topic, info.topic_id),
            staging_root=config.staging.dir,
            since=datetime(2026, 10, 31, tzinfo=UTC),
        )
        began = time.monotonic()
        outcome = plan_rebuild(spark, request)
        planned = time.monotonic() - began
        assert outcome.verdict != "surplus", outcome
        assert outcome.counts.rebuilt == sum(order["lost"].values()), outcome.counts
        directory = config.staging.dir / RECOVERY
        job = InjectionJob(
            recovery_id=RECOVERY,
            topic=stream.topic,
            topic_id=info.topic_id,
            partitions=info.partitions,
            plan_hash="bench",
            manifest=read_manifest(directory, outcome.manifest_sha256),
            directory=directory,
            properties=properties,
            ledger=ledger,
            start_offsets=ends,
        )
        warm_transactions(properties)
        marks: list[tuple[float, InjectionProgress]] = []
        began = began_inject = time.monotonic()
        result = inject(
            spark, job, on_progress=lambda progress: marks.append((time.monotonic(), progress))
        )
        injected = time.monotonic() - began
        # The canary is a few small chunks, sent alone and read back: a fixed price.
        canary_at, canary = [mark for mark in marks if mark[1].wave <= CANARY_CHUNKS][-1]
        began = time.monotonic()
        checked = verify(
            spark,
            properties=properties,
            topic=stream.topic,
            topic_id=info.topic_id,
            partitions=info.partitions,
            manifest=job.manifest,
            directory=directory,
            start_offsets=ends,
        )
        checked.require_exact("topic orders")
        verified = time.monotonic() - began
    return {
        **describe_plan(outcome, planned),
        "messages": result.injected,
        "waves": result.waves,
        "inject_seconds": round(injected, 2),
        "messages_per_second": round(result.injected / injected),
        "canary_seconds": round(canary_at - began_inject, 2),
        "after_canary_per_second": round(
            (result.injected - canary.injected) / (marks[-1][0] - canary_at)
        ),
        "verify_seconds": round(verified, 2),
        "peak_mib": memory.peaks,
        "sink": run_spark_sink(spark, job, properties) if order["sink"] else None,
    }


def warm_transactions(properties: dict[str, str]) -> None:
    """A broker makes its transaction log when it is first asked; not a part of an injection."""
    producer = make_producer(properties, transactional_id="warm-up")
    producer.init_transactions(60)


def describe_plan(outcome: RebuildOutcome, seconds: float) -> dict[str, Any]:
    """The plan's figures; rows are those that it read from the table."""
    rows = outcome.counts.candidates
    return {
        "rows": rows,
        "survivors": outcome.counts.surviving,
        "plan_seconds": round(seconds, 2),
        "rows_per_second": round(rows / seconds),
        "read_per_second": round(rows / outcome.seconds["candidates"]),
        "staged_per_second": round(outcome.counts.rebuilt / outcome.seconds["staging"]),
        "parts": dict(outcome.seconds),
        "bytes_per_message": round(outcome.bytes / max(1, outcome.counts.rebuilt)),
    }


def run_spark_sink(
    spark: SparkSession, job: InjectionJob, properties: dict[str, str]
) -> dict[str, Any]:
    """Spark's own Kafka sink on the same staged files: at-least-once, into another topic."""
    topic = f"{job.topic}-sink"
    create_topic(make_admin(properties), topic, partitions=job.partitions, replication=1, config={})
    staged = spark.read.parquet(str(job.directory / "messages"))
    headers = F.transform(
        "headers", lambda h: F.struct(h["name"].alias("key"), h["value"].alias("value"))
    )
    began = time.monotonic()
    (
        staged.select("key", "value", "partition", headers.alias("headers"))
        .write.format("kafka")
        .option("kafka.bootstrap.servers", properties["bootstrap.servers"])
        .option("kafka.compression.type", "lz4")
        .option("kafka.linger.ms", "50")
        .option("includeHeaders", "true")
        .option("topic", topic)
        .save()
    )
    seconds = time.monotonic() - began
    return {
        "seconds": round(seconds, 2),
        "messages_per_second": round(job.manifest.count / seconds),
    }


def main() -> None:
    order = json.load(sys.stdin)
    json.dump(run_rebuild(order), sys.stdout)


if __name__ == "__main__":
    main()
