"""Evidence of earlier recoveries: message ids of chunks that are committed in the Kafka ledger.

What was put back can expire unread again. Then it is lost again, message by message: the messages
of a chunk lie in their order between its first and its last offset.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import ClassVar, Protocol

import numpy as np
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from backlogctl.errors import Refused
from backlogctl.formats import format_plural
from backlogctl.manifests import name_ids
from backlogctl.spark_backfill.failures import translating
from backlogctl.spark_backfill.request import ALLOW_IDS, PriorChunk, Stretch, list_stretches
from backlogctl.spark_backfill.spark.frames import make_empty
from backlogctl.values import OffsetRange

# The interface of evidence, and the labels that candidates get from it.

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


# By partition and message id the offsets: what was put back twice can be there twice.
Places = Mapping[int, Mapping[str, Sequence[int]]]


class Survivors(Protocol):
    """What is in the log: log starts, and where messages of recoveries are."""

    @property
    def starts(self) -> Mapping[int, int]: ...

    def locate_ours(self, partitions: Sequence[int]) -> Places: ...


@dataclass(frozen=True)
class InjectedEvidence:
    """Reads the id lists (`ids/`) beside the manifests, not the payloads.

    Attributes:
        gaps: the lost ranges: messages put back for the same group that lie in one of them were
            lost again.
        survivors: what is in the log, frozen: those of them that still are.
        may_lack: lists that are missing are left out, and `describe_missing` says so.
    """

    label: ClassVar[str] = INJECTED
    matches: ClassVar[str] = "message_id"
    spark: SparkSession
    staging_root: Path
    prior: Sequence[PriorChunk]
    gaps: Sequence[OffsetRange] = field(default=())
    survivors: Survivors | None = None
    may_lack: bool = False

    def freeze(self) -> None:
        """Checks that every list is there; they never change.

        Raises:
            Refused: a list is missing, so its messages could be sent twice.
        """
        missing = [*map(self._find_file, self._missing)]
        if missing and not self.may_lack:
            raise Refused(
                f"{len(missing)} id lists of injected chunks are missing, so their messages "
                f"could be sent twice; the first is {min(missing)}",
                subject=f"staging directory {self.staging_root}",
                hint="point `staging.dir` at the directory that has the `ids` folders of earlier "
                "recoveries; else `backlogctl ledger adopt` makes those again whose messages are "
                f"in the topic still, and says what is left to do: `--allow {ALLOW_IDS}` plans "
                "without the others",
            )

    def describe_missing(self) -> str:
        """What is not known of earlier recoveries, a sentence; "" where all is."""
        if not self._missing:
            return ""
        names = ", ".join(sorted({chunk.recovery_id for chunk in self._missing}))
        are = "is" if len(self._missing) == 1 else "are"
        return (
            f"{format_plural(len(self._missing), 'id list')} of {names} {are} missing: what was "
            "put back by those, and is in the topic no more, may be sent a second time"
        )

    def collect_keys(self) -> DataFrame:
        """Message ids of all committed chunks, without those that may have been lost again."""
        left = [chunk for chunk in self._listed if chunk not in self._touched]
        whole = [chunk for chunk in left if not chunk.left_out]
        known = self._read_ids([self._find_file(chunk) for chunk in whole])
        kept = [(mid,) for item in self._touched.values() for mid in item.ids[~item.possible]]
        kept += [(mid,) for chunk in left if chunk.left_out for mid in self._read_sent(chunk)]
        if kept:
            known = known.union(self.spark.createDataFrame(kept, "key string")).distinct()
        return known

    def collect_lost_again(self) -> DataFrame:
        """Message ids that were put back and may lie in a gap now, and nowhere else: columns `key`,
        `likely` and `sure` that they do, and the `archive` that they came from, NULL for none."""
        rows = [
            (mid, bool(likely), bool(sure), chunk.archive)
            for chunk, item in self._touched.items()
            for mid, likely, sure in zip(
                item.ids[item.possible],
                item.likely[item.possible],
                item.sure[item.possible],
                strict=True,
            )
        ]
        schema = "key string, likely boolean, sure boolean, archive string"
        again = self.spark.createDataFrame(rows, schema)
        again = again.groupBy("key").agg(
            *(F.max(name).alias(name) for name in ("likely", "sure", "archive"))
        )
        return again.join(self.collect_keys(), "key", "left_anti") if rows else again

    def count_returned(self) -> dict[int, int]:
        """Offsets of the gaps by partition whose messages came from an archive, and were put back
        again since."""
        rows = [
            (chunk.slot, mid)
            for chunk, item in self._touched.items()
            if chunk.archive is not None
            for mid in item.ids[item.likely]
        ]
        if not rows:
            return {}
        lost = self.spark.createDataFrame(rows, "slot int, key string")
        found = lost.join(self.collect_keys(), "key", "left_semi").groupBy("slot").count()
        return {row["slot"]: row["count"] for row in found.collect()}

    @property
    def has_lost_again(self) -> bool:
        """Whether anything that was put back lies in a gap now."""
        return any(item.possible.any() for item in self._touched.values())

    def list_stretches(self) -> tuple[Stretch, ...]:
        """Where in the log earlier recoveries wrote."""
        return list_stretches(self.prior)

    @cached_property
    def _missing(self) -> tuple[PriorChunk, ...]:
        return tuple(chunk for chunk in self.prior if not self._find_file(chunk).is_file())

    @cached_property
    def _listed(self) -> tuple[PriorChunk, ...]:
        missing = set(self._missing)
        return tuple(chunk for chunk in self.prior if chunk not in missing)

    @cached_property
    def _touched(self) -> dict[PriorChunk, Located]:
        """Chunks that may have messages in a gap."""
        near = {
            chunk: gaps
            for chunk in self._listed
            if chunk.same_group and chunk.first_offset is not None and chunk.last_offset is not None
            and (gaps := [
                gap for gap in self.gaps
                if gap.partition == chunk.slot
                and gap.start <= chunk.last_offset and chunk.first_offset < gap.end
            ])
        }  # fmt: skip
        if not near:
            return {}
        slots = sorted({chunk.slot for chunk in near})
        there: Places = {} if self.survivors is None else self.survivors.locate_ours(slots)
        starts = {} if self.survivors is None else self.survivors.starts
        found = {}
        for chunk, gaps in near.items():
            ids = self._read_sent(chunk)
            here = there.get(chunk.slot, {})
            found[chunk] = locate_messages(chunk, ids, gaps, here, starts.get(chunk.slot))
        return found

    def _read_sent(self, chunk: PriorChunk) -> np.ndarray:
        path = self._find_file(chunk)
        with translating("read id lists", subject=str(path), kind=Refused):
            ids = pq.read_table(path, columns=["message_id"])["message_id"].to_numpy()
        return np.delete(ids, list(chunk.left_out))

    def _find_file(self, chunk: PriorChunk) -> Path:
        return self.staging_root / chunk.recovery_id / name_ids(chunk.slot, chunk.number)

    def _read_ids(self, paths: Sequence[Path]) -> DataFrame:
        if not paths:
            return make_empty(self.spark, "key string")
        with translating("read id lists", subject=str(self.staging_root), kind=Refused):
            # Without this Spark makes a column of the directory's name.
            frame = self.spark.read.option("recursiveFileLookup", "true").parquet(
                *sorted(str(path) for path in paths)
            )
            ids = frame.select(F.col("message_id").alias("key"))
            return ids.where(F.col("key").isNotNull()).distinct()


@dataclass(frozen=True, slots=True, eq=False)
class Located:
    """The messages of a chunk, and whether each may, likely does and surely does lie in a gap."""

    ids: np.ndarray
    possible: np.ndarray
    likely: np.ndarray
    sure: np.ndarray


def list_injected_offsets(rows: Iterable[tuple[int, str, int]]) -> Places:
    """Of partition, message id and offset."""
    found: dict[int, dict[str, list[int]]] = {}
    for partition, mid, offset in rows:
        found.setdefault(partition, {}).setdefault(mid, []).append(offset)
    return found


def locate_messages(
    chunk: PriorChunk,
    ids: np.ndarray,
    gaps: Sequence[OffsetRange],
    there: Mapping[str, Sequence[int]],
    log_start: int | None,
) -> Located:
    """Where the messages of a chunk lie: in their order, from its first offset to its last one.

    Others may have written in between. One that is not in the log lies before the log's start.

    Args:
        ids: the message ids, in the order they were sent.
        there: the offsets of those that are in the log; those outside the chunk are of copies that
            another one put back.
    """
    assert chunk.first_offset is not None
    assert chunk.last_offset is not None
    index = np.arange(len(ids))
    first, last = chunk.first_offset, chunk.last_offset
    own = [[at for at in there.get(mid, ()) if first <= at <= last] for mid in ids]
    known = np.array([places[0] if places else -1 for places in own], dtype=np.int64)
    low, high = first + index, last - index[::-1]
    if log_start is not None:
        high = np.minimum(high, log_start - 1)
    high = np.where(known < 0, np.maximum(low, high), known)
    low = np.where(known < 0, low, known)
    # Each lies behind the one before it.
    low = np.maximum.accumulate(low - index) + index
    high = np.minimum.accumulate((high - index)[::-1])[::-1] + index
    middle = (low + high) // 2
    possible, likely, sure = (np.zeros(len(ids), dtype=bool) for _ in range(3))
    for gap in gaps:
        possible |= (high >= gap.start) & (low < gap.end)
        likely |= (middle >= gap.start) & (middle < gap.end)
        sure |= (low >= gap.start) & (high < gap.end)
    return Located(ids, possible, likely, sure)
