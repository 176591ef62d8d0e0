"""Partitioners in Spark place keys as those of Kafka's clients do, to the bit."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyspark.sql import functions as F  # noqa: N812

from backlogctl.partitioners import PARTITIONERS
from backlogctl.spark_backfill.messages.rules import PLACES
from backlogctl.spark_backfill.spark.frames import make_empty

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_there_is_one_for_each_that_a_stream_may_name() -> None:
    assert set(PLACES) == set(PARTITIONERS)


@pytest.mark.parametrize("name", sorted(PARTITIONERS))
@pytest.mark.parametrize("code", ["generated", "interpreted"])
def test_keys_are_placed_alike(spark: SparkSession, name: str, code: str) -> None:
    chance = random.Random(7)
    keys = [chance.randbytes(length) for length in range(70) for _ in range(20)]
    keys += [str(number).encode() for number in range(500)] + [b"\xff" * 9, b"\x80\x00\x7f"]
    numbers = spark.createDataFrame([*enumerate(keys), (len(keys), None)], "n int, key binary")
    factory = "NO_CODEGEN" if code == "interpreted" else "FALLBACK"
    spark.conf.set("spark.sql.codegen.factoryMode", factory)
    spark.conf.set("spark.sql.codegen.wholeStage", str(code == "generated").lower())
    try:
        for partitions in (1, 7, 12, 1000):
            placed = numbers.select("n", PLACES[name](F.col("key"), partitions).alias("slot"))
            assert placed.schema["slot"].dataType.simpleString() == "int"
            found = [row.slot for row in sorted(placed.collect())]
            expected = PARTITIONERS[name](pa.array(keys, pa.binary()), partitions).tolist()
            assert found == [*expected, None]
    finally:
        spark.conf.unset("spark.sql.codegen.factoryMode")
        spark.conf.unset("spark.sql.codegen.wholeStage")


def test_an_empty_frame_needs_no_task(spark: SparkSession) -> None:
    schema = "key binary, headers array<struct<key:string,value:binary>>, n int"
    empty = make_empty(spark, schema)
    assert empty.collect() == []
    assert dict(empty.dtypes)["headers"] == "array<struct<key:string,value:binary>>"
    joined = spark.range(5).join(empty, F.col("id") == F.col("n"), "left")
    plan = joined._jdf.queryExecution().optimizedPlan().toString()
    assert "Join" not in plan
    assert "RDD" not in plan
    assert joined.count() == 5
