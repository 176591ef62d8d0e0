"""Counting labelled candidates and listing those in quarantine; only counts reach the driver."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from backlog.errors import Refused, StagingError
from spark_backfill.evidence.base import INJECTED, LOST, QUARANTINED, SURVIVING
from spark_backfill.failures import translating
from spark_backfill.request import Quarantine, Quarantined
from spark_backfill.verdict import Tally

LISTED = 100


@dataclass(frozen=True, slots=True)
class LabelCounts:
    """Candidates by label and slot (None where unknown), and what else one pass can count."""

    by_label: Mapping[str, Mapping[int | None, int]]
    duplicates: int
    without_key: int  # lost, and their partition is a guess
    young: int  # lost, and changed so lately that their message may be on its way

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
            unplaced=self.by_label.get(QUARANTINED, {}).get(None, 0),
        )


def count_labels(labelled: DataFrame, young_after: str) -> LabelCounts:
    """One narrow pass over the labelled candidates.

    Args:
        young_after: a time in the normal form.
    """
    lost = F.col("label") == LOST
    with translating("count the candidates", subject="candidates", kind=StagingError):
        rows = (
            labelled.groupBy("label", "slot")
            .agg(
                F.count(F.lit(1)).alias("n"),
                F.sum("copies").alias("copies"),
                F.count_if(lost & F.col("key").isNull()).alias("without_key"),
                F.count_if(lost & (F.col("time") > young_after)).alias("young"),
            )
            .collect()
        )
    by_label: dict[str, dict[int | None, int]] = {}
    for row in rows:
        by_label.setdefault(row["label"], {})[row["slot"]] = row["n"]
    return LabelCounts(
        by_label,
        duplicates=sum(row["copies"] or 0 for row in rows),
        without_key=sum(row["without_key"] for row in rows),
        young=sum(row["young"] for row in rows),
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
    labelled: DataFrame, key_names: Sequence[str], directory: Path, count: int
) -> Quarantine:
    """Lists the rows that cannot be built, as Parquet, and a bounded sample of them."""
    path = directory / "quarantine"
    if not count:
        return Quarantine(0, {}, (), "")
    rows = labelled.where(F.col("label") == QUARANTINED).select(
        F.array(*key_names).alias("primary_key"), "time", F.col("slot").alias("partition"), "reason"
    )
    with translating("list the quarantine", subject=str(path), kind=StagingError):
        rows.coalesce(1).write.mode("overwrite").parquet(str(path))
        kept = labelled.sparkSession.read.parquet(str(path))
        reasons = kept.groupBy("reason").count().orderBy("reason").limit(LISTED).collect()
        sample = kept.orderBy("primary_key", "reason").limit(LISTED).collect()
    return Quarantine(
        count=count,
        reasons={row["reason"]: row["count"] for row in reasons},
        sample=tuple(Quarantined(tuple(row["primary_key"]), row["reason"]) for row in sample),
        path=str(path),
    )
