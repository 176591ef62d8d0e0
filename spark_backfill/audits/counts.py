"""How many rows, messages and handled rows there are in each window of event time.

Each tier is counted by the time of the row, so that a message that came late is counted where its
row is. Identities are counted, not records: a repeat counts once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from statistics import median_low
from typing import TYPE_CHECKING, Any

from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812

from backlogctl.spark_backfill.existing.messages import format_message_time
from backlogctl.spark_backfill.spark.frames import last_header
from backlogctl.spark_backfill.spark.topic import known_time
from backlogctl_delivery import stamps

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

MOST_WINDOWS = 200
_DAY = timedelta(days=1)
_WIDTHS = (
    timedelta(minutes=1),
    timedelta(minutes=5),
    timedelta(minutes=15),
    timedelta(hours=1),
    _DAY,
)
_MS = timedelta(milliseconds=1)
# The first ones of a partition: most of them are as old as what expired before them.
_FIRST = 5
_TIERS = (
    "rows",
    "messages",
    "archived",
    "handled",
    "rows_without_message",
    "messages_without_row",
    "not_handled",
)


@dataclass(frozen=True, slots=True)
class CountWindow:
    """Event times `[start, end)`, and what of them is where.

    Attributes:
        rows: identities of the source table.
        messages: those of these whose message is in the topic.
        archived: those whose message is in an archive and not in the topic, and that nobody
            handled: it waits to be put back.
        handled: those of these that the consumer's own table has; None without such a table.
        rows_without_message: rows whose message is in neither, and that nobody handled.
        messages_without_row: identities of messages, by the messages' own time, that no row has.
        not_handled: rows whose message the group has read, and that its table lacks; None without
            such a table.
    """

    start: datetime
    end: datetime
    rows: int
    messages: int
    archived: int
    handled: int | None
    rows_without_message: int
    messages_without_row: int
    not_handled: int | None


@dataclass(frozen=True, slots=True)
class Stretch:
    """Event times `[start, end)` in which so many are missing."""

    start: datetime
    end: datetime
    count: int


@dataclass(frozen=True, slots=True)
class CountsAudit:
    """What the tiers hold.

    Attributes:
        windows: all of the span in order, also those in which nothing is.
        repeats: messages of these windows beyond the first of their identity.
        put_back: messages of these windows that a recovery put back.
        unknown_rows: identities of messages of these windows that no row has.
        without_identity: messages that have none, whatever their time.
        unplaced_rows: rows without a time or an identity that can be read, and without a message.
        pairs: of up to one row a window, the times of its message and of itself, ms since 1970.
    """

    windows: tuple[CountWindow, ...]
    repeats: int
    put_back: int
    unknown_rows: int
    without_identity: int
    unplaced_rows: int
    pairs: tuple[tuple[int, int], ...]


def choose_width(begin: datetime, end: datetime) -> timedelta:
    """The narrowest of 1 min, 5 min, 15 min, 1 h and whole days that makes at most about 200
    windows."""
    fitting = (width for width in _WIDTHS if end - begin <= MOST_WINDOWS * width)
    days = -(-(end - begin) // (MOST_WINDOWS * _DAY))
    return next(fitting, days * _DAY)


def find_heads(messages: DataFrame) -> dict[int, int]:
    """About when the first messages of each partition were sent, ms since 1970.

    The middle one of the first few: one of them that came late says nothing of what expired before
    it. What a recovery put back, and what has no time, does not count.

    Args:
        messages: the beginning of each partition, in the columns of `ORIGINALS_SCHEMA`.
    """
    line = Window.partitionBy("source_partition").orderBy("source_offset")
    rows = (
        messages.withColumn("timestamp", known_time())
        .where(F.col("timestamp").isNotNull() & ~_is_put_back())
        .withColumn("place", F.row_number().over(line))
        .where(F.col("place") <= _FIRST)
        .select("source_partition", "timestamp")
        .collect()
    )
    found: dict[int, list[int]] = {}
    for row in rows:
        found.setdefault(row["source_partition"], []).append(row["timestamp"])
    return {partition: median_low(times) for partition, times in found.items()}


def as_tier(messages: DataFrame, header: str | None, is_read: Column) -> DataFrame:
    """Messages as `count_tiers` takes them.

    Args:
        messages: in the columns of `ORIGINALS_SCHEMA`, and what `is_read` names.
        header: the header that identifies a message; None for the key.
        is_read: whether the group has read it.

    Returns:
        identity binary, at_ms long (of one that was put back, the time of the original; NULL for
        none), is_put_back, is_read.
    """
    return messages.select(
        (F.col("key") if header is None else last_header(header)).alias("identity"),
        F.unix_millis(format_message_time().try_cast("timestamp")).alias("at_ms"),
        _is_put_back().alias("is_put_back"),
        is_read.alias("is_read"),
    )


def count_tiers(
    rows: DataFrame,
    messages: DataFrame,
    consumed: DataFrame | None,
    *,
    begin: datetime,
    end: datetime,
    width: timedelta,
    archived: DataFrame | None = None,
) -> CountsAudit:
    """Reads each frame once, and counts what lies in `[begin, end)`.

    Windows are aligned to the clock (UTC); the first and the last one may be narrower.

    Args:
        rows: identity binary, at_ms long; NULL where there is none.
        messages: as `as_tier` gives them.
        consumed: identity binary; None where the consumer has no table.
        archived: messages that were moved out of the topic, as `as_tier` gives them; one that is
            also in `messages` was put back, and is counted there.
    """
    all_of = _shape(rows, row_ms="at_ms", rows="1L").unionAll(_as_messages(messages))
    if consumed is not None:
        all_of = all_of.unionAll(_shape(consumed, is_handled="true"))
    if archived is not None:
        all_of = all_of.unionAll(_shape(archived, message_ms="at_ms", archived="1L"))
    marked = _mark(all_of, _to_ms(begin), _to_ms(end), width // _MS)
    found = {row["window"]: row for row in _sum_up(marked).collect()}
    windows = _fill_windows(found, begin, end, width, has_consumed=consumed is not None)
    inside = [row for number, row in found.items() if number is not None]
    return CountsAudit(
        windows=windows,
        repeats=sum(row["repeats"] for row in inside),
        put_back=sum(row["put_back"] for row in inside),
        unknown_rows=sum(window.messages_without_row for window in windows),
        without_identity=sum(row["without_identity"] for row in found.values()),
        unplaced_rows=sum(row["unplaced_rows"] for row in found.values()),
        pairs=tuple((pair[0], pair[1]) for row in inside if (pair := row["pair"]) is not None),
    )


def _is_put_back() -> Column:
    return F.coalesce(F.array_contains(F.col("headers.name"), stamps.RECOVERY_ID), F.lit(False))


def _to_ms(at: datetime) -> int:
    return (at - datetime(1970, 1, 1, tzinfo=UTC)) // _MS


def _from_ms(at: int) -> datetime:
    return datetime.fromtimestamp(at / 1000, UTC)


def _as_messages(messages: DataFrame) -> DataFrame:
    ours = "cast(is_put_back as long)"
    return _shape(messages, message_ms="at_ms", messages="1L", put_back=ours, is_read="is_read")


# What is counted of one row, one message, or one handled identity, and what it is where the tier
# does not say it; and how it is added up.
_COUNTED = {
    # The newest version of a row that is there several times.
    "row_ms": ("cast(null as long)", F.max),
    "rows": ("0L", F.sum),
    "message_ms": ("cast(null as long)", F.min),
    "messages": ("0L", F.sum),
    "archived": ("0L", F.sum),
    "put_back": ("0L", F.sum),
    "is_read": ("false", F.max),
    "is_handled": ("false", F.max),
}


def _shape(frame: DataFrame, **given: str) -> DataFrame:
    counted = (f"{given.get(name, none)} as {name}" for name, (none, _) in _COUNTED.items())
    return frame.selectExpr("identity", *counted)


def _mark(all_of: DataFrame, begin: int, end: int, width: int) -> DataFrame:
    """A row for each identity (one for all that have none), and the window that it belongs to."""
    at = F.when(F.col("rows") > 0, F.col("row_ms")).otherwise(F.col("message_ms"))
    inside = (F.col("at_ms") >= begin) & (F.col("at_ms") < end) & F.col("identity").isNotNull()
    return (
        all_of.groupBy("identity")
        .agg(*(add_up(name).alias(name) for name, (_, add_up) in _COUNTED.items()))
        .withColumn("at_ms", at)
        .withColumn("window", F.when(inside, F.floor(F.col("at_ms") / width).cast("long")))
    )


def _sum_up(marked: DataFrame) -> DataFrame:
    """A row for each window, and one for all that lies in none."""
    nameless = F.col("identity").isNull()
    row, message, handled = F.col("rows") > 0, F.col("messages") > 0, F.col("is_handled")
    archived = F.col("archived") > 0
    lost = row & ~message & ~archived & ~handled
    pair = F.struct("message_ms", "row_ms")
    has_pair = F.col("row_ms").isNotNull() & F.col("message_ms").isNotNull() & ~nameless
    unplaced = F.when(nameless, F.col("rows")).when(lost & F.col("row_ms").isNull(), F.lit(1))
    return marked.groupBy("window").agg(
        F.count_if(row).alias("rows"),
        F.count_if(row & message).alias("messages"),
        F.count_if(row & ~message & archived & ~handled).alias("archived"),
        F.count_if(row & handled).alias("handled"),
        F.count_if(lost).alias("rows_without_message"),
        F.count_if((message | archived) & ~row).alias("messages_without_row"),
        F.count_if(row & message & F.col("is_read") & ~handled).alias("not_handled"),
        F.sum(F.when(message, F.col("messages") - 1).otherwise(0)).alias("repeats"),
        F.sum("put_back").alias("put_back"),
        F.sum(F.when(nameless, F.col("messages") + F.col("archived")).otherwise(0)).alias(
            "without_identity"
        ),
        F.sum(F.coalesce(unplaced, F.lit(0))).alias("unplaced_rows"),
        # Any one will do, as long as it does not depend on the order of reading.
        F.max_by(F.when(has_pair, pair), F.when(has_pair, F.xxhash64("identity"))).alias("pair"),
    )


def _fill_windows(
    found: Mapping[int | None, Any],
    begin: datetime,
    end: datetime,
    width: timedelta,
    *,
    has_consumed: bool,
) -> tuple[CountWindow, ...]:
    if end <= begin:
        return ()
    step, first, last = width // _MS, _to_ms(begin), _to_ms(end)
    windows = []
    for number in range(first // step, -(-last // step)):
        row = found.get(number)
        counts = {name: 0 if row is None else row[name] for name in _TIERS}
        if not has_consumed:
            counts |= {"handled": None, "not_handled": None}
        start, until = max(first, number * step), min(last, (number + 1) * step)
        windows.append(CountWindow(_from_ms(start), _from_ms(until), **counts))
    return tuple(windows)


def list_stretches(windows: Iterable[CountWindow], name: str) -> list[Stretch]:
    """Where the count of that name is not zero; windows that follow each other are one stretch.

    Args:
        windows: in order, without any left out.
    """
    found: list[Stretch] = []
    for window in windows:
        count = getattr(window, name) or 0
        if not count:
            continue
        if found and found[-1].end == window.start:
            last = found.pop()
            found.append(Stretch(last.start, window.end, last.count + count))
        else:
            found.append(Stretch(window.start, window.end, count))
    return found
