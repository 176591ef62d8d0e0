"""Dead letters: where each came from, why, and which headers a retry added.

Spring Kafka writes partition and offset as big-endian integers, Kafka Connect and most others as
text. Whatever stands there may be wrong: what cannot be read is NULL.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812

from spark_backfill.originals.frame import last_header

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from backlog.config.redrive import DeadLetterHeaders

_TOPICS = ("kafka_dlt-original-topic", "__connect.errors.topic", "x-original-topic")
_PARTITIONS = ("kafka_dlt-original-partition", "__connect.errors.partition", "x-original-partition")
_OFFSETS = ("kafka_dlt-original-offset", "__connect.errors.offset", "x-original-offset")
_TIMES = ("kafka_dlt-original-timestamp", "x-original-timestamp")
_CLASSES = (
    # The listener's own wrapper says nothing.
    "kafka_dlt-exception-cause-fqcn",
    "kafka_dlt-exception-fqcn",
    "__connect.errors.exception.class.name",
    "x-exception-class",
    "x-exception-fqcn",
)
_LINES = (
    "kafka_dlt-exception-message",
    "__connect.errors.exception.message",
    "x-exception-message",
)
STRIPPED = (
    "kafka_dlt-*",
    "__connect.errors.*",
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
