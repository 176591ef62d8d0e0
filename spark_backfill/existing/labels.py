"""What becomes of messages that exist: sent, or left out, and why."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812

from backlogctl.manifests import MESSAGES_FOLDER
from backlogctl.spark_backfill.existing.messages import (
    count_replays,
    format_message_time,
    hash_original_id,
    identify,
    measure_originals,
    place_originals,
)
from backlogctl.spark_backfill.existing.origins import strip_headers, trace_letters
from backlogctl.spark_backfill.existing.request import Origin
from backlogctl.spark_backfill.messages.rules import ORIGINAL
from backlogctl.spark_backfill.spark.frames import last_header
from backlogctl_delivery import stamps

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from backlogctl.spark_backfill.existing.request import RedriveRequest

# Dead letters that name one place: are they one message?
#
# Who corrected a letter left its key, and the original's time, as they were. A topic that was made
# anew counts from zero again, and a header may be wrong: such a letter is another message.

_PLACE = ("source_partition", "source_offset")
_ID_LENGTH = 32


def distinguish_letters(frozen: DataFrame) -> DataFrame:
    """The frozen letters; those of one place that are other messages than its oldest have ids of
    their own, which every plan makes the same.

    A time that a letter does not say is that of the oldest one of its key. Only ids, keys' hashes
    and times are shuffled; nothing is joined where no letter is another message.
    """
    written = "ORDER BY written_at, source_partition, source_offset"
    named = frozen.where("home_offset IS NOT NULL AND NOT is_empty").selectExpr(
        *_PLACE, "message_id", "written_at", "sent_at", "coalesce(sha2(key, 256), 'null') AS of_key"
    )
    known = named.selectExpr(
        "*",
        "coalesce(sent_at, first_value(sent_at, true) OVER (PARTITION BY message_id, of_key "
        f"{written} ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING)) AS at",
    )
    said = known.selectExpr(
        *_PLACE, "message_id", "written_at", "concat_ws(' ', of_key, CAST(at AS string)) AS said"
    )
    oldest = f"first_value(said) OVER (PARTITION BY message_id {written})"
    others = said.selectExpr("*", f"{oldest} AS first").where("said != first")
    if others.isEmpty():
        return frozen
    renamed = others.selectExpr(
        *_PLACE, f"substring(sha2(concat(message_id, said), 256), 1, {_ID_LENGTH}) AS other_id"
    )
    joined = frozen.join(renamed, list(_PLACE), "left")
    return joined.withColumn("message_id", F.coalesce("other_id", "message_id")).drop("other_id")


# What becomes of each message that was chosen: sent, or left out, and why.

STAGED, ELSEWHERE, UNNAMED, EMPTY, REPEATED, PUT_BACK, HANDLED, REPLAYS, QUARANTINED = (
    "staged",
    "elsewhere",
    "unnamed",
    "empty",
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
        often it was put back before), size long, and of dead letters written_at, sent_at (ms),
        origin_topic, error_class, error_line, hops, is_bare, is_empty, stripped.
    """
    if request.origin_kind is Origin.DEAD_LETTERS:
        return _make_letters(matched, request)
    own = hash_original_id(request.topic_id, "source_partition", "source_offset")
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
                ("hops", "string"),
                ("stripped", "array<string>"),
            )
        ),
    )


def _make_letters(matched: DataFrame, request: RedriveRequest) -> DataFrame:
    known = request.stream.redrive.dead_letters
    traced = trace_letters(
        *(matched, known, request.stream.topic, request.stream_topic_id),
        takes_unnamed=request.takes_unnamed,
    )
    bare = strip_headers(traced, known)
    place, offset = F.col("home_partition"), F.col("home_offset")
    own = hash_original_id(request.topic_id, "source_partition", "source_offset")
    # Its own place, where it does not say which message it was.
    home = hash_original_id(
        request.stream_topic_id, "coalesce(home_partition, 0)", "coalesce(home_offset, 0)"
    )
    timed = bare.withColumns(
        {
            "written_at": F.col("timestamp"),
            "timestamp": F.coalesce("sent_at", "timestamp"),
            # Without a type the time is that of the letter, not of its message.
            "timestamp_type": F.expr(
                "CASE WHEN sent_at IS NOT NULL OR is_timed THEN 0 ELSE -1 END"
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
        "sent_at",
        "origin_topic",
        "error_class",
        "error_line",
        "hops",
        "is_bare",
        "is_empty",
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
    """Adds `label`: what becomes of it; and of dead letters `differs boolean`, whether the newest
    of the same message has another value.

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
    if request.origin_kind is not Origin.DEAD_LETTERS:
        return marked.withColumn("label", label).drop("handled_key")
    newest = Window.partitionBy("message_id").orderBy(
        "is_empty", F.desc("written_at"), F.desc("source_offset"), F.desc("source_partition")
    )
    # A column of its own: hashes are shuffled, and no values.
    marked = marked.withColumn("content", F.coalesce(F.sha2("value", 256), F.lit("null")))
    marked = marked.withColumns(
        {
            "__rank": F.row_number().over(newest),
            "differs": F.col("content") != F.first("content").over(newest),
        }
    )
    label = F.when(F.col("__rank") > 1, REPEATED).otherwise(label)
    label = F.when(F.col("is_empty"), EMPTY).otherwise(label)
    if not request.takes_unnamed:
        label = F.when(F.col("origin_topic").isNull(), UNNAMED).otherwise(label)
    foreign = F.coalesce(F.col("origin_topic") != request.stream.topic, F.lit(False))
    label = F.when(foreign, ELSEWHERE).otherwise(label)
    return marked.withColumn("label", label).drop("handled_key")


# Why dead letters failed: class and first line, counted. The lines may hold what messages hold.
#
# They lie beside the staged messages and expire with these; no plan, ledger or report has them.

_FILE = "errors.json"
_MOST = 50


@dataclass(frozen=True, slots=True)
class ErrorGroup:
    """Dead letters of one error: its class, and the first line of its message ("" for none)."""

    error: str
    line: str
    count: int


def write_errors(labels: DataFrame, directory: Path) -> None:
    """Of the messages that are staged, the commonest."""
    from pyspark.sql import functions as F  # noqa: N812

    rows = (
        labels.where((F.col("label") == STAGED) & F.col("error_class").isNotNull())
        .groupBy("error_class", F.coalesce("error_line", F.lit("")).alias("line"))
        .count()
        .orderBy(F.desc("count"), "error_class", "line")
        .limit(_MOST)
        .collect()
    )
    if not rows:
        return
    path = directory / MESSAGES_FOLDER / _FILE
    value = [[row["error_class"], row["line"], row["count"]] for row in rows]
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        json.dump(value, file, ensure_ascii=False)


def read_errors(directory: Path) -> tuple[ErrorGroup, ...]:
    """What is still there of it; nothing where the staged messages have expired."""
    try:
        value = json.loads((directory / MESSAGES_FOLDER / _FILE).read_text(encoding="utf-8"))
        return tuple(ErrorGroup(*item) for item in value)
    except (OSError, ValueError, TypeError):
        return ()
