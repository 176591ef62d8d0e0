"""Holes in the sequences that producers stamp: messages that never reached the log (protocol P7).

A chain is one producer, one epoch, one partition: its sequences begin at 0 and leave none out. The
partition is the stamp's: a copy in another one fills its own place, and none there. A stamp of
another topic was passed on with a message's headers: it fills no place here.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812

from backlogctl.spark_backfill.spark.topic import known_time
from backlogctl_delivery import stamps
from backlogctl_delivery.sequenced.sequence import (
    MAX_SKIPPED_BYTES,
    PATTERN,
    SEQUENCE,
    SEQUENCE_END,
    SKIPPED,
    RangeSet,
    UnreadableStamp,
    hash_topic,
    read_stamp,
)

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Row

_CHAIN = ("partition", "producer", "epoch")
MOST_HOLES, MOST_CHAINS, MOST_REPORTS = 10_000, 10_000, 100_000
# More than the longest that is legible has.
_STAMP_BYTES = 200
_PLACE = ("source_partition", "source_offset", "at_ms")
_COUNTS = ("read", "stamped", "unreadable", "put_back", "misplaced", "foreign")
_NAMES = (SEQUENCE, SKIPPED, SEQUENCE_END, stamps.RECOVERY_ID)


class SequenceKey(NamedTuple):
    """Whose sequences are counted together; the partition is the one they were taken for."""

    partition: int
    producer: str
    epoch: int


@dataclass(frozen=True, slots=True)
class SequenceChain:
    """What was read of one; sequences and offsets inclusive, times in ms since 1970."""

    id: SequenceKey
    messages: int
    repeats: int
    first: int
    last: int
    first_offset: int
    first_ms: int | None
    last_ms: int | None
    is_closed: bool


@dataclass(frozen=True, slots=True)
class Neighbour:
    """The next message beside a hole that its producer sent itself: no copy."""

    offset: int
    at_ms: int | None


@dataclass(frozen=True, slots=True)
class SequenceHole:
    """Sequences `first` to `last`, both included, that are nowhere and were not reported.

    `before` is None where the hole is the beginning of its chain.
    """

    id: SequenceKey
    first: int
    last: int
    before: Neighbour | None
    after: Neighbour

    @property
    def count(self) -> int:
        """Messages that are missing."""
        return self.last - self.first + 1


@dataclass(frozen=True, slots=True)
class SequenceCounts:
    """Messages read, and those of them that are stamped for this topic, not legible, put back by a
    recovery, neither put back nor in the partition of their stamp, or stamped for another topic."""

    read: int
    stamped: int
    unreadable: int
    put_back: int
    misplaced: int
    foreign: int


@dataclass(frozen=True, slots=True)
class SequenceAudit:
    """What the sequences show.

    Attributes:
        chains: oldest first; at most `MOST_CHAINS`.
        holes: by chain and sequence; at most `MOST_HOLES`.
        heads: chains whose beginning lies before what was read: what is missing there is unknown.
        reported: sequences that the producers themselves reported as not delivered.
        doubtful: by partition, between which offsets, both included, messages are stamped
            illegibly: a hole there may be one of these.
        begins_ms: by partition that was not read from its first message on, the earliest time of
            what was read.
        is_whole: False where there was more than could be listed: then more may be missing.
    """

    counts: SequenceCounts
    chains: tuple[SequenceChain, ...]
    holes: tuple[SequenceHole, ...]
    heads: int
    reported: int
    doubtful: Mapping[int, tuple[int, int]]
    begins_ms: Mapping[int, int | None]
    is_whole: bool

    def is_at_head(self, hole: SequenceHole, within_ms: int) -> bool:
        """Whether what is missing may lie before what was read: where producers overtake their own
        retries, a later sequence can have a lower offset, and retention took it."""
        if hole.before is None or hole.id.partition not in self.begins_ms:
            return False
        begin, at = self.begins_ms[hole.id.partition], hole.before.at_ms
        return begin is None or at is None or at < begin + within_ms


def audit_sequence(messages: DataFrame, topic: str, whole: Iterable[int]) -> SequenceAudit:
    """Reads every message once, and lists what is missing between those that are there.

    Args:
        messages: in the columns of `ORIGINALS_SCHEMA`; committed ones only, each offset once.
        topic: theirs; a stamp names its own.
        whole: partitions read from their very first message on: a chain there begins at 0.
    """
    begun = set(whole)
    marked = _mark(messages, topic).cache()
    chains = _gather_chains(marked).cache()
    try:
        partitions = _look_at_partitions(marked)
        reports, many, illegible = _list_reports(marked)
        known = _list_chains(chains)
        found = _list_holes(marked, chains, sorted(begun))
    finally:
        chains.unpersist()
        marked.unpersist()
    left = [rest for hole in found for rest in _subtract(hole, reports)]
    return SequenceAudit(
        counts=SequenceCounts(*(sum(row[name] for row in partitions) for name in _COUNTS)),
        chains=tuple(known[:MOST_CHAINS]),
        holes=tuple(left[:MOST_HOLES]),
        heads=sum(chain.first > 0 and chain.id.partition not in begun for chain in known),
        reported=sum(b - a + 1 for ranges in reports.values() for a, b in ranges),
        doubtful=_merge_doubtful(partitions, illegible),
        begins_ms={
            row["source_partition"]: row["begin_ms"]
            for row in partitions
            if row["source_partition"] not in begun
        },
        is_whole=not many and len(known) <= MOST_CHAINS and len(found) <= MOST_HOLES,
    )


def _mark(messages: DataFrame, topic: str) -> DataFrame:
    """A row for each message: its chain and sequence where it is stamped legibly.

    In steps, so that Spark computes each of them once.
    """
    ours = F.filter(F.col("headers"), lambda header: header["name"].isin(*_NAMES))
    few = messages.select(
        "source_partition",
        "source_offset",
        known_time().alias("at_ms"),
        ours.alias("ours"),
    )
    raw = few.select(
        *_PLACE,
        F.array_contains("ours.name", SEQUENCE).alias("is_stamped"),
        F.array_contains("ours.name", stamps.RECOVERY_ID).alias("is_put_back"),
        F.array_contains("ours.name", SEQUENCE_END).alias("is_last"),
        F.array_contains("ours.name", SKIPPED).alias("is_report"),
        _one_value(SEQUENCE).alias("raw"),
        _one_value(SKIPPED).alias("raw_report"),
    )
    flags = ("is_stamped", "is_put_back", "is_last")
    texts = raw.select(
        *_PLACE,
        *flags,
        "is_report",
        F.when(F.octet_length("raw") <= _STAMP_BYTES, F.col("raw").cast("string")).alias("text"),
        F.when(
            F.octet_length("raw_report") <= MAX_SKIPPED_BYTES, F.col("raw_report").cast("string")
        ).alias("skipped"),
    )
    parts = texts.select(
        *_PLACE,
        *flags,
        "text",
        "skipped",
        (F.col("is_report") & F.col("skipped").isNull()).alias("is_report_illegible"),
        F.when(F.col("text").rlike(PATTERN), F.split("text", ":")).alias("parts"),
    )
    marked = parts.select(
        *_PLACE,
        *flags,
        F.when(F.col("skipped").isNotNull(), F.col("text")).alias("stamp"),
        "skipped",
        "is_report_illegible",
        F.col("parts")[0].alias("producer"),
        F.col("parts")[1].try_cast("bigint").alias("epoch"),
        (F.col("parts")[2] == hash_topic(topic)).alias("is_here"),
        F.col("parts")[3].try_cast("int").alias("partition"),
        F.col("parts")[4].try_cast("bigint").alias("sequence"),
    )
    numbers = (F.col(name).isNotNull() for name in ("epoch", "partition", "sequence"))
    legible = marked.withColumn("is_legible", reduce(and_, numbers))
    is_here = F.col("is_legible") & F.col("is_here")
    readable = legible.withColumn("is_foreign", F.col("is_legible") & ~is_here).withColumn(
        "is_readable", is_here
    )
    is_sent = F.col("is_readable") & ~F.col("is_put_back")
    is_there = F.col("partition") == F.col("source_partition")
    return readable.withColumn("is_own", is_sent & is_there).withColumn(
        "is_misplaced", is_sent & ~is_there
    )


def _one_value(name: str) -> Column:
    """Of the headers of that name, where all say the same; else NULL, as for a NULL value."""
    found = F.array_distinct(F.filter("ours", lambda header: header["name"] == name)["value"])
    return F.when(F.size(found) == 1, F.try_element_at(found, F.lit(1)))


def _look_at_partitions(marked: DataFrame) -> list[Row]:
    """By partition: what was read of it, and between which offsets stamps are illegible."""
    illegible = (F.col("is_stamped") & ~F.col("is_legible")) | F.col("is_report_illegible")
    illegible = ~F.col("is_foreign") & illegible
    return (
        marked.groupBy("source_partition")
        .agg(
            F.count(F.lit(1)).alias("read"),
            F.count_if("is_readable").alias("stamped"),
            F.count_if(illegible).alias("unreadable"),
            F.count_if("is_put_back").alias("put_back"),
            F.count_if("is_misplaced").alias("misplaced"),
            F.count_if("is_foreign").alias("foreign"),
            F.min("at_ms").alias("begin_ms"),
            F.min(F.when(illegible, F.col("source_offset"))).alias("first"),
            F.max(F.when(illegible, F.col("source_offset"))).alias("last"),
        )
        .collect()
    )


def _merge_doubtful(
    partitions: Sequence[Row], reports: Sequence[tuple[int, int]]
) -> dict[int, tuple[int, int]]:
    """Where stamps are illegible, or reports in legible ones are."""
    found: dict[int, list[int]] = defaultdict(list)
    for row in partitions:
        if row["first"] is not None:
            found[row["source_partition"]] += [row["first"], row["last"]]
    for partition, offset in reports:
        found[partition].append(offset)
    return {partition: (min(offsets), max(offsets)) for partition, offsets in found.items()}


def _gather_chains(marked: DataFrame) -> DataFrame:
    """What each producer wrote itself: a copy, or what lies elsewhere, begins and ends no chain."""
    return (
        marked.where("is_own")
        .groupBy(*_CHAIN, "sequence")
        .agg(
            F.count(F.lit(1)).alias("messages"),
            F.min("source_offset").alias("offset"),
            F.min("at_ms").alias("first_ms"),
            F.max("at_ms").alias("last_ms"),
            F.max("is_last").alias("is_last"),
        )
        .groupBy(*_CHAIN)
        .agg(
            F.sum("messages").alias("messages"),
            F.count(F.lit(1)).alias("different"),
            F.min("sequence").alias("first"),
            F.max("sequence").alias("last"),
            F.min("offset").alias("first_offset"),
            F.min("first_ms").alias("first_ms"),
            F.max("last_ms").alias("last_ms"),
            F.max(F.when(F.col("is_last"), F.col("sequence"))).alias("closed_at"),
        )
    )


def _list_chains(chains: DataFrame) -> list[SequenceChain]:
    return [
        SequenceChain(
            id=SequenceKey(row["partition"], row["producer"], row["epoch"]),
            messages=row["messages"],
            repeats=row["messages"] - row["different"],
            first=row["first"],
            last=row["last"],
            first_offset=row["first_offset"],
            first_ms=row["first_ms"],
            last_ms=row["last_ms"],
            is_closed=row["closed_at"] == row["last"],
        )
        for row in chains.orderBy(*_CHAIN).limit(MOST_CHAINS + 1).collect()
    ]


def _list_holes(marked: DataFrame, chains: DataFrame, whole: Sequence[int]) -> list[SequenceHole]:
    """What is missing between two that are there, and before the first where a chain's beginning
    was read; a copy fills its place, wherever it lies.

    Most chains have as many sequences as lie between their ends: those are not sorted.
    """
    least = F.when(F.col("partition").isin(*whole), -1).otherwise(F.col("first"))
    begins = F.when(F.col("partition").isin(*whole), 0).otherwise(F.col("first"))
    broken = chains.where(F.col("different") < F.col("last") - begins + 1).select(
        *_CHAIN, least.alias("least"), F.col("last").alias("most")
    )
    seen = (
        marked.where("is_readable")
        .join(broken, [*_CHAIN])
        .groupBy(*_CHAIN, "sequence", "least", "most")
        .agg(F.min(F.when(F.col("is_own"), F.struct("source_offset", "at_ms"))).alias("own"))
    )
    line = Window.partitionBy(*_CHAIN).orderBy("sequence")
    # Backwards, since Spark looks at all that follows anew for each row.
    back = Window.partitionBy(*_CHAIN).orderBy(F.desc("sequence"))
    begun = F.when(F.col("least") < 0, F.lit(-1))
    own = F.last("own", ignorenulls=True)
    rows = (
        seen.withColumn("after", own.over(back.rowsBetween(Window.unboundedPreceding, 0)))
        .withColumn("before", own.over(line.rowsBetween(Window.unboundedPreceding, -1)))
        .withColumn("previous", F.coalesce(F.lag("sequence").over(line), begun))
        .where("sequence > previous + 1 and previous >= least and sequence <= most")
        .orderBy(*_CHAIN, "sequence")
        .limit(MOST_HOLES + 1)
        .collect()
    )
    return [
        SequenceHole(
            id=SequenceKey(row["partition"], row["producer"], row["epoch"]),
            first=row["previous"] + 1,
            last=row["sequence"] - 1,
            before=None if row["before"] is None else Neighbour(*row["before"]),
            after=Neighbour(*row["after"]),
        )
        for row in rows
    ]


def _list_reports(
    marked: DataFrame,
) -> tuple[dict[SequenceKey, RangeSet], bool, list[tuple[int, int]]]:
    """By chain, the sequences that its producer reported as not delivered; whether there were too
    many to be read; and partition and offset of those that are illegible."""
    rows = (
        marked.where("is_readable and skipped is not null")
        .groupBy("source_partition", "stamp", "skipped")
        .agg(F.min("source_offset").alias("offset"))
        .limit(MOST_REPORTS + 1)
        .collect()
    )
    found: dict[SequenceKey, RangeSet] = defaultdict(RangeSet)
    illegible: list[tuple[int, int]] = []
    for row in rows[:MOST_REPORTS]:
        headers = [(SEQUENCE, row["stamp"].encode()), (SKIPPED, row["skipped"].encode())]
        try:
            stamp = read_stamp(headers)
        except UnreadableStamp:
            illegible.append((row["source_partition"], row["offset"]))
            continue
        assert stamp is not None
        for first, last in stamp.skipped:
            found[SequenceKey(stamp.partition, stamp.producer, stamp.epoch)].add(first, last)
    return found, len(rows) > MOST_REPORTS, illegible


def _subtract(hole: SequenceHole, reports: Mapping[SequenceKey, RangeSet]) -> list[SequenceHole]:
    """What of a hole nobody reported."""
    known = reports.get(hole.id, RangeSet())
    return [
        SequenceHole(hole.id, first, last, hole.before, hole.after)
        for first, last in known.list_gaps(hole.first, hole.last)
    ]
