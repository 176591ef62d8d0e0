"""Messages below a group's committed offset that the consumer's own table does not name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812

from backlogctl.spark_backfill.evidence.consumed import open_consumed
from backlogctl.spark_backfill.existing.messages import hash_original_id, identify
from backlogctl.spark_backfill.spark.frames import last_header, make_rows, mark_within
from backlogctl.spark_backfill.spark.topic import known_time
from backlogctl.values import OffsetRange
from backlogctl_delivery import stamps

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from backlogctl.config import Consumed, Source

MOST_RANGES = 10_000
_PLACE = ["source_partition", "source_offset"]
_OTHER, _LOST, _OLDER = 0, 1, 2


@dataclass(frozen=True, slots=True)
class ConsumedScope:
    """What of the messages is judged, and by what they are known.

    Attributes:
        topic_id: of the topic that they are in.
        header: the header that identifies a message; None for the key.
        settled: by partition, below which offset what was committed should be in the table by now;
            nothing of a partition that is not named is settled.
        since_ms, until_ms: only messages of these times, by their own timestamps, `[since, until)`.
        waived: ranges that somebody gave up; nothing of them is told.
    """

    topic_id: str
    header: str | None
    settled: Mapping[int, int]
    since_ms: int | None = None
    until_ms: int | None = None
    waived: tuple[OffsetRange, ...] = ()


@dataclass(frozen=True, slots=True)
class UnhandledRange:
    """Unhandled messages with no other message between them; offsets inclusive.

    Attributes:
        first_ms, last_ms: earliest and latest of their own times, ms since 1970; None: they have
            none.
        is_older: older than any message that the table names.
    """

    partition: int
    first: int
    last: int
    messages: int
    first_ms: int | None
    last_ms: int | None
    is_older: bool

    @property
    def place(self) -> str:
        """`P:A-B`, as `plan redrive --offsets` takes it."""
        return f"{self.partition}:{self.first}-{self.last}"


@dataclass(frozen=True, slots=True)
class ConsumedCounts:
    """Messages below the committed offset.

    Attributes:
        messages: all of them.
        handled: of those asked for, whose identity the table names.
        repeated: handled ones whose identity several messages have: one row says nothing of each.
        unhandled: settled, and their identity is not in the table nor still to be read.
        older: unhandled ones that are older than any message that the table names.
        not_settled: not in the table, and committed too lately to be judged.
        coming_again: not in the table, and a message of the same identity is still to be read.
        without_identity: no key or header, or a tombstone: never judged.
        tombstones: those of them that have no value.
        put_back: those that recoveries wrote.
    """

    messages: int
    handled: int
    repeated: int
    unhandled: int
    older: int
    not_settled: int
    coming_again: int
    without_identity: int
    tombstones: int
    put_back: int


@dataclass(frozen=True, slots=True)
class ConsumedAudit:
    """What the table lacks.

    Attributes:
        ranges: of the unhandled messages, by partition and offset; at most `MOST_RANGES`. Of a
            message that was put back and left out again, only its newest copy.
        oldest_ms: the time of the oldest message that the table names; None: it names none.
        is_whole: False where there are more ranges than that. The counts are of all.
    """

    counts: ConsumedCounts
    ranges: tuple[UnhandledRange, ...]
    oldest_ms: int | None
    is_whole: bool


def read_consumed(
    spark: SparkSession, sources: Mapping[str, Source], consumed: Consumed, stream: str, work: Path
) -> DataFrame:
    """The identities in the consumer's table as they are now, copied to `work`.

    Returns:
        key binary: distinct, never NULL; text in UTF-8.

    Raises:
        ConfigurationError: there is no such table or column.
        SourceError: it could not be read.
    """
    with open_consumed(spark, sources, consumed, stream, work) as evidence:
        evidence.freeze()
        return evidence.collect_keys()


def audit_consumed(
    messages: DataFrame, later: DataFrame, consumed: DataFrame, scope: ConsumedScope
) -> ConsumedAudit:
    """Reads every message once, and lists those that nobody handled.

    Args:
        messages: below the committed offsets, in the columns of `ORIGINALS_SCHEMA`; committed ones
            only, each offset once.
        later: those at the committed offsets and above, which the group is still to read. Only read
            where something is missing.
        consumed: `key binary`, the identities that were handled. It must have been read after the
            committed offsets.
    """
    marked = _mark(messages, scope).cache()
    missing = None
    try:
        known = _judge_identities(marked, consumed)
        seen, oldest = _count(marked, known)
        missing = known.where("not is_handled and asked > 0").cache()
        if missing.isEmpty():
            return ConsumedAudit(_add_up(seen, {}, 0, 0), (), oldest, is_whole=True)
        fates = _find_fates(missing, later, scope.header)
        counted = _count_fates(fates)
        lost = _list_lost(marked, fates.where("fate = 'lost'"), scope, oldest).cache()
        try:
            unhandled, older = _count_lost(lost)
            ranges = _list_ranges(marked, lost) if unhandled else []
        finally:
            lost.unpersist()
    finally:
        marked.unpersist()
        if missing is not None:
            missing.unpersist()
    return ConsumedAudit(
        counts=_add_up(seen, counted, unhandled, older),
        ranges=tuple(ranges[:MOST_RANGES]),
        oldest_ms=oldest,
        is_whole=len(ranges) <= MOST_RANGES,
    )


def _mark(messages: DataFrame, scope: ConsumedScope) -> DataFrame:
    stamp = last_header(stamps.MESSAGE_ID).cast("string")
    frame = messages.select(
        *_PLACE,
        known_time().alias("at_ms"),
        F.col("value").isNull().alias("is_tombstone"),
        identify(scope.header).alias("identity"),
        stamp.alias("stamp"),
    )
    frame = frame.withColumn("is_put_back", F.col("stamp").isNotNull())
    rows = make_rows(
        frame.sparkSession, sorted(scope.settled.items()), "settled_home int, settled_end long"
    )
    frame = frame.join(
        F.broadcast(rows), F.col("source_partition") == F.col("settled_home"), "left"
    )
    settled = F.coalesce(F.col("source_offset") < F.col("settled_end"), F.lit(False))
    frame = mark_within(
        frame.withColumn("is_settled", settled).drop("settled_home", "settled_end"),
        scope.waived,
        "is_waived",
        partition="source_partition",
        offset="source_offset",
    )
    asked = ~F.col("is_waived")
    # A message without a time of its own is never left out.
    if scope.since_ms is not None:
        asked &= F.coalesce(F.col("at_ms") >= scope.since_ms, F.lit(True))
    if scope.until_ms is not None:
        asked &= F.coalesce(F.col("at_ms") < scope.until_ms, F.lit(True))
    return frame.withColumn("is_asked", asked).drop("is_waived")


def _judge_identities(marked: DataFrame, consumed: DataFrame) -> DataFrame:
    """A row for each identity: asked (its messages that are judged), own (its messages that no
    recovery wrote), is_recent (one of them is not settled), last_ms, is_handled."""
    found = (
        marked.where(F.col("identity").isNotNull())
        .groupBy("identity")
        .agg(
            F.count_if("is_asked").alias("asked"),
            F.count_if(~F.col("is_put_back")).alias("own"),
            F.max(~F.col("is_settled")).alias("is_recent"),
            F.max("at_ms").alias("last_ms"),
        )
    )
    keys = consumed.select(F.col("key").alias("handled_key")).distinct()
    joined = found.join(keys, F.col("identity") == F.col("handled_key"), "left")
    return joined.withColumn("is_handled", F.col("handled_key").isNotNull()).drop("handled_key")


def _count(marked: DataFrame, known: DataFrame) -> tuple[dict[str, int], int | None]:
    first = marked.agg(
        F.count(F.lit(1)).alias("messages"),
        F.count_if(F.col("identity").isNull()).alias("without_identity"),
        F.count_if("is_tombstone").alias("tombstones"),
        F.count_if("is_put_back").alias("put_back"),
    ).first()
    handled = F.when(F.col("is_handled"), F.col("asked"))
    second = known.agg(
        F.coalesce(F.sum(handled), F.lit(0)).alias("handled"),
        F.coalesce(F.sum(F.when(F.col("own") > 1, handled)), F.lit(0)).alias("repeated"),
        # The newest of each identity: which of its messages the row means is not known.
        F.min(F.when(F.col("is_handled"), F.col("last_ms"))).alias("oldest_ms"),
    ).first()
    assert first is not None
    assert second is not None
    counts = {**first.asDict(), **second.asDict()}
    return counts, counts.pop("oldest_ms")


def _find_fates(missing: DataFrame, later: DataFrame, header: str | None) -> DataFrame:
    """Adds `fate`: coming, recent or lost."""
    ahead = later.select(identify(header).alias("ahead")).where(F.col("ahead").isNotNull())
    joined = missing.join(ahead.distinct(), F.col("identity") == F.col("ahead"), "left")
    fate = F.when(F.col("ahead").isNotNull(), "coming").when(F.col("is_recent"), "recent")
    return joined.select("identity", "asked", fate.otherwise("lost").alias("fate"))


def _count_fates(fates: DataFrame) -> dict[str, int]:
    rows = fates.groupBy("fate").agg(F.sum("asked").alias("n")).collect()
    return {str(row["fate"]): int(row["n"]) for row in rows}


def _list_lost(
    marked: DataFrame, lost: DataFrame, scope: ConsumedScope, oldest: int | None
) -> DataFrame:
    """Place, at_ms and kind of each unhandled message, once: a copy that a recovery wrote carries
    the id of what it copies."""
    rows = marked.join(lost.select("identity"), "identity", "left_semi")
    if scope.header is None:
        place = hash_original_id(scope.topic_id, *_PLACE)
        rows = rows.withColumn("message", F.coalesce("stamp", place))
    else:
        rows = rows.withColumn("message", F.col("identity"))
    # Two messages whose producer passed on the headers of one copy are two all the same.
    whole = Window.partitionBy("message", "identity")
    newest = whole.orderBy(
        F.desc("is_put_back"), F.desc_nulls_last("at_ms"), *(F.desc(name) for name in _PLACE)
    )
    older = F.lit(False) if oldest is None else F.coalesce(F.col("at_ms") < oldest, F.lit(False))
    return (
        rows.withColumn("is_wanted", F.max("is_asked").over(whole))
        .withColumn("rank", F.row_number().over(newest))
        .where("is_wanted and rank = 1")
        .select(*_PLACE, "at_ms", F.when(older, _OLDER).otherwise(_LOST).alias("kind"))
    )


def _count_lost(lost: DataFrame) -> tuple[int, int]:
    row = lost.agg(
        F.count(F.lit(1)).alias("n"), F.count_if(F.col("kind") == _OLDER).alias("older")
    ).first()
    assert row is not None
    return row["n"], row["older"]


def _list_ranges(marked: DataFrame, lost: DataFrame) -> list[UnhandledRange]:
    """Runs of lost messages that no other message interrupts; what lies between them otherwise is
    no message: a control record, or one that was aborted or compacted away."""
    bounds = lost.groupBy("source_partition").agg(
        F.min("source_offset").alias("low"), F.max("source_offset").alias("high")
    )
    near = marked.select(*_PLACE).join(F.broadcast(bounds), "source_partition")
    near = near.where("source_offset between low and high").select(*_PLACE)
    line = Window.partitionBy("source_partition").orderBy("source_offset")
    kind = F.coalesce(F.col("kind"), F.lit(_OTHER))
    rows = (
        near.join(lost, _PLACE, "left")
        .withColumn("kind", kind)
        .withColumn("begins", F.coalesce(F.col("kind") != F.lag("kind").over(line), F.lit(True)))
        .withColumn("run", F.sum(F.col("begins").cast("long")).over(line))
        .where(F.col("kind") != _OTHER)
        .groupBy("source_partition", "run", "kind")
        .agg(
            F.min("source_offset").alias("first"),
            F.max("source_offset").alias("last"),
            F.count(F.lit(1)).alias("messages"),
            F.min("at_ms").alias("first_ms"),
            F.max("at_ms").alias("last_ms"),
        )
        .orderBy("source_partition", "first")
        .limit(MOST_RANGES + 1)
        .collect()
    )
    return [
        UnhandledRange(
            partition=row["source_partition"],
            first=row["first"],
            last=row["last"],
            messages=row["messages"],
            first_ms=row["first_ms"],
            last_ms=row["last_ms"],
            is_older=row["kind"] == _OLDER,
        )
        for row in rows
    ]


def _add_up(
    seen: Mapping[str, int], fates: Mapping[str, int], unhandled: int, older: int
) -> ConsumedCounts:
    return ConsumedCounts(
        **seen,
        unhandled=unhandled,
        older=older,
        not_settled=fates.get("recent", 0),
        coming_again=fates.get("coming", 0),
    )
