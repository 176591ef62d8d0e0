"""Dead letters: where each came from and why, by the headers of the frameworks that write them.

One table has the frameworks' headers, one reader reads them. A letter that failed again has the
headers of each time (here a *hop*): all that is said of it is of one and the same hop. Whatever
stands in a header may be wrong: what cannot be read is NULL.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from backlogctl.spark_backfill.spark.frames import quote
from backlogctl.spark_backfill.spark.topic import HEADERS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from backlogctl.config.streams import DeadLetterHeaders


@dataclass(frozen=True, slots=True)
class Family:
    """What one framework adds to a dead letter, by the headers' names.

    Attributes:
        place: the original's topic, partition, offset and time; None is not written.
        errors: the error's class, the most telling first.
        line: the error's message.
        added: glob patterns of all that it adds.
        key: the message's key, where the letter has another.
        is_common: others use these names too: they are its own only beside the offset.
        is_newest_first: it puts its headers before those of earlier hops, not behind.
        keeps_time: the letter's own timestamp is the message's.
        is_bare: the letter has no headers of the message, and its key and value not always.
    """

    place: tuple[str | None, str | None, str | None, str | None]
    errors: tuple[str, ...] = ()
    line: str | None = None
    added: tuple[str, ...] = ()
    key: str | None = None
    is_common: bool = False
    is_newest_first: bool = False
    keeps_time: bool = False
    is_bare: bool = False

    @property
    def mark(self) -> str | None:
        """The header that each hop has."""
        topic, partition, offset, _ = self.place
        return offset if self.is_common else topic or offset or partition


def _place(prefix: str, time: str | None = "timestamp") -> tuple[str, str, str, str | None]:
    topic, partition, offset = (f"{prefix}{word}" for word in ("topic", "partition", "offset"))
    return topic, partition, offset, None if time is None else f"{prefix}{time}"


def _list_names(prefix: str, *words: str) -> tuple[str, ...]:
    return tuple(f"{prefix}{word}" for word in ("topic", "partition", "offset", *words))


# Each as its source has it. The listener's own wrapper says nothing: its cause comes first.
FAMILIES = (
    # Spring Kafka's DeadLetterPublishingRecoverer: big-endian integers, appended at each hop.
    Family(
        _place("kafka_dlt-original-"),
        ("kafka_dlt-exception-cause-fqcn", "kafka_dlt-exception-fqcn",
         "kafka_dlt-key-exception-fqcn"),
        "kafka_dlt-exception-message",
        ("kafka_dlt-*",),
    ),
    # Its @RetryableTopic: the first hop's place is kept, the last one's error.
    Family(
        _place("kafka_original-"),
        ("kafka_exception-cause-fqcn", "kafka_exception-fqcn", "kafka_key-exception-fqcn"),
        "kafka_exception-message",
        ("kafka_original-*", "kafka_exception-*", "kafka_key-exception-*", "retry_topic-*"),
    ),
    # Kafka Connect: text, appended.
    Family(
        _place("__connect.errors.", None),
        ("__connect.errors.exception.class.name",),
        "__connect.errors.exception.message",
        ("__connect.errors.*",),
        keeps_time=True,
    ),
    # Kafka Streams 4.2 (KIP-1034): text, appended; the topic is null where there is none.
    Family(
        _place("__streams.errors.", None),
        ("__streams.errors.exception",),
        "__streams.errors.message",
        ("__streams.errors.*",),
        keeps_time=True,
    ),
    # Share groups (KIP-1191): text, without the message's headers. Key and value are copied only
    # with errors.deadletterqueue.copy.record.enable; the topic may be its id.
    Family(
        _place("__dlq.errors.", None),
        line="__dlq.errors.message",
        added=("__dlq.errors.*",),
        is_bare=True,
    ),
    # SmallRye, Quarkus: text, put before what is there; then its delayed retries.
    Family(
        _place("dead-letter-", None),
        ("dead-letter-cause-class-name", "dead-letter-exception-class-name"),
        "dead-letter-reason",
        ("dead-letter-*",),
        is_newest_first=True,
    ),
    Family(
        _place("delayed-retry-", "original-timestamp"),
        ("delayed-retry-cause-class-name", "delayed-retry-exception-class-name"),
        "delayed-retry-reason",
        ("delayed-retry-*",),
        is_newest_first=True,
    ),
    # Karafka Pro: text, replaced. Between, the letter's key was the partition.
    Family(
        _place("source_", None),
        added=_list_names("source_", "consumer_group", "attempts", "trace_id", "key"),
        key="source_key",
        is_common=True,
    ),
    # Karafka Pro before, and Arroyo, which appends and names no topic.
    Family(
        _place("original_", None),
        added=_list_names("original_", "consumer_group", "attempts", "key"),
        key="original_key",
        is_common=True,
    ),
    # Spring Cloud Stream (big-endian integers), and many of people's own (text).
    Family(
        _place("x-original-"),
        ("x-exception-class", "x-exception-fqcn"),
        "x-exception-message",
        ("x-original-*", "x-exception-*"),
    ),
)  # fmt: skip

_HOP = (
    "struct<at:int,family:int,topic:binary,partition:binary,offset:binary,time:binary,"
    "error:binary,line:binary,key:binary,own:binary>"
)
_LONGEST_NAME = 249
_LONGEST_LINE = 300
_LOOKED_AT = 2000  # bytes of a header of any length
# The plan keeps it, so of a header of one's own no text is taken, which may quote the message.
_OWN_CLASS = r"^([A-Za-z_$][\w$]*(?:\.[\w$]+)*\.[A-Z][\w$]*)(?::|\s*$)"
_CLASS = r"^([\w.$]+)"
_DIGITS = r"^\d{1,19}\z"
_LAST_MS = 253_402_300_799_999


def trace_letters(
    frame: DataFrame,
    headers: DeadLetterHeaders,
    topic: str,
    topic_id: str,
    *,
    takes_unnamed: bool = False,
) -> DataFrame:
    """Adds what the headers say, of the first hop that names the stream's topic; where none does,
    of the first that names one.

    Args:
        frame: `ORIGINALS_SCHEMA`.
        headers: names of the configuration; their hops come first.
        topic, topic_id: the stream's.
        takes_unnamed: a letter that names no topic is one of the stream's.

    Returns:
        Also origin_topic string (NULL: not said), home_partition int, home_offset long (of the
        stream's topic; NULL where they cannot be read, or it came from another topic), sent_at
        long (ms; the original's own time, NULL where it is not said), is_timed boolean (the
        letter's own timestamp is that time), error_class, error_line string, hops string (the
        topics of more than one place, the first first, else NULL), is_bare boolean (without the
        message's headers), is_empty boolean (it holds no message). The key is the message's.
    """
    own = Family((headers.topic, headers.partition, headers.offset, None))
    families = (own, *FAMILIES)
    mine = f"IN ({quote(topic)}, {quote(topic_id)})"
    first, *others = (_read_hops(each, i, headers.error) for i, each in enumerate(families))
    chain = f"concat({first}, array_sort(concat({', '.join(others)})))"
    chosen = (
        f"coalesce(get(filter(chain, hop -> {_read_name('hop.topic')} {mine}), 0), "
        "get(filter(chain, hop -> hop.topic IS NOT NULL), 0), get(chain, 0))"
    )
    said, named = _read_name("hop.topic"), f"{_read_name('hop.topic')} {mine}"
    known = f"coalesce({named}, {'hop.topic IS NULL' if takes_unnamed else 'false'})"
    partition, offset = _read_number("hop.partition"), _read_number("hop.offset")
    legible = f"{known} AND {partition} BETWEEN 0 AND {2**31 - 1} AND {offset} >= 0"
    sent = _read_number("hop.time")
    error, line = _read_error(headers.error)
    # Two frameworks may tell of one failure.
    places = (
        f"array_distinct(transform(chain, hop -> named_struct('topic', coalesce({said}, '?'), "
        f"'partition', {partition}, 'offset', {offset})))"
    )
    added = {
        "origin_topic": f"CASE WHEN {known} AND hop.topic IS NOT NULL THEN {quote(topic)} "
        f"ELSE {said} END",
        "home_partition": f"CASE WHEN {legible} THEN CAST({partition} AS int) END",
        "home_offset": f"CASE WHEN {legible} THEN {offset} END",
        "sent_at": f"CASE WHEN {sent} BETWEEN 0 AND {_LAST_MS} THEN {sent} END",
        "is_timed": f"timestamp_type = 0 AND {_has(families, 'keeps_time')}",
        "error_class": error,
        "error_line": line,
        "hops": f"CASE WHEN size({places}) > 1 THEN array_join({places}.topic, ' → ') END",
        "is_bare": _has(families, "is_bare"),
        "is_empty": f"key IS NULL AND value IS NULL AND {_has(families, 'is_bare')}",
        "key": "CASE WHEN hop.key IS NULL THEN key ELSE nullif(hop.key, X'') END",
    }
    kept = [name for name in frame.columns if name not in added]
    # Each step is a projection of its own: Spark does not compute the hops for each use of them.
    return (
        frame.selectExpr("*", f"{chain} AS chain")
        .selectExpr("*", f"{chosen} AS hop")
        .selectExpr(*kept, *(f"{text} AS {name}" for name, text in added.items()))
    )


def _read_error(own: str | None) -> tuple[str, str]:
    """Spark SQL of the error's class and of the first line of its message.

    Args:
        own: the configuration's header for it; one in a letter that names no place counts too.
    """
    reason = "hop.own"
    if own is not None:
        alone = f"get(filter(headers, h -> h.name = {quote(own)}), 0).value"
        reason = f"coalesce(hop.own, CASE WHEN hop IS NULL THEN {alone} END)"
    error = (
        f"CASE WHEN {reason} IS NULL THEN {_extract('hop.error', _CLASS)} "
        f"ELSE {_extract(reason, _OWN_CLASS)} END"
    )
    text = _read_text(f"coalesce({reason}, hop.line)", _LOOKED_AT)
    line = f"substring(split_part({text}, '\\n', 1), 1, {_LONGEST_LINE})"
    return f"coalesce(nullif({error}, ''), 'unknown')", line


def _has(families: Sequence[Family], trait: str) -> str:
    """Whether the hop's family has it."""
    numbers = ", ".join(str(i) for i, each in enumerate(families) if getattr(each, trait))
    return f"coalesce(hop.family IN ({numbers}), false)"


def _read_hops(family: Family, number: int, own: str | None) -> str:
    """Spark SQL of a family's hops, the first first.

    The n-th header of a name is the n-th hop's where there is one for each hop; else nobody knows
    whose it is, and it is NULL.

    Args:
        own: the configuration's header for the error, which a letter of any family may have.
    """
    none = f"CAST(array() AS array<{_HOP}>)"
    if family.mark is None:
        return none
    topic, partition, offset, time = family.place
    parts = {
        "topic": [topic],
        "partition": [partition],
        "offset": [offset],
        "time": [time],
        "error": family.errors,
        "line": [family.line],
        "key": [family.key],
        "own": [own],
    }
    names = sorted({name for part in parts.values() for name in part if name})
    values = ", ".join(
        f"'v{i}', transform(filter(headers, h -> h.name = {quote(name)}), h -> h.value)"
        for i, name in enumerate(names)
    )
    at = (
        "filter(transform(headers, (h, i) -> "
        f"CASE WHEN h.name = {quote(family.mark)} THEN i END), i -> i IS NOT NULL)"
    )
    fields = ", ".join(f"'{name}', {_align(part, names)}" for name, part in parts.items())
    place = "-at" if family.is_newest_first else "at"
    hops = f"transform(s.at, (at, i) -> named_struct('at', {place}, 'family', {number}, {fields}))"
    # A lambda of one element, so that the values are read once.
    bound = f"get(transform(array(named_struct('at', {at}, {values})), s -> {hops}), 0)"
    return (
        f"CASE WHEN array_contains(headers.name, {quote(family.mark)}) "
        f"THEN CAST({bound} AS array<{_HOP}>) ELSE {none} END"
    )


def _align(part: Sequence[str | None], names: Sequence[str]) -> str:
    """What hop `i` has of the first of these headers that it has."""
    each = [
        f"CASE WHEN size(s.v{n}) = size(s.at) THEN get(s.v{n}, i) END"
        for n in (names.index(name) for name in part if name)
    ]
    return f"coalesce({', '.join(each)})" if each else "CAST(NULL AS binary)"


def _read_text(raw: str, longest: int) -> str:
    return f"substring(CAST(substring({raw}, 1, {_LOOKED_AT}) AS string), 1, {longest})"


def _read_name(raw: str) -> str:
    return _read_text(raw, _LONGEST_NAME)


def _extract(raw: str, pattern: str) -> str:
    """The pattern's first group; "" where it does not match, or nothing is there."""
    return f"regexp_extract(coalesce({_read_text(raw, _LONGEST_LINE)}, ''), {quote(pattern)}, 1)"


def _read_number(raw: str) -> str:
    """Text of digits, or a big-endian integer of four or eight bytes; NULL for anything else."""
    digits = f"octet_length({raw}) <= 20 AND CAST({raw} AS string) RLIKE {quote(_DIGITS)}"
    return (
        f"CASE WHEN {digits} THEN try_cast(CAST({raw} AS string) AS bigint) "
        f"WHEN octet_length({raw}) IN (4, 8) THEN try_cast(conv(hex({raw}), 16, 10) AS bigint) END"
    )


# Which headers a retry added: they are not sent again.


def strip_headers(frame: DataFrame, headers: DeadLetterHeaders) -> DataFrame:
    """Without what a framework added; the names are in `stripped`, each once.

    Names of the configuration are meant as they are, but for `strip`.
    """
    own = (headers.topic, headers.partition, headers.offset, headers.error)
    sure = [pattern for each in FAMILIES if not each.is_common for pattern in each.added]
    sure += [*headers.strip, *(_escape(name) for name in own if name)]

    def is_added(name: str) -> str:
        common = "".join(
            f" OR (array_contains(headers.name, {quote(str(each.mark))}) "
            f"AND {name} RLIKE {_match(each.added)})"
            for each in FAMILIES
            if each.is_common
        )
        return f"({name} RLIKE {_match(sure)}{common})"

    kept = [name for name in frame.columns if name != "headers"]
    return frame.selectExpr(
        *kept,
        f"CAST(filter(headers, h -> NOT {is_added('h.name')}) AS {HEADERS}) AS headers",
        f"array_distinct(filter(headers.name, name -> {is_added('name')})) AS stripped",
    )


def _match(patterns: Sequence[str]) -> str:
    """Java's pattern for any of these globs; Python says the end of the text otherwise."""
    globs = "|".join(fnmatch.translate(p).replace(r"\Z", "") for p in patterns)
    return quote(rf"^(?:{globs})\z")


def _escape(name: str) -> str:
    return "".join(f"[{char}]" if char in "*?[" else char for char in name)
