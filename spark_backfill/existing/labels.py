"""Dead letters: where each came from, why, and which headers a retry added.

Spring Kafka writes partition and offset as big-endian integers, Kafka Connect and most others as
text. Whatever stands there may be wrong: what cannot be read is NULL.
"""

from __future__ import annotations

import fnmatch
import json
import os
from collections.abc import Sequence
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
    last_header,
    measure_originals,
    place_originals,
)
from backlogctl.spark_backfill.existing.request import Origin
from backlogctl.spark_backfill.messages.rules import ORIGINAL
from backlogctl_delivery import stamps

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from backlogctl.config.streams import DeadLetterHeaders
    from backlogctl.spark_backfill.existing.request import RedriveRequest

# Spring's DeadLetterPublishingRecoverer, its @RetryableTopic, Connect, Streams (KIP-1034), others.
_ORIGINS = (
    *("kafka_dlt-original-", "kafka_original-"),
    *("__connect.errors.", "__streams.errors.", "x-original-"),
)
_TOPICS, _PARTITIONS, _OFFSETS, _TIMES = (
    tuple(f"{each}{word}" for each in _ORIGINS)
    for word in ("topic", "partition", "offset", "timestamp")
)
_CLASSES = (
    # The listener's own wrapper says nothing.
    "kafka_dlt-exception-cause-fqcn",
    "kafka_dlt-exception-fqcn",
    "kafka_exception-cause-fqcn",
    "kafka_exception-fqcn",
    "__streams.errors.exception",
    "__connect.errors.exception.class.name",
    "x-exception-class",
    "x-exception-fqcn",
)
_LINES = (
    "kafka_dlt-exception-message",
    "kafka_exception-message",
    "__streams.errors.message",
    "__connect.errors.exception.message",
    "x-exception-message",
)
STRIPPED = (
    "kafka_dlt-*",
    "kafka_original-*",
    "kafka_exception-*",
    "__connect.errors.*",
    "__streams.errors.*",
    "retry_topic-*",
    "x-original-*",
    "x-exception-*",
)
_LONGEST_NAME = 249
_LONGEST_LINE = 300
_LOOKED_AT = 2000  # bytes of a header of any length
# The plan keeps it, so of a header of one's own no text is taken, which may quote the message.
_OWN_CLASS = r"^([A-Za-z_$][\w$]*(?:\.[\w$]+)*\.[A-Z][\w$]*)(?::|\s*$)"
_LAST_MS = 253_402_300_799_999


def trace_letters(frame: DataFrame, headers: DeadLetterHeaders, topic: str) -> DataFrame:
    """Adds what the headers say.

    Args:
        headers: names of the configuration; they come first.
        topic: the stream's.

    Returns:
        Also origin_topic string (NULL: not said), home_partition int, home_offset long (of the
        stream's topic; NULL where they cannot be read, or it came from another topic), sent_at
        long (ms; the original's own time, NULL where it is not said), error_class, error_line
        string.
    """
    said = _read_text(_choose(headers.topic, _TOPICS), _LONGEST_NAME)
    mine = F.coalesce(said == topic, F.lit(False))
    partition = _read_number(_choose(headers.partition, _PARTITIONS))
    offset = _read_number(_choose(headers.offset, _OFFSETS))
    known = mine & partition.between(0, 2**31 - 1) & (offset >= 0)
    sent = _read_number(_choose(None, _TIMES))
    line = _read_text(_choose(headers.error, _LINES), _LOOKED_AT)
    error = _extract(_choose(None, _CLASSES), r"^([\w.$]+)")
    if headers.error is not None:
        error = F.when(last_header(headers.error).isNull(), error).otherwise(
            _extract(last_header(headers.error), _OWN_CLASS)
        )
    return frame.withColumns(
        {
            "origin_topic": said,
            "home_partition": F.when(known, partition.cast("int")),
            "home_offset": F.when(known, offset),
            "sent_at": F.when(sent.between(0, _LAST_MS), sent),
            "error_class": F.when(error != "", error).otherwise("unknown"),
            "error_line": F.substring(F.split_part(line, F.lit("\n"), F.lit(1)), 1, _LONGEST_LINE),
        }
    )


def list_patterns(headers: DeadLetterHeaders) -> tuple[str, ...]:
    """Glob patterns of what a retry adds; names of the configuration are meant as they are."""
    own = (headers.topic, headers.partition, headers.offset, headers.error)
    return (*STRIPPED, *headers.strip, *(_escape(name) for name in own if name))


def strip_headers(frame: DataFrame, patterns: Sequence[str]) -> DataFrame:
    """Without the headers of these patterns; their names are in `stripped`, each once."""
    matches = _match(patterns)
    return frame.withColumns(
        {
            "headers": F.filter("headers", lambda item: ~item["name"].rlike(matches)),
            "stripped": F.array_distinct(
                F.filter(F.col("headers.name"), lambda name: name.rlike(matches))
            ),
        }
    )


def _match(patterns: Sequence[str]) -> str:
    """Java's pattern for any of these globs; Python says the end of the text otherwise."""
    return "^(?:" + "|".join(fnmatch.translate(p).replace(r"\Z", "") for p in patterns) + r")\z"


def _escape(name: str) -> str:
    return "".join(f"[{char}]" if char in "*?[" else char for char in name)


def _choose(first: str | None, names: Sequence[str]) -> Column:
    """The value of the last header of the first of these names that a message has."""
    found = [last_header(name) for name in ([first] if first else []) + list(names)]
    return F.coalesce(*found)


def _read_text(raw: Column, longest: int) -> Column:
    text = F.substring(raw, 1, _LOOKED_AT).cast("string")
    return F.substring(text, 1, longest)


def _extract(raw: Column, pattern: str) -> Column:
    """The pattern's first group; "" where it does not match, or nothing is there."""
    return F.regexp_extract(F.coalesce(_read_text(raw, _LONGEST_LINE), F.lit("")), pattern, 1)


def _read_number(raw: Column) -> Column:
    """Text of digits, or a big-endian integer of four or eight bytes; NULL for anything else."""
    size = F.octet_length(raw)
    text = F.when(size <= 20, raw.cast("string"))
    digits = F.when(text.rlike(r"^\d{1,19}\z"), text).try_cast("bigint")
    wide = F.conv(F.hex(F.when(size.isin(4, 8), raw)), 16, 10).try_cast("bigint")
    return F.coalesce(digits, wide)


# Dead letters that name one place and are other messages: each has an id of its own.
#
# A topic that was made anew counts from zero again, and a header may be wrong. The oldest letter
# of a place keeps the place's id; the id of another message comes from what it says, so that
# every plan gives it the same one.

_PLACE = ("source_partition", "source_offset")
_ID_LENGTH = 32


def distinguish_letters(frozen: DataFrame) -> DataFrame:
    """The frozen letters, with other ids where key or value is not that of the oldest.

    Values are not shuffled, only their hashes; nothing is joined where no letter differs.
    """
    oldest = Window.partitionBy("message_id").orderBy("written_at", *_PLACE)
    named = frozen.select(*_PLACE, "message_id", "written_at", _hash_content().alias("content"))
    others = named.withColumn("first", F.first("content").over(oldest)).where(
        F.col("content") != F.col("first")
    )
    if others.isEmpty():
        return frozen
    made = F.substring(F.sha2(F.concat("message_id", "content"), 256), 1, _ID_LENGTH)
    renamed = others.select(*_PLACE, made.alias("other_id"))
    joined = frozen.join(renamed, list(_PLACE), "left")
    return joined.withColumn("message_id", F.coalesce("other_id", "message_id")).drop("other_id")


def _hash_content() -> Column:
    """Of key and value; null is not empty."""
    parts = [F.coalesce(F.sha2(F.col(name), 256), F.lit("null")) for name in ("key", "value")]
    return F.sha2(F.concat(*parts), 256)


# What becomes of each message that was chosen: sent, or left out, and why.

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
                ("stripped", "array<string>"),
            )
        ),
    )


def _make_letters(matched: DataFrame, request: RedriveRequest) -> DataFrame:
    known = request.stream.redrive.dead_letters
    traced = trace_letters(matched, known, request.stream.topic)
    bare = strip_headers(traced, list_patterns(known))
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
