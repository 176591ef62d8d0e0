"""A topic's messages as a data frame: read committed, with the times that producers wrote.

Spark's Kafka source makes a TIMESTAMP, in microseconds, of each message's time, also where nobody
asks for it. One message with nanoseconds ends such a read with "long overflow". So what reads for
that source reads here too (`KafkaSourceRDD`), and Spark's encoder of Java objects makes the rows:
the time stays the number that it is (decision 0052).
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from backlogctl.spark_backfill.spark.kafka_options import make_java_options
from backlogctl.values import OffsetRange

if TYPE_CHECKING:
    from pyspark.sql import Column

HEADERS = "array<struct<name:string,value:binary>>"
MESSAGE_SCHEMA = (
    "partition int, offset long, timestamp long, timestamp_type tinyint, key binary, value binary, "
    f"headers {HEADERS}"
)
# The last millisecond of the year 9999.
_LAST_MS = 253_402_300_799_999


def known_time() -> Column:
    """A message's time, ms since 1970; NULL where it has none, or a number that is no time of ours:
    producers write any, some in microseconds or nanoseconds."""
    known = (F.col("timestamp_type") >= 0) & F.col("timestamp").between(0, _LAST_MS)
    return F.when(known, F.col("timestamp"))


_DESERIALIZER = "org.apache.kafka.common.serialization.ByteArrayDeserializer"
_PROPERTIES: Mapping[str, str] = {
    "key.deserializer": _DESERIALIZER,
    "value.deserializer": _DESERIALIZER,
    "enable.auto.commit": "false",
    "auto.offset.reset": "none",
    # The client's default is read_uncommitted, which gives aborted messages too.
    "isolation.level": "read_committed",
    # The default, 500, costs the client more than the messages themselves.
    "max.poll.records": "5000",
    "max.partition.fetch.bytes": str(8 * 1024 * 1024),
    # Spark asks for the log's edges after each poll, on the connection on which the client has
    # fetched ahead already: at the log's end the answer would come after the default, 500 ms.
    "fetch.max.wait.ms": "20",
    # While the client looks an offset up it may sleep until its next look at the metadata: with the
    # default, for the whole minute of its time limit (seen on a busy machine).
    "metadata.max.age.ms": "2000",
}
# How long a task waits for the next message: Spark's own default.
_POLL_MS = 120_000


class TopicReader:
    """Reads ranges of one topic.

    Args:
        properties: of the client, as librdkafka names them.
        tuning: of Java's client, over our own.

    Raises:
        ConfigurationError: Java's client cannot be what `properties` say.
    """

    def __init__(
        self,
        spark: SparkSession,
        properties: Mapping[str, str],
        topic: str,
        tuning: Mapping[str, str] | None = None,
    ) -> None:
        self._spark = spark
        self._topic = topic
        # It joins no group and commits nothing; by the id Spark knows its consumers again.
        self._properties = {
            "group.id": f"backlogctl-read-{uuid.uuid4().hex[:8]}",
            **_PROPERTIES,
            **(tuning or {}),
            **make_java_options(properties),
        }

    def read(self, ranges: Sequence[OffsetRange], tasks: int = 0) -> DataFrame:
        """Messages in the columns of `MESSAGE_SCHEMA`, a task for each range; what retention
        removes meanwhile fails it.

        Args:
            tasks: at least about so many: ranges are cut.
        """
        jvm: Any = self._spark._jvm
        kafka, none = jvm.org.apache.kafka.common, _get_object(jvm.scala, "None")
        source = jvm.org.apache.spark.sql.kafka010
        pieces = [
            source.KafkaOffsetRange(
                kafka.TopicPartition(self._topic, item.partition), item.start, item.end, none
            )
            for item in _cut(ranges, tasks)
        ]
        properties = jvm.java.util.HashMap()
        for name, value in self._properties.items():
            properties.put(name, value)
        records = source.KafkaSourceRDD(
            self._spark._jsc.sc(), properties, jvm.PythonUtils.toSeq(pieces), _POLL_MS, True
        )
        session = self._spark._jsparkSession
        sql = jvm.org.apache.spark.sql
        plan = _get_object(sql.execution, "ExternalRDD").apply(records, session, _make_encoder(jvm))
        return DataFrame(sql.classic.Dataset.ofRows(session, plan), self._spark).select(
            "partition",
            "offset",
            "timestamp",
            F.expr(
                "CAST(CASE type.name WHEN 'CREATE_TIME' THEN 0 WHEN 'LOG_APPEND_TIME' THEN 1 "
                "ELSE -1 END AS tinyint)"
            ).alias("timestamp_type"),
            "key",
            "value",
            F.col("headers.all").alias("headers"),
        )


@lru_cache(maxsize=1)
def _make_encoder(jvm: Any) -> Any:
    """What makes a row of Kafka's own ConsumerRecord: of each column the method that gives it.
    Some 200 calls to the JVM, so one for all reads."""
    kinds = jvm.org.apache.spark.sql.catalyst.encoders
    text, data, int_, long_ = (
        _get_object(kinds, f"AgnosticEncoders${name}Encoder")
        for name in ("String", "Binary", "PrimitiveInt", "PrimitiveLong")
    )
    describe = partial(_describe, jvm)
    header = describe("common.header.Header", ("name", "key", text), ("value", "value", data))
    several = getattr(kinds, "AgnosticEncoders$ArrayEncoder")(header, False)
    kind = describe("common.record.TimestampType", ("name", "name", text))
    headers = describe("common.header.Headers", ("all", "toArray", several))
    record = describe(
        "clients.consumer.ConsumerRecord",
        ("partition", "partition", int_),
        ("offset", "offset", long_),
        ("timestamp", "timestamp", long_),
        ("type", "timestampType", kind),
        ("key", "key", data),
        ("value", "value", data),
        ("headers", "headers", headers),
    )
    return kinds.ExpressionEncoder.apply(record)


def _describe(jvm: Any, name: str, *columns: tuple[str, str, Any]) -> Any:
    """The encoder of one of Kafka's classes.

    Args:
        columns: each column's name, the method that gives it, and its encoder.
    """
    kinds, none = jvm.org.apache.spark.sql.catalyst.encoders, _get_object(jvm.scala, "None")
    field = getattr(kinds, "AgnosticEncoders$EncoderField")
    no_metadata = jvm.org.apache.spark.sql.types.Metadata.empty()
    fields = [
        field(column, kind, not kind.isPrimitive(), no_metadata, jvm.scala.Some(method), none)
        for column, method, kind in columns
    ]
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    found = jvm.java.lang.Class.forName(f"org.apache.kafka.{name}", True, loader)
    return getattr(kinds, "AgnosticEncoders$JavaBeanEncoder")(
        jvm.scala.reflect.ClassTag.apply(found), jvm.PythonUtils.toSeq(fields)
    )


def _get_object(package: Any, name: str) -> Any:
    """One of Scala's objects, which Java knows as a class with one instance."""
    return getattr(getattr(package, f"{name}$"), "MODULE$")


def _cut(ranges: Sequence[OffsetRange], tasks: int) -> list[OffsetRange]:
    """The ranges in order, the larger ones in parts, so that there are about so many."""
    size = max(1, sum(item.count for item in ranges) // max(1, tasks))
    found = []
    for item in ranges:
        parts = max(1, item.count // size) if tasks > len(ranges) else 1
        edges = [item.start + item.count * each // parts for each in range(parts + 1)]
        found += [OffsetRange(item.partition, a, b) for a, b in pairwise(edges) if b > a]
    return found
