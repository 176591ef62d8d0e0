"""The partitioners of Kafka's clients as Spark columns: no key leaves the JVM."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F  # noqa: N812

_KAFKA_UTILS = "org.apache.kafka.common.utils.Utils"


def _hash_murmur2(key: Column) -> Column:
    """Kafka's own `murmur2`, called by the code that Spark generates; NULL for a NULL key.

    Spark's SQL has no such call, and the same in SQL's arithmetic takes many times as long.
    """
    jvm = SparkSession.active()._jvm
    assert jvm is not None
    catalyst = jvm.org.apache.spark.sql.catalyst.expressions.objects
    utils = jvm.org.apache.spark.sql.classic.ExpressionUtils
    call = catalyst.StaticInvoke(
        jvm.org.apache.spark.util.Utils.classForName(_KAFKA_UTILS, True, True),
        jvm.org.apache.spark.sql.types.DataType.fromDDL("int"),
        "murmur2",
        jvm.PythonUtils.toSeq([utils.expression(key._jc)]),
        jvm.PythonUtils.toSeq([]),
        True,  # NULL for NULL
        True,  # may be NULL
        True,  # deterministic
        jvm.scala.Option.empty(),
    )
    return Column(utils.column(call))


def _place_murmur2(key: Column, partitions: int) -> Column:
    return _hash_murmur2(key).bitwiseAND(F.lit(0x7FFFFFFF)) % F.lit(partitions)


def _place_crc32(key: Column, partitions: int) -> Column:
    return (F.crc32(key) % F.lit(partitions)).cast("int")


# What `backlog.partitioners` says, to the bit.
PLACES: Mapping[str, Callable[[Column, int], Column]] = {
    "murmur2": _place_murmur2,
    "crc32": _place_crc32,
}
