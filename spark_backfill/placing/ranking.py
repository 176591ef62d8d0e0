"""Ranks the rows of the gaps' partitions in the stream's order, beside their messages (P2.10)."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.window import Window

from backlog.errors import StagingError
from backlog.values import Bookmark, OffsetRange
from spark_backfill.evidence.survivors import SurvivorEvidence
from spark_backfill.failures import translating
from spark_backfill.spark.frames import make_rows

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
    outside of the gaps' partitions), unordered (the column of `order_by` in which it has NULL, so
    that rank and place say nothing of it; NULL where it has none), copies, p0...
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
    keys: Sequence[str],
    work: Path,
) -> Ranked:
    """Ranks and freezes the candidates.

    Args:
        labelled: the candidates with `label`.
        partitions: those that have a gap; without any nothing is ranked, only frozen.
        order: the sort columns, and what the table calls them; keys: those of the primary key.
    """
    rows = labelled.drop("value", "header_values", "header_list")
    if partitions:
        rows = _rank(_find_marks(_find_messages(rows, survivors), bookmarks, topic_id),
                     partitions, tuple(order))  # fmt: skip
    else:
        for name, kind in _UNRANKED.items():
            rows = rows.withColumn(name, F.lit(None).cast(kind))
    unordered = F.coalesce(
        *(F.when(F.col(name).isNull(), F.lit(told)) for name, told in order.items())
    )
    frame = rows.select(
        "message_id", "time", "label", "reason", F.col("key").isNull().alias("key_is_null"),
        "slot", "home", "homes", "log_partition", "log_offset", "mark", "rank", "place",
        unordered.alias("unordered"), "copies", *keys,
    )  # fmt: skip
    path = str(work / "ranked")
    with translating("rank the candidates", subject=path, kind=StagingError):
        frame.write.mode("overwrite").parquet(path)
    return Ranked(labelled.sparkSession.read.parquet(path))


_UNRANKED = {
    "log_partition": "int", "log_offset": "long", "mark": "string", "rank": "int", "place": "long",
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


def _rank(rows: DataFrame, partitions: Sequence[int], order: Sequence[str]) -> DataFrame:
    ranked = F.col("home").isin(list(partitions)) & F.col("time").isNotNull()
    # The others are sorted as well, but not all of them in one task.
    group = F.when(~F.col("__ranked"), F.pmod(F.xxhash64("message_id"), F.lit(SPREAD)))
    window = Window.partitionBy("__ranked", "home", group).orderBy(*order, "message_id")
    left = F.sum(F.col("log_offset").isNull().cast("long"))
    before = left.over(window.rowsBetween(Window.unboundedPreceding, -1))
    return (
        rows.withColumn("__ranked", F.coalesce(ranked, F.lit(False)))
        .withColumn("rank", F.when(F.col("__ranked"), F.row_number().over(window) - 1))
        .withColumn("place", F.when(F.col("__ranked"), F.coalesce(before, F.lit(0))))
    )


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
