"""Counting labelled candidates and listing those in quarantine; only counts reach the driver."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from backlog.errors import Refused, StagingError
from spark_backfill.evidence.base import INJECTED, LOST, OUTSIDE, QUARANTINED, SURVIVING
from spark_backfill.failures import translating
from spark_backfill.request import Quarantine, Quarantined, Uncertain, UncertainRow
from spark_backfill.verdict import Tally

LISTED = 100


@dataclass(frozen=True, slots=True)
class LabelCounts:
    """Candidates by label and partition (None where unknown), and what else one pass can count.

    `by_label` goes by the partition that a row's message was sent to, or is counted for; `slots`
    has the lost ones by the partition that they are put back into.
    """

    by_label: Mapping[str, Mapping[int | None, int]]
    duplicates: int
    without_key: int  # lost, and their partition is a guess
    young: int  # lost, and changed so lately that their message may be on its way
    without_home: int = 0  # lost, without a key, and nothing tells their partition
    placed_by_key: Mapping[int, int] = field(default_factory=dict)  # lost, and known to be of it
    slots: Mapping[int, int] = field(default_factory=dict)
    uncertain: Mapping[int, int] = field(default_factory=dict)
    forced: Mapping[int, int] = field(default_factory=dict)  # as in Tally

    def total(self, label: str) -> int:
        """All of one label."""
        return sum(self.by_label.get(label, {}).values())

    def placed(self, label: str) -> dict[int, int]:
        """One label by partition."""
        found = self.by_label.get(label, {})
        return {slot: count for slot, count in found.items() if slot is not None}

    @property
    def candidates(self) -> int:
        return sum(self.total(label) for label in self.by_label)

    def to_tally(self) -> Tally:
        return Tally(
            rebuilt=self.placed(LOST),
            surviving=self.placed(SURVIVING),
            quarantined=self.placed(QUARANTINED),
            injected=self.placed(INJECTED),
            forced=self.forced,
            unplaced=self.by_label.get(QUARANTINED, {}).get(None, 0),
        )


def count_labels(decided: DataFrame, young_after: str) -> LabelCounts:
    """One narrow pass over the candidates.

    Args:
        decided: with their last label (`attribute_rows`).
        young_after: a time in the normal form.
    """
    lost, outside = (F.col("label") == label for label in (LOST, OUTSIDE))
    # A message without a key counts for the partition whose need it fills.
    partition = F.when(lost | F.col("uncertain"), F.coalesce("home", "counted", "slot")).otherwise(
        F.col("home")
    )
    with translating("count the candidates", subject="candidates", kind=StagingError):
        rows = (
            decided.groupBy(
                "label", partition.alias("partition"), "slot", F.col("home").isNull().alias("alien")
            )
            .agg(
                F.count(F.lit(1)).alias("n"),
                F.sum("copies").alias("copies"),
                F.count_if(lost & F.col("key_is_null")).alias("without_key"),
                F.count_if(lost & (F.col("time") > young_after)).alias("young"),
                F.count_if("uncertain").alias("uncertain"),
                F.count_if(F.col("uncertain") & lost & ~F.col("likely")).alias("taken"),
                F.count_if(F.col("uncertain") & outside & F.col("likely")).alias("left"),
            )
            .collect()
        )
    by_label: dict[str, Counter[int | None]] = {}
    slots: Counter[int] = Counter()
    uncertain: Counter[int] = Counter()
    forced: Counter[int] = Counter()
    keyed: Counter[int] = Counter()
    without_home = 0
    for row in rows:
        by_label.setdefault(row["label"], Counter())[row["partition"]] += row["n"]
        if row["label"] == LOST:
            slots[row["slot"]] += row["n"]
            if row["alien"]:
                without_home += row["n"]
            else:
                keyed[row["partition"]] += row["n"]
        if row["uncertain"]:
            uncertain[row["partition"]] += row["uncertain"]
            forced[row["partition"]] += row["taken"] - row["left"]
    return LabelCounts(
        by_label,
        duplicates=sum(row["copies"] or 0 for row in rows),
        without_key=sum(row["without_key"] for row in rows),
        young=sum(row["young"] for row in rows),
        without_home=without_home,
        placed_by_key=keyed,
        slots=slots,
        uncertain=uncertain,
        forced=forced,
    )


def check_identity_unique(candidates: DataFrame, stream: str) -> None:
    """One identity for several rows would let one surviving message hide the others (P2.6).

    Raises:
        Refused: names how many, and some.
    """
    shared = (
        candidates.where(F.col("identity").isNotNull())
        .groupBy("identity")
        .agg(F.count(F.lit(1)).alias("n"))
        .where(F.col("n") > 1)
    )
    with translating("check the identity", subject=f"stream {stream}", kind=StagingError):
        found = shared.agg(F.count(F.lit(1)).alias("n"), F.min("identity").alias("first")).first()
    if found is not None and found["n"]:
        example = bytes(found["first"]).decode("utf-8", "backslashreplace")[:60]
        raise Refused(
            f"{found['n']} identities stand for several rows each (one is {example!r}), so a "
            "surviving message of one row would hide the lost message of another",
            subject=f"stream {stream}",
            hint="let `identity` name something that each row has alone, such as an event id "
            "in a header",
        )


def write_quarantine(
    decided: DataFrame,
    key_names: Sequence[str],
    directory: Path,
    count: int,
) -> Quarantine:
    """Lists the rows that cannot be built, as Parquet, and a bounded sample of them."""
    if not count:
        return Quarantine(0, {}, (), "")
    rows = decided.where(F.col("label") == QUARANTINED).select(
        F.array(*key_names).alias("primary_key"), "time", F.col("home").alias("partition"), "reason"
    )
    kept = _list_rows(rows, directory / "quarantine", "list the quarantine")
    reasons = kept.groupBy("reason").count().orderBy("reason").limit(LISTED).collect()
    sample = kept.orderBy("primary_key", "reason").limit(LISTED).collect()
    return Quarantine(
        count=count,
        reasons={row["reason"]: row["count"] for row in reasons},
        sample=tuple(Quarantined(tuple(row["primary_key"]), row["reason"]) for row in sample),
        path=str(directory / "quarantine"),
    )


def write_uncertain(
    decided: DataFrame, key_names: Sequence[str], directory: Path, count: int
) -> Uncertain:
    """Lists the rows at the gaps' edges that may be lost or not, and a bounded sample of them."""
    if not count:
        return Uncertain()
    rows = decided.where("uncertain").select(
        F.col("home").alias("partition"),
        F.array(*key_names).alias("primary_key"),
        "time",
        (F.col("label") == LOST).alias("taken"),
    )
    kept = _list_rows(rows, directory / "uncertain", "list the uncertain rows")
    sample = kept.orderBy("partition", "time", "primary_key").limit(LISTED).collect()
    return Uncertain(
        count=count,
        taken=kept.where("taken").count(),
        sample=tuple(
            UncertainRow(row["partition"], tuple(row["primary_key"]), row["time"], row["taken"])
            for row in sample
        ),
        path=str(directory / "uncertain"),
    )


def _list_rows(rows: DataFrame, path: Path, doing: str) -> DataFrame:
    with translating(doing, subject=str(path), kind=StagingError):
        rows.coalesce(1).write.mode("overwrite").parquet(str(path))
        return rows.sparkSession.read.parquet(str(path))
