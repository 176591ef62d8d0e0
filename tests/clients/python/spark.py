"""Spark Structured Streaming: its offsets are in its checkpoint, and nowhere in Kafka."""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession

from backlogctl.spark_backfill.spark.session import ensure_spark_jars
from tests.clients.python.words import ENDING, WORDS, handle, settings


def take(batch: DataFrame, _: int) -> None:
    """A micro-batch."""
    for row in batch.select("partition", "offset").toLocalIterator():
        handle(row.partition, row.offset)


spark = (
    SparkSession.builder.master("local[1]")
    .config("spark.jars", ",".join(map(str, ensure_spark_jars())))
    .config("spark.ui.enabled", "false")
    .config("spark.driver.memory", "512m")
    .config("spark.driver.extraJavaOptions", "-XX:+UseSerialGC -XX:TieredStopAtLevel=1")
    .getOrCreate()
)
query = (
    spark.readStream.format("kafka")
    .option("kafka.bootstrap.servers", WORDS["bootstrap"])
    .option("subscribe", WORDS["topic"])
    .option("startingOffsets", "earliest")
    .options(**settings())
    .load()
    .writeStream.foreachBatch(take)
    .option("checkpointLocation", WORDS["state"])
    .trigger(processingTime=f"{WORDS['commit_ms']} milliseconds")
    .start()
)
while not ENDING.wait(0.1) and query.isActive:
    pass
if (error := query.exception()) is not None:
    raise error
query.stop()
spark.stop()
