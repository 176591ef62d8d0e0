"""Which messages are meant: by key, and by an SQL expression over what a person sees of them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pyspark.errors import PySparkException
from pyspark.sql import functions as F  # noqa: N812

from backlogctl.config import Part, SchemaRegistry, Stream
from backlogctl.errors import UsageError
from backlogctl.schemas.codecs import StreamFormat, list_formats
from backlogctl.spark_backfill.existing.decoding import TEXTS, Readable, add_texts, read_fields
from backlogctl.spark_backfill.existing.messages import COLUMNS, ORIGINALS_SCHEMA
from backlogctl.spark_backfill.failures import find_condition, find_first_cause
from backlogctl.spark_backfill.messages.rules import check_expression
from backlogctl.spark_backfill.spark.frames import make_empty, make_rows
from backlogctl.spark_backfill.spark.topic import known_time

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Observation, SparkSession

# More as one expression are slower than a join.
_FEW = 50
_WHOLE = "__message"
WHERE_HINT = (
    "an SQL condition over key, value (text), headers['NAME'], partition, offset, time, such as "
    "\"get_json_object(value, '$.status') = 'PAID'\""
)
DECODED_HINT = (
    "an SQL condition over the fields of the schema, such as \"value.status = 'PAID'\", "
    "value_json (text), headers['NAME'], partition, offset, time"
)
UNDECODED = "undecoded"


def select_keys(frame: DataFrame, keys: Sequence[bytes]) -> DataFrame:
    """Messages of these keys; of every key where there are none."""
    if not keys:
        return frame
    if len(keys) <= _FEW:
        return frame.where(F.col("key").isin([bytearray(key) for key in keys]))
    rows = make_rows(frame.sparkSession, [(key.hex(),) for key in sorted(set(keys))], "hex string")
    wanted = rows.select(F.unhex("hex").alias("__key"))
    return frame.join(F.broadcast(wanted), F.col("key") == F.col("__key"), "left_semi")


def list_decoded(
    stream: Stream, registries: Mapping[str, SchemaRegistry], where: str
) -> dict[Part, StreamFormat]:
    """The parts with a schema that the expression speaks of."""
    found = list_formats(stream, registries)
    return {
        part: its
        for part, its in found.items()
        if re.search(rf"\b`?{part}(_json)?`?\b", where, re.I)
    }


def select_where(
    frame: DataFrame,
    where: str,
    readable: Mapping[Part, Readable] | None = None,
    seen: Observation | None = None,
) -> DataFrame:
    """Messages for which the expression is true; NULL is not.

    Args:
        readable: parts that have a schema; a message with one that cannot be decoded is not taken,
            whatever the expression says of NULL.
        seen: gets the count of these, as `UNDECODED`.
    """
    if not where:
        return frame
    if not readable:
        return _view(frame).where(where).select(f"{_WHOLE}.*")
    read = add_texts(frame, {part: one.decoder for part, one in readable.items()})
    lacking = F.lit(False)
    for part in readable:
        lacking = lacking | (F.col(part).isNotNull() & F.col(TEXTS[part]).isNull())
    if seen is not None:
        read = read.observe(seen, F.count_if(lacking).alias(UNDECODED))
    return _view(read.where(~lacking), readable).where(where).select(f"{_WHOLE}.*")


def check_where(
    spark: SparkSession,
    where: str,
    *,
    is_masked: bool,
    readable: Mapping[Part, Readable] | None = None,
) -> None:
    """Refuses an expression that Spark does not take, before messages are chosen by it.

    Args:
        is_masked: the expression may hold what the stream's `mask` hides, and is not quoted.
        readable: as `select_where` takes it.

    Raises:
        UsageError: names the expression.
    """
    if not where:
        return
    subject = "--where" if is_masked else f"--where {where}"
    hint = DECODED_HINT if readable else WHERE_HINT
    texts = "".join(f", {TEXTS[part]} string" for part in readable or ())
    view = _view(make_empty(spark, ORIGINALS_SCHEMA + texts), readable)
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
            hint=hint,
        ) from None
    if why := check_expression(analysed):
        raise UsageError(why, subject=subject, hint=hint)


def _view(frame: DataFrame, readable: Mapping[Part, Readable] | None = None) -> DataFrame:
    """What the expression sees, and the message beside it."""
    names, values = F.reverse(F.col("headers.name")), F.reverse(F.col("headers.value"))
    distinct = F.array_distinct(names)
    # The last header of a name; a map with a name twice is an error.
    last = F.transform(
        distinct, lambda name: F.element_at(values, F.array_position(names, name).cast("int"))
    )
    parts = {part: F.col(part).cast("string") for part in ("key", "value")}
    parts |= {part: read_fields(part, one.shape) for part, one in (readable or {}).items()}
    return frame.select(
        F.struct(*COLUMNS).alias(_WHOLE),
        *(made.alias(part) for part, made in parts.items()),
        *(TEXTS[part] for part in readable or ()),
        F.map_from_arrays(distinct, F.transform(last, lambda raw: raw.cast("string"))).alias(
            "headers"
        ),
        F.col("source_partition").alias("partition"),
        F.col("source_offset").alias("offset"),
        F.timestamp_millis(known_time()).alias("time"),
    )
