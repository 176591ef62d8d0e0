"""What becomes of each message that was chosen: sent, or left out, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812

from backlogctl_delivery import stamps
from spark_backfill.messages.rules import ORIGINAL
from spark_backfill.originals.frame import format_message_time, last_header
from spark_backfill.originals.identity import hash_original_id, identify
from spark_backfill.originals.placing import count_replays, measure_originals, place_originals
from spark_backfill.redrive.dead_letters import list_patterns, strip_headers, trace_letters
from spark_backfill.redrive.request import Origin

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from spark_backfill.redrive.request import RedriveRequest

STAGED, ELSEWHERE, REPEATED, PUT_BACK, HANDLED, REPLAYS, QUARANTINED = (
    "staged",
    "elsewhere",
    "repeated",
    "put_back",
    "handled",
    "replays",
    "quarantined",
)
ORDER = ("home_partition", "home_offset", "source_partition", "source_offset")


def make_messages(matched: DataFrame, request: RedriveRequest) -> DataFrame:
    """Messages as they would be sent, each with its id, place and size.

    Returns:
        The columns that `stage_messages` takes, those of `ORDER`, and timestamp, replayed int (how
        often it was put back before), size long, and of dead letters written_at (ms),
        origin_topic, error_class, error_line, stripped.
    """
    if request.origin_kind is Origin.DEAD_LETTERS:
        return _make_letters(matched, request)
    own = hash_original_id(request.topic_id, F.col("source_partition"), F.col("source_offset"))
    if request.is_unhandled:
        # A copy that nobody handled is the message that it copies.
        own = F.coalesce(_find_stamp(), own)
    return matched.select(
        F.col("source_partition").alias("home_partition"),
        F.col("source_offset").alias("home_offset"),
        *_select_shared(request, F.col("source_partition"), request.partitions),
        own.alias("message_id"),
        format_message_time().alias("original_time"),
        *(
            F.lit(None).cast(kind).alias(name)
            for name, kind in (
                ("origin_topic", "string"),
                ("error_class", "string"),
                ("error_line", "string"),
                ("stripped", "array<string>"),
            )
        ),
    )


def _make_letters(matched: DataFrame, request: RedriveRequest) -> DataFrame:
    known = request.stream.redrive.dead_letters
    traced = trace_letters(matched, known, request.stream.topic)
    bare = strip_headers(traced, list_patterns(known))
    place, offset = F.col("home_partition"), F.col("home_offset")
    own = hash_original_id(request.topic_id, F.col("source_partition"), F.col("source_offset"))
    # Its own place, where it does not say which message it was.
    home = hash_original_id(
        request.stream_topic_id, F.coalesce(place, F.lit(0)), F.coalesce(offset, F.lit(0))
    )
    timed = bare.withColumns(
        {
            "written_at": F.col("timestamp"),
            "timestamp": F.coalesce("sent_at", "timestamp"),
            "timestamp_type": F.when(F.col("sent_at").isNotNull(), F.lit(0)).otherwise(
                F.col("timestamp_type")
            ),
        }
    )
    return timed.select(
        "home_partition",
        "home_offset",
        *_select_shared(request, place, request.stream_partitions),
        F.when(offset.isNull(), own).otherwise(home).alias("message_id"),
        format_message_time().alias("original_time"),
        "written_at",
        "origin_topic",
        "error_class",
        "error_line",
        "stripped",
    )


def _find_stamp() -> Column:
    """The id that a recovery gave a message; NULL for one that none wrote."""
    return last_header(stamps.MESSAGE_ID).cast("string")


def _select_shared(request: RedriveRequest, partition: Column, of: int) -> list[Column]:
    replayed = count_replays()
    return [
        place_originals(
            partition,
            of=of,
            partitioner=request.stream.partitioner,
            partitions=request.target_partitions,
            fallback=F.col("source_partition"),
        ).alias("slot"),
        F.lit(0).alias("segment"),
        F.col("source_partition"),
        F.col("source_offset"),
        F.col("timestamp"),
        F.col("key"),
        F.col("value"),
        F.col("headers"),
        F.lit(ORIGINAL).alias("fidelity"),
        replayed.alias("replayed"),
        (replayed + 1).alias("replays"),
        measure_originals().alias("size"),
    ]


def label_messages(
    frozen: DataFrame,
    put_back: DataFrame,
    request: RedriveRequest,
    handled: DataFrame | None = None,
) -> DataFrame:
    """Adds `label`: what becomes of it.

    Args:
        handled: `key binary`, the identities in the consumer's own table; None does not ask.
    """
    known = (
        put_back.select(F.col("key").alias("message_id"))
        .distinct()
        .withColumn("known", F.lit(True))
    )
    marked = frozen.withColumn("is_copy", _find_stamp().isNotNull())
    marked = marked.join(known, "message_id", "left").withColumn(
        "known", F.coalesce("known", F.lit(False))
    )
    label = F.when(F.col("size") > request.target_max_bytes, QUARANTINED).otherwise(STAGED)
    if request.max_replays is not None:
        label = F.when(F.col("replayed") >= request.max_replays, REPLAYS).otherwise(label)
    if handled is not None:
        assert request.stream.source is not None
        keys = handled.select(F.col("key").alias("handled_key")).distinct()
        identity = identify(request.stream.source.identity.header)
        marked = marked.join(keys, identity == F.col("handled_key"), "left")
        label = F.when(F.col("handled_key").isNotNull(), HANDLED).otherwise(label)
    label = F.when(F.col("known"), PUT_BACK).otherwise(label)
    if request.is_unhandled:
        newest = Window.partitionBy("message_id").orderBy(
            _find_stamp().isNull(), F.desc("timestamp"), *map(F.desc, ORDER[2:])
        )
        marked = marked.withColumn("__rank", F.row_number().over(newest))
        label = F.when(F.col("__rank") > 1, REPEATED).otherwise(label)
    if request.origin_kind is Origin.DEAD_LETTERS:
        newest = Window.partitionBy("message_id").orderBy(
            F.desc("written_at"), F.desc("source_offset"), F.desc("source_partition")
        )
        marked = marked.withColumn("__rank", F.row_number().over(newest))
        label = F.when(F.col("__rank") > 1, REPEATED).otherwise(label)
        foreign = F.coalesce(F.col("origin_topic") != request.stream.topic, F.lit(False))
        label = F.when(foreign, ELSEWHERE).otherwise(label)
    return marked.withColumn("label", label).drop("handled_key")
