"""The interface of evidence, and the labels that candidates get from it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

SURVIVING = "surviving"
CONSUMED = "consumed"
INJECTED = "already_injected"
QUARANTINED = "quarantined"
LOST = "lost"
# In no gap: the group has read its message, or it is of a partition that lost nothing.
OUTSIDE = "outside"
# The row's time is of the database's clock, the message's of its producer's: by so much the same
# change may seem later in the row. A second change within it stays unsent.
CLOCKS_MS = 1000
LABELS = (SURVIVING, CONSUMED, INJECTED, QUARANTINED, LOST, OUTSIDE)


class Evidence(Protocol):
    """One kind of evidence.

    Attributes:
        label: what candidates that it explains are called.
        matches: the candidates' column that it explains by: `identity` or `message_id`.
    """

    @property
    def label(self) -> str:
        """One of LABELS."""

    @property
    def matches(self) -> str:
        """`identity` (bytes) or `message_id` (text)."""

    def freeze(self) -> None:
        """Reads whatever it reads, once, and keeps it; safe to call again.

        Raises:
            BacklogError: it could not be read in full. Half of the evidence is none.
        """

    def collect_keys(self) -> DataFrame:
        """The frozen keys: a column `key` of the type it matches, distinct, no NULLs.

        There may be a second column `until` (ms): the key explains no row that changed later.
        """


def label_candidates(candidates: DataFrame, evidence: Sequence[Evidence]) -> DataFrame:
    """Adds `label`: the first evidence that explains a candidate, else quarantined or lost.

    Args:
        evidence: in order of precedence, each frozen.
    """
    labelled = candidates
    label = F.when(F.col("reason").isNotNull(), QUARANTINED).otherwise(LOST)
    for i, item in reversed(list(enumerate(evidence))):
        mark = f"__{i}"
        keys = item.collect_keys().withColumnRenamed("key", f"{mark}_key")
        matches = F.col(item.matches) == F.col(f"{mark}_key")
        if "until" in keys.columns:
            keys = keys.withColumnRenamed("until", f"{mark}_until")
            changed = F.unix_millis(F.col("time").try_cast("timestamp"))
            late = changed > F.col(f"{mark}_until") + CLOCKS_MS
            matches &= ~F.coalesce(late, F.lit(False))
        labelled = labelled.join(keys.withColumn(mark, F.lit(True)), matches, "left")
        label = F.when(F.col(mark).isNotNull(), item.label).otherwise(label)
    ends = ("", "_key", "_until")
    marks = [f"__{i}{end}" for i in range(len(evidence)) for end in ends]
    return labelled.withColumn("label", label).drop(*marks)
