"""Which messages of archives are put back: those of the taken ranges, and what was lost again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812

from backlog.errors import StagingError
from spark_backfill.archive.reading import read_archive
from spark_backfill.archived.opening import OpenArchive
from spark_backfill.archived.segments import Segments, mark_archived
from spark_backfill.evidence.base import INJECTED, LOST, QUARANTINED
from spark_backfill.evidence.injected import InjectedEvidence
from spark_backfill.failures import translating
from spark_backfill.messages.rules import DEFAULT_MAX_BYTES
from spark_backfill.originals.frame import as_originals
from spark_backfill.originals.placing import measure_originals
from spark_backfill.originals.staging import OriginalSlots, prepare_originals
from spark_backfill.placing.attribution import EXCLUDE, INCLUDE
from spark_backfill.request import RebuildRequest
from spark_backfill.spark.frames import mark_within

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_PLACE = ("source_partition", "source_offset")


@dataclass(frozen=True, slots=True)
class Taken:
    """What of one partition was archived in the taken ranges.

    `messages` = put_back (by earlier recoveries) + quarantined + staged; `holes` are offsets
    without a message.
    """

    messages: int = 0
    put_back: int = 0
    quarantined: int = 0
    staged: int = 0
    holes: int = 0


@dataclass(frozen=True, eq=False)
class Chosen:
    """Messages of archives that are put back.

    Attributes:
        messages: in the columns of `stage_messages`, with `segment`; None for none.
        rejected: those that cannot be sent: primary_key, time, partition, reason; None for none.
        taken: by the partition that they were in.
        again: put back before and lost again: by the partition that they were put back to.
        uncertain: those of them that may have been read, put back or not.
        slots: all of `messages` by the partition that gets them.
        gone: put back before and lost again, and in no archive.
    """

    messages: DataFrame | None = None
    rejected: DataFrame | None = None
    taken: Mapping[int, Taken] = field(default_factory=dict)
    again: Mapping[int, int] = field(default_factory=dict)
    uncertain: Mapping[int, int] = field(default_factory=dict)
    slots: Mapping[int, int] = field(default_factory=dict)
    gone: int = 0

    @property
    def count(self) -> int:
        """Messages that are put back."""
        return sum(self.slots.values())


def choose_archived(
    spark: SparkSession,
    request: RebuildRequest,
    archives: Sequence[OpenArchive],
    injected: InjectedEvidence,
    segments: Segments,
    work: Path,
    rows: DataFrame | None = None,
) -> Chosen:
    """Labels the messages and counts them.

    Args:
        injected: frozen; what was put back before.
        rows: of the table, with `message_id`: what was lost again is looked for there too.

    Raises:
        StagingError: the archive does not hold what its manifest says.
    """
    again = _find_again(request, injected)
    used = [item for item in archives if item.taken or again is not None]
    if not used:
        return Chosen(gone=0 if again is None else _count_gone(again, rows, None))
    frames = [_prepare(spark, request, item, again) for item in used]
    whole = mark_archived(reduce(lambda a, b: a.unionByName(b), frames), segments)
    labels = _label(spark, request, whole, injected, work)
    counted = _count(labels)
    counted = replace(counted, taken=_finish_taken(used, counted.taken))
    lost = labels.where(F.col("label") == LOST).select(*_PLACE)
    untouched = again is None and all(
        item.messages == item.staged for item in counted.taken.values()
    )
    rejected = labels.where(F.col("label") == QUARANTINED).select(
        F.array(*(F.col(name).cast("string") for name in _PLACE)).alias("primary_key"),
        F.col("original_time").alias("time"),
        F.col("source_partition").alias("partition"),
        F.lit(f"larger than the topic allows ({_find_limit(request)} bytes)").alias("reason"),
    )
    has_rejected = any(item.quarantined for item in counted.taken.values())
    return replace(
        counted,
        messages=whole if untouched else whole.join(lost, list(_PLACE), "left_semi"),
        rejected=rejected if has_rejected else None,
        gone=0 if again is None else _count_gone(again, rows, labels),
    )


def _find_again(request: RebuildRequest, injected: InjectedEvidence) -> DataFrame | None:
    """Ids (`key`) of what was put back and lost again, whether that is `sure`, and `take`."""
    if not injected.has_lost_again:
        return None
    edge = request.stream.source.edge if request.stream.source else None
    take = {INCLUDE: F.lit(True), EXCLUDE: F.col("sure")}.get(edge or "", F.col("likely"))
    return injected.collect_lost_again().select("key", "sure", take.alias("take"))


def _prepare(
    spark: SparkSession, request: RebuildRequest, item: OpenArchive, again: DataFrame | None
) -> DataFrame:
    ranges = None if again is not None else item.taken
    slots = OriginalSlots(
        item.manifest.topic_id,
        item.manifest.partitions,
        request.target_partitions,
        request.stream.partitioner,
    )
    read = as_originals(read_archive(spark, item.location, item.manifest, ranges))
    made = prepare_originals(read, slots).withColumn("size", measure_originals())
    place = {"partition": "source_partition", "offset": "source_offset"}
    marked = mark_within(made, item.taken, "in_taken", **place)
    if again is None:
        return marked.withColumns({"sure": F.lit(True), "take": F.lit(True)})
    named = F.broadcast(again.withColumnRenamed("key", "again_id"))
    found = marked.join(named, F.col("message_id") == F.col("again_id"), "left")
    wanted = found.where(F.col("in_taken") | F.col("again_id").isNotNull()).drop("again_id")
    return wanted.withColumns({name: F.coalesce(name, F.lit(True)) for name in ("sure", "take")})


def _label(
    spark: SparkSession,
    request: RebuildRequest,
    whole: DataFrame,
    injected: InjectedEvidence,
    work: Path,
) -> DataFrame:
    """Where each message lies, and what becomes of it; frozen, without what it says."""
    named = whole.withColumn("known", F.lit(False))
    if injected.prior:
        keys = injected.collect_keys().select(F.col("key").alias("known_id"))
        named = whole.join(keys, F.col("message_id") == F.col("known_id"), "left")
        named = named.withColumn("known", F.col("known_id").isNotNull()).drop("known_id")
    label = (
        F.when(F.col("known") | ~F.col("take"), INJECTED)
        .when(F.col("size") > _find_limit(request), QUARANTINED)
        .otherwise(LOST)
    )
    path = str(work / "archived")
    with translating("read the archive", subject=path, kind=StagingError):
        named.select(
            *_PLACE, "message_id", "original_time", "slot", "in_taken", "sure",
            label.alias("label"),
        ).write.mode("overwrite").parquet(path)  # fmt: skip
        return spark.read.parquet(path)


def _count(labels: DataFrame) -> Chosen:
    rows = (
        labels.groupBy("source_partition", "slot", "in_taken", "label")
        .agg(F.count(F.lit(1)).alias("n"), F.count_if(~F.col("sure")).alias("unsure"))
        .collect()
    )
    taken: dict[int, Counter[str]] = {}
    again, uncertain, slots = Counter[int](), Counter[int](), Counter[int]()
    for row in rows:
        if row["in_taken"]:
            taken.setdefault(row["source_partition"], Counter())[row["label"]] += row["n"]
        elif row["label"] == LOST:
            again[row["slot"]] += row["n"]
        uncertain[row["slot"]] += row["unsure"]
        if row["label"] == LOST:
            slots[row["slot"]] += row["n"]
    return Chosen(
        taken={
            number: Taken(sum(found.values()), found[INJECTED], found[QUARANTINED], found[LOST])
            for number, found in taken.items()
        },
        again=again,
        uncertain={number: count for number, count in uncertain.items() if count},
        slots=slots,
    )


def _finish_taken(archives: Sequence[OpenArchive], found: Mapping[int, Taken]) -> dict[int, Taken]:
    """With the offsets that hold no message, of each partition that has a taken range.

    Raises:
        StagingError: of ranges that are taken whole the manifest says another number.
    """
    offsets, said = Counter[int](), Counter[int]()
    parts: set[int] = set()
    for item in archives:
        for taken in item.taken:
            offsets[taken.partition] += taken.count
            known = item.find_range(taken)
            if known is None or (known.start, known.end) != (taken.start, taken.end):
                parts.add(taken.partition)
            else:
                said[taken.partition] += known.count
    whole: dict[int, Taken] = {}
    for number in sorted(offsets):
        got = found.get(number, Taken())
        if number not in parts and got.messages != said[number]:
            raise StagingError(
                f"partition {number} of the archive holds {got.messages} messages, and its "
                f"manifest says {said[number]}",
                subject=", ".join(item.location for item in archives),
                hint="bring the archive back from a copy",
            )
        whole[number] = replace(got, holes=offsets[number] - got.messages)
    return whole


def _count_gone(again: DataFrame, rows: DataFrame | None, labels: DataFrame | None) -> int:
    left = again.where("take").select(F.col("key").alias("message_id"))
    for known in (rows, labels):
        if known is not None:
            left = left.join(known.select("message_id"), "message_id", "left_anti")
    return left.distinct().count()


def _find_limit(request: RebuildRequest) -> int:
    return int(request.topic_config.get("max.message.bytes", DEFAULT_MAX_BYTES))
