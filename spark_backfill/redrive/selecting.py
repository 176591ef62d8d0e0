"""Which messages are meant: by key, and by an SQL expression over what a person sees of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyspark.errors import PySparkException
from pyspark.sql import functions as F  # noqa: N812

from backlog.errors import UsageError
from spark_backfill.failures import find_condition, find_first_cause
from spark_backfill.messages.expressions import check_expression
from spark_backfill.originals.frame import ORIGINALS_SCHEMA
from spark_backfill.spark.frames import make_empty, make_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# More as one expression are slower than a join.
_FEW = 50
_WHOLE = "__message"
WHERE_HINT = (
    "an SQL condition over key, value (text), headers['NAME'], partition, offset, time, such as "
    "\"get_json_object(value, '$.status') = 'PAID'\""
)


def select_keys(frame: DataFrame, keys: Sequence[bytes]) -> DataFrame:
    """Messages of these keys; of every key where there are none."""
    if not keys:
        return frame
    if len(keys) <= _FEW:
        return frame.where(F.col("key").isin([bytearray(key) for key in keys]))
    rows = make_rows(frame.sparkSession, [(key.hex(),) for key in sorted(set(keys))], "hex string")
    wanted = rows.select(F.unhex("hex").alias("__key"))
    return frame.join(F.broadcast(wanted), F.col("key") == F.col("__key"), "left_semi")


def select_where(frame: DataFrame, where: str) -> DataFrame:
    """Messages for which the expression is true; NULL is not."""
    return _view(frame).where(where).select(f"{_WHOLE}.*") if where else frame


def check_where(spark: SparkSession, where: str, *, is_masked: bool) -> None:
    """Refuses an expression that Spark does not take, before anything is read.

    Args:
        is_masked: the expression may hold what the stream's `mask` hides, and is not quoted.

    Raises:
        UsageError: names the expression.
    """
    if not where:
        return
    subject = "--where" if is_masked else f"--where {where}"
    view = _view(make_empty(spark, ORIGINALS_SCHEMA))
    try:
        made = F.expr(where)
        view.where(made).schema  # noqa: B018 - Spark looks at the names and types
        analysed = view.select(made)._jdf.queryExecution().analyzed()
    except PySparkException as error:
        cause = find_first_cause(error)[0].split(" SQLSTATE")[0]
        if is_masked:
            cause = f"{find_condition(error) or type(error).__name__} (not quoted: `mask`)"
        raise UsageError(
            f"is not an SQL condition that Spark takes: {cause}",
            subject=subject,
            hint=WHERE_HINT,
        ) from None
    if why := check_expression(analysed):
        raise UsageError(why, subject=subject, hint=WHERE_HINT)


def _view(frame: DataFrame) -> DataFrame:
    """What the expression sees, and the message beside it."""
    names, values = F.reverse(F.col("headers.name")), F.reverse(F.col("headers.value"))
    distinct = F.array_distinct(names)
    # The last header of a name; a map with a name twice is an error.
    last = F.transform(
        distinct, lambda name: F.element_at(values, F.array_position(names, name).cast("int"))
    )
    return frame.select(
        F.struct("*").alias(_WHOLE),
        F.col("key").cast("string").alias("key"),
        F.col("value").cast("string").alias("value"),
        F.map_from_arrays(distinct, F.transform(last, lambda raw: raw.cast("string"))).alias(
            "headers"
        ),
        F.col("source_partition").alias("partition"),
        F.col("source_offset").alias("offset"),
        F.timestamp_millis("timestamp").alias("time"),
    )
