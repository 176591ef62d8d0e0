"""Ranks the rows of the gaps' partitions in the stream's order, beside their messages (P2.10)."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.window import Window

from backlogctl.errors import StagingError
from backlogctl.spark_backfill.evidence.survivors import SurvivorEvidence
from backlogctl.spark_backfill.failures import translating
from backlogctl.spark_backfill.request import Stretch
from backlogctl.spark_backfill.spark.frames import freeze, make_rows
from backlogctl.values import Bookmark, OffsetRange

# What is measured of one partition's rows, and where its gaps begin and end among them.
#
# Rows of a partition are counted in the stream's order (`order_by`). A *place* is a number of
# rows: those that come before, without the ones whose message is still in the log. Among rows that
# tie in that order those that left the log come first, then the others by their offset.


class EdgeEvidence(StrEnum):
    """What says where a gap begins or ends, best first."""

    CONSUMED = "consumed"  # the consumer's own table
    LOG = "log"  # the log itself: its first offset, or the first message that survives
    BOOKMARK = "bookmark"  # the identity of the message at the committed offset
    COUNTED = "counted"  # offsets counted from the nearest offset whose row is known
    SAMPLES = "samples"  # times of samples only


@dataclass(frozen=True, slots=True)
class Anchor:
    """A row whose offset is known: no row lies between the offsets `first` and `offset`.

    `before`, `after`: by how many places it may stand elsewhere among the rows that tie with it.
    """

    first: int
    offset: int
    place: int
    before: int = 0
    after: int = 0

    @property
    def is_sharp(self) -> bool:
        return not (self.before or self.after)


@dataclass(frozen=True, slots=True)
class TimedPlaces:
    """Where the samples' times put an edge: not before `lower`, not after `upper`; not before
    `floor`, not after `ceiling`, where rows were committed, or marked, as late as the stream's
    margin allows."""

    offset: int
    lower: int
    upper: int
    floor: int
    ceiling: int


@dataclass(frozen=True, slots=True)
class PartitionRows:
    """The rows of one partition, as measured.

    Attributes:
        rows: rows whose message is not in the log.
        log_start: where the log begins; every offset from here on is known by its message.
        before_log: the place of `log_start`.
        bookmarks: rows below the log start whose offset is known.
        ours: offsets that earlier recoveries wrote, control records included: no row stands there.
        timed: what samples say of the edges.
        unordered: those of the rows that have no place; None where each has one.
    """

    partition: int
    rows: int
    log_start: int
    before_log: int
    bookmarks: tuple[Anchor, ...] = ()
    ours: tuple[Stretch, ...] = ()
    timed: tuple[TimedPlaces, ...] = ()
    unordered: Unordered | None = None


@dataclass(frozen=True, slots=True)
class Unordered:
    """Rows with NULL in columns of `order_by`: they stand before all others, wherever they were."""

    rows: int
    columns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class OrderProof:
    """How well the rows' order is the log's, measured on messages that survive.

    Attributes:
        compared: rows whose message is in the log. Those that tie show no order: they count once.
        early, late: by how many places at most a row stands before, or after, its message.
        mean: the mean displacement, in places.
        disorder: the mean displacement as a share of a partition's survivors; 1/3 where the order
            is random.
        unsent: rows among the survivors whose message is not in the log.
        gone: messages among the survivors that have no row of their own.
        holes: the share of offsets that are no messages (control records, aborted, compacted).
    """

    compared: int = 0
    early: int = 0
    late: int = 0
    mean: float = 0.0
    disorder: float = 0.0
    unsent: int = 0
    gone: int = 0
    holes: float = 0.0

    @property
    def displacement(self) -> int:
        """D: the most places between a row and its message."""
        return max(self.early, self.late)


@dataclass(frozen=True, slots=True)
class Edge:
    """Where a gap begins or ends: `place` rows come before it.

    Attributes:
        before: how many rows before `place` may lie behind the edge all the same.
        after: how many rows from `place` on may lie before it.
        differs: by how many rows the check says otherwise: negative, the check lies earlier.
        check: what it was checked by; None where nothing could.
        beyond: by how many rows it lies before the first one that was read.
    """

    offset: int
    place: int
    evidence: EdgeEvidence
    before: int = 0
    after: int = 0
    differs: int = 0
    check: EdgeEvidence | None = None
    beyond: int = 0


@dataclass(frozen=True, slots=True)
class PlacedGap:
    """A gap among the rows of its partition. `bounded`: the group may have read some of it."""

    start: Edge
    end: Edge
    bounded: bool = False


@dataclass(frozen=True, slots=True)
class RowRange:
    """Places `[first, end)` of one partition: whether their rows are likely, or surely, lost."""

    partition: int
    first: int
    end: int
    likely: bool
    sure: bool


# Bookmarks that are looked for on either side of an edge.
_BOOKMARKS = 8
# Rows without a rank are spread over so many groups.
SPREAD = 1000


@dataclass(frozen=True, slots=True)
class Ranked:
    """The labelled rows without their content, ranked and frozen.

    Columns of `frame`: message_id, time, label, reason, key_is_null, slot, home (the partition it
    was sent to; NULL where unknown), homes (those it may have been sent to), log_partition and
    log_offset (of its own message in the log, else NULL), mark (the digest of a bookmark of this
    row), rank and place (rows before it: all, and those whose message is not in the log; NULL
    outside of the gaps' partitions), tie (the rank of the first row that ties with it), unordered
    (the column of `order_by` in which it has NULL, so that rank and place say nothing of it; NULL
    where it has none), copies, p0...
    """

    frame: DataFrame

    def in_gaps(self) -> DataFrame:
        """Rows that have a rank."""
        return self.frame.where(F.col("rank").isNotNull())


def choose_bookmarks(
    bookmarks: Iterable[Bookmark], ranges: Sequence[OffsetRange], log_start: Mapping[int, int]
) -> tuple[Bookmark, ...]:
    """The bookmarks that may place an edge: of rows that left the log, nearest to the gaps."""
    by_partition: dict[int, list[Bookmark]] = {}
    for mark in bookmarks:
        if mark.offset < log_start.get(mark.partition, 0):
            by_partition.setdefault(mark.partition, []).append(mark)
    chosen: list[Bookmark] = []
    for partition in sorted({item.partition for item in ranges}):
        edges = [at for r in ranges if r.partition == partition for at in (r.start, r.end)]
        known = sorted(by_partition.get(partition, ()), key=lambda mark: mark.offset)
        near: set[int] = set()
        for edge in edges:
            at = bisect_left(known, edge, key=lambda mark: mark.offset)
            near |= set(range(max(0, at - _BOOKMARKS), min(len(known), at + _BOOKMARKS)))
        chosen += [known[i] for i in sorted(near)]
    # The identity of messages in several partitions says of none where its row belongs.
    homes: dict[str, set[int]] = {}
    for mark in chosen:
        homes.setdefault(mark.digest, set()).add(mark.partition)
    return tuple(mark for mark in chosen if len(homes[mark.digest]) == 1)


def rank_rows(
    labelled: DataFrame,
    survivors: SurvivorEvidence,
    bookmarks: Sequence[Bookmark],
    *,
    topic_id: str,
    partitions: Sequence[int],
    order: Mapping[str, str],
    sort_keys: Sequence[Column],
    keys: Sequence[str],
    work: Path,
) -> Ranked:
    """Ranks and freezes the candidates.

    Args:
        labelled: the candidates with `label`.
        partitions: those that have a gap; without any nothing is ranked, only frozen.
        order: the sort columns, and what the table calls them; keys: those of the primary key.
        sort_keys: what tells rows apart (`list_sort_keys`).
    """
    rows = labelled.drop("value", "header_values", "header_list")
    if partitions:
        rows = _rank(_find_marks(_find_messages(rows, survivors), bookmarks, topic_id),
                     partitions, tuple(order), sort_keys)  # fmt: skip
    else:
        for name, kind in _UNRANKED.items():
            rows = rows.withColumn(name, F.lit(None).cast(kind))
    unordered = F.coalesce(
        *(F.when(F.col(name).isNull(), F.lit(told)) for name, told in order.items())
    )
    frame = rows.select(
        "message_id", "time", "label", "reason", F.col("key").isNull().alias("key_is_null"),
        "slot", "home", "homes", "log_partition", "log_offset", "mark", "rank", "place",
        "tie", unordered.alias("unordered"), "copies", *keys,
    )  # fmt: skip
    path = str(work / "ranked")
    with translating("rank the candidates", subject=path, kind=StagingError):
        return Ranked(freeze(frame, path))


_UNRANKED = {
    "log_partition": "int", "log_offset": "long", "mark": "string", "rank": "int", "place": "long",
    "tie": "int",
}  # fmt: skip


def _find_messages(rows: DataFrame, survivors: SurvivorEvidence) -> DataFrame:
    """Adds the offset of the row's own message in the log, and where it knows the partition."""
    log = (
        survivors.read_frozen()
        .where(~F.col("ours") & F.col("identity").isNotNull())
        .groupBy(F.col("identity").alias("log_identity"))
        .agg(
            F.min_by("partition", "offset").alias("log_partition"),
            F.min("offset").alias("log_offset"),
        )
    )
    found = rows.join(log, F.col("identity") == F.col("log_identity"), "left")
    return found.withColumn("home", F.coalesce("home", "log_partition"))


def _rank(
    rows: DataFrame, partitions: Sequence[int], order: Sequence[str], sort_keys: Sequence[Column]
) -> DataFrame:
    ranked = F.col("home").isin(list(partitions)) & F.col("time").isNotNull()
    names = [f"__k{i}" for i in range(len(sort_keys))]
    # The others are sorted as well, but not all of them in one task.
    group = F.when(~F.col("__ranked"), F.pmod(F.xxhash64("message_id"), F.lit(SPREAD)))
    window = Window.partitionBy("__ranked", "home", group).orderBy(
        *names, F.asc_nulls_first("log_offset"), *order, "message_id"
    )
    left = F.sum(F.col("log_offset").isNull().cast("long"))
    before = left.over(window.rowsBetween(Window.unboundedPreceding, -1))
    rank = F.row_number().over(window) - 1
    same = F.lit(True)
    for name in names:
        same = same & F.col(name).eqNullSafe(F.lag(name).over(window))
    begin = F.when((rank == 0) | ~same, rank)
    tie = F.max("__begin").over(window.rowsBetween(Window.unboundedPreceding, 0))
    return (
        rows.withColumns({"__ranked": F.coalesce(ranked, F.lit(False)),
                          **dict(zip(names, sort_keys, strict=True))})
        .withColumn("rank", F.when(F.col("__ranked"), rank))
        .withColumn("place", F.when(F.col("__ranked"), F.coalesce(before, F.lit(0))))
        .withColumn("__begin", begin)
        .withColumn("tie", F.when(F.col("__ranked"), tie))
    )  # fmt: skip


def _find_marks(rows: DataFrame, bookmarks: Sequence[Bookmark], topic_id: str) -> DataFrame:
    """Adds `mark`, the digest of a bookmark that is of this row, and where that is."""
    if not bookmarks:
        return rows.withColumn("mark", F.lit(None).cast("string"))
    known = {mark.digest: mark.partition for mark in bookmarks}
    marks = make_rows(rows.sparkSession, list(known.items()), "mark string, mark_home int")
    salt = F.lit(bytearray(topic_id.encode() + b"\0"))
    # `stamps.hash_identity` in Spark SQL, bit for bit.
    digest = F.substring(F.sha2(F.concat(salt, F.col("identity")), 256), 1, 32)
    found = rows.join(F.broadcast(marks), digest == F.col("mark"), "left")
    return found.withColumn("home", F.coalesce("home", "mark_home"))
