"""Decides of each candidate whether it lies in a gap: by its offset, its place, or its time."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.window import Window

from backlog.errors import StagingError
from backlog.values import OffsetRange
from spark_backfill.evidence.base import LOST, OUTSIDE, QUARANTINED
from spark_backfill.failures import translating
from spark_backfill.messages.windows import Bounds
from spark_backfill.messages.windows import Window as TimeWindow
from spark_backfill.placing.ranking import SPREAD
from spark_backfill.placing.values import RowRange
from spark_backfill.spark.frames import make_rows, mark_within

INCLUDE, EXCLUDE = "include", "exclude"


@dataclass(frozen=True, slots=True)
class Attribution:
    """How rows are given to gaps.

    Attributes:
        ranges: the gaps: a row whose message is still in the log is in one by its offset.
        bounded: those of them that the group may have read in part.
        cuts: places, of the partitions whose gaps could be placed.
        windows: times, of the other partitions that have a gap; they do not overlap.
        anywhere: times of rows whose partition is not known.
        proven: whether the partitioner is proved: else a row may be of any partition.
        edge: what is done with uncertain rows: include, exclude, or None for what is likely.
    """

    ranges: Sequence[OffsetRange]
    bounded: Collection[OffsetRange]
    cuts: Sequence[RowRange]
    windows: Sequence[TimeWindow]
    anywhere: Bounds
    proven: bool
    edge: str | None = None

    def take(self, cut: RowRange) -> bool:
        """Whether rows of a range are put back."""
        if self.edge == INCLUDE:
            return True
        return cut.sure if self.edge == EXCLUDE else cut.likely


def attribute_rows(
    ranked: DataFrame, how: Attribution, again: DataFrame | None, work: Path
) -> DataFrame:
    """The ranked rows with their last `label`, `uncertain` and whether they are `likely` lost, and
    `counted` (the partition of a row that is of one of two), frozen.

    A row that no evidence explains and that lies in no gap is `outside`: the group has read it.

    Args:
        again: ids (`key`) of messages that were put back and may have been lost again (`likely`,
            `sure`), wherever their rows lie.
    """
    spark = ranked.sparkSession
    rows = ranked
    place = {"partition": "log_partition", "offset": "log_offset"}
    for name, ranges in (("in_log", how.ranges), ("in_bounded", how.bounded)):
        rows = mark_within(rows, ranges, f"c_{name}", **place)
    cuts = make_rows(
        spark,
        [(c.partition, c.first, c.end, how.take(c), c.likely, not c.sure) for c in how.cuts],
        "c_home int, c_first long, c_end long, c_take boolean, c_is_likely boolean, "
        "c_uncertain boolean",
    )
    windows = make_rows(
        spark,
        [(w.partition, *w.bounds.to_text()) for w in how.windows],
        "w_home int, w_lower string, w_upper string",
    )
    others = sorted({window.partition for window in how.windows})
    within_cut = (
        (F.col("home") == F.col("c_home"))
        & (F.col("place") >= F.col("c_first"))
        & (F.col("place") < F.col("c_end"))
        & F.col("log_offset").isNull()
    )
    rows = rows.join(F.broadcast(cuts), within_cut, "left")
    in_window = (F.col("home") == F.col("w_home")) & _is_between("w_lower", "w_upper")
    rows = rows.join(F.broadcast(windows), in_window, "left")
    lower, upper = how.anywhere.to_text()
    elsewhere = _is_between(F.lit(lower), F.lit(upper))
    # A row without a time is a candidate until evidence explains it.
    timeless = F.col("time").isNull()
    in_log = F.col("c_in_log")
    # A message with a key that was sent while partitions were added: of one of two partitions.
    numbers = sorted({*(r.partition for r in how.ranges), *(w.partition for w in how.windows)})
    possible = F.array_intersect("homes", F.array(*map(F.lit, numbers)))
    either = F.col("home").isNull() & F.col("homes").isNotNull() & ~timeless
    either_lost = either & elsewhere & ((F.size(possible) > 0) if how.proven else F.lit(True))
    take_either = either_lost
    if how.edge == EXCLUDE:
        in_log, take_either = in_log & ~F.col("c_in_bounded"), F.lit(False)
    in_gap = (
        F.when(F.col("log_offset").isNotNull(), in_log)
        .when(either, take_either)
        .when(F.col("home").isNull() | timeless, elsewhere | timeless)
        .when(F.col("home").isin(others), F.col("w_home").isNotNull())
        .when(F.col("c_take").isNotNull(), F.col("c_take"))
        .otherwise(F.lit(False) if how.proven else elsewhere)
    )
    open_ = F.col("label").isin(LOST, QUARANTINED)
    uncertain = F.coalesce("c_uncertain", F.col("c_in_bounded") | either_lost)
    decided = (
        rows.withColumn("uncertain", open_ & uncertain)
        .withColumn("likely", F.coalesce("c_is_likely", F.lit(True)))
        .withColumn("label", F.when(open_ & ~in_gap, OUTSIDE).otherwise(F.col("label")))
        .withColumn("counted", F.when(either, F.try_element_at(possible, F.lit(1))))
    )
    if again is not None:
        decided = _take_again(decided, again, how.edge)
    path = str(work / "attributed")
    with translating("find the lost rows", subject=path, kind=StagingError):
        names = [name for name in decided.columns if name[:2] not in ("c_", "w_")]
        decided.select(*names).write.mode("overwrite").parquet(path)
    return spark.read.parquet(path)


def _take_again(decided: DataFrame, again: DataFrame, edge: str | None) -> DataFrame:
    marks = {"key": "c_again", "likely": "c_likely", "sure": "c_sure"}
    lost_again = F.broadcast(again.withColumnsRenamed(marks))
    found = decided.join(lost_again, F.col("message_id") == F.col("c_again"), "left")
    take = {INCLUDE: F.lit(True), EXCLUDE: F.col("c_sure")}.get(edge or "", F.col("c_likely"))
    back = F.col("c_again").isNotNull() & (F.col("label") == OUTSIDE) & take
    kind = F.when(F.col("reason").isNull(), LOST).otherwise(QUARANTINED)
    open_ = F.col("label").isin(LOST, QUARANTINED, OUTSIDE)
    unsure = F.coalesce(open_ & ~F.col("c_sure"), F.lit(False))
    return (
        found.withColumn("uncertain", F.col("uncertain") | unsure)
        .withColumn("likely", F.when(unsure, F.col("c_likely")).otherwise(F.col("likely")))
        .withColumn("label", F.when(back, kind).otherwise(F.col("label")))
    )


def _is_between(lower: Column | str, upper: Column | str) -> Column:
    first, last = (F.col(at) if isinstance(at, str) else at for at in (lower, upper))
    time = F.col("time")
    return (first.isNull() | (time >= first)) & (last.isNull() | (time <= last))


def fill_needs(decided: DataFrame, needs: Mapping[int, int]) -> DataFrame:
    """Gives lost messages without a key to the partitions that still lack some, in order of time.

    Args:
        needs: lost offsets that no message with a key explains, by partition. What is left over
            keeps the partition it was spread to.
    """
    edges, at = [], 0
    for number, need in sorted(needs.items()):
        if need > 0:
            edges.append((number, at, at + need))
            at += need
    if not edges:
        return decided
    keyless = (F.col("label") == LOST) & F.col("key_is_null") & F.col("home").isNull()
    # The other rows are sorted as well, but not all of them in one task.
    group = F.when(~F.col("__keyless"), F.pmod(F.xxhash64("message_id"), F.lit(SPREAD)))
    order = Window.partitionBy("__keyless", group).orderBy("time", "message_id")
    ranges = make_rows(decided.sparkSession, edges, "f_slot int, f_first long, f_end long")
    index = F.row_number().over(order) - 1
    numbered = decided.withColumn("__keyless", keyless).withColumn(
        "__index", F.when(F.col("__keyless"), index)
    )
    inside = (F.col("__index") >= F.col("f_first")) & (F.col("__index") < F.col("f_end"))
    filled = numbered.join(F.broadcast(ranges), inside, "left")
    return filled.withColumn("slot", F.coalesce("f_slot", "slot")).drop(
        "f_slot", "f_first", "f_end", "__keyless", "__index"
    )
